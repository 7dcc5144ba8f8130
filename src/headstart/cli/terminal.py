"""How commands speak: data on stdout, everything else on stderr, errors end in a hint."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from headstart.errors import HeadstartError

__all__ = ["console", "print_error", "print_json", "say"]


_PIPED_WIDTH = 200


def console() -> Console:
    """A console for data; plain text when stdout is not a terminal."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def say(message: str) -> None:
    """Tell a person something that is not data."""
    print(message, file=sys.stderr, flush=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print one JSON object, the only thing on stdout."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_error(error: HeadstartError) -> None:
    """Print `error: …` and, where there is a cure, `hint: …`."""
    say(f"error: {error}")
    if error.hint:
        say(f"hint: {error.hint}")
