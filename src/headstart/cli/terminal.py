"""How commands speak: data on stdout, everything else on stderr, errors end in a hint."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from headstart.errors import BackendError, HeadstartError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["console", "fit_encoding", "print_error", "print_json", "say", "show", "shown", "table"]


_PIPED_WIDTH = 200


def fit_encoding() -> None:
    """Show what the terminal's encoding lacks (bars, arrows) as `?` instead of failing at it."""
    stdout: object = sys.stdout
    if isinstance(stdout, io.TextIOWrapper):
        cast("io.TextIOWrapper[Any]", stdout).reconfigure(errors="replace")


def console() -> Console:
    """A console for data; plain text when stdout is not a terminal, and brackets in it are brackets."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPED_WIDTH
    return Console(file=sys.stdout, highlight=False, markup=False, width=width)


def show(*parts: RenderableType) -> None:
    """Print data for people, each part on lines of its own; no line ends in blanks."""
    out = console()
    with out.capture() as captured:
        for part in parts:
            out.print(part)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def shown(name: str) -> str:
    r"""Write somebody else's name for something so that it is one word of a line, and steers no terminal.

    >>> print(shown("a b"), shown("new\nline"), shown("\x1b[2J"))
    a b 'new\nline' '\x1b[2J'
    """
    return name if name.isprintable() else repr(name)


def table(*columns: str, header: bool = True) -> Table:
    """A table without lines, indented below its heading; what does not fit is folded."""
    from rich.table import Table

    made = Table(box=None, header_style="dim", pad_edge=True, padding=(0, 0, 0, 2), show_header=header)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def say(message: str) -> None:
    """Tell a person something that is not data."""
    print(message, file=sys.stderr, flush=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object, the only thing on stdout."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    print(text if _can_be_written(text) else json.dumps(data, indent=2))


def _can_be_written(text: str) -> bool:
    """Whether stdout's encoding has all of it; a file's name may be no text at all."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def print_error(error: HeadstartError) -> None:
    """Print `error: …` and `hint: …`, the cure."""
    say(f"error: {error}")
    hint = error.hint or ("headstart doctor says what this machine can do" if isinstance(error, BackendError) else None)
    if hint:
        say(f"hint: {hint}")
