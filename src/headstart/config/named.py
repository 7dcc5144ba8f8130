"""Which paths a launch spec names: absolute ones, and those that its working folder makes absolute.

A relative path counts where it looks like one: it has a slash, stands there already, or is called like a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from headstart.config.model import ServerSettings

__all__ = ["DATABASES", "SCRIPTS", "expanded", "named_paths", "named_script", "relative_paths"]

DATABASES = frozenset({".db", ".db3", ".duckdb", ".s3db", ".sqlite", ".sqlite3"})
SCRIPTS = frozenset({".cjs", ".js", ".mjs", ".pl", ".py", ".rb", ".sh", ".ts"})
_SEPARATORS = re.compile("[=:,]")


def expanded(piece: str) -> Path:
    """Expand a `~` at the beginning; what only looks like somebody's home, a pattern say, stays as it is."""
    try:
        return Path(piece).expanduser()
    except RuntimeError:
        return Path(piece)


def named_paths(server: ServerSettings) -> Iterator[Path]:
    """Yield the paths that arguments and environment name, absolute; whether they exist or not.

    The script is left out: it is the program itself.
    """
    for piece, relative in _pieces(server, without=_script(server)):
        path = expanded(piece)
        if path.is_absolute():
            yield path
        elif relative is not None:
            yield relative


def named_script(server: ServerSettings) -> Path | None:
    """Return the script that the launch spec names, absolute; None if it names none that is there."""
    script = _script(server)
    path = Path(os.path.normpath((server.base or Path("/")) / expanded(script)))
    return path if script and path.is_file() else None


def relative_paths(server: ServerSettings) -> Iterator[Path]:
    """Yield, absolute, the paths that arguments (the script too) and environment name relatively."""
    return (path for _, path in _pieces(server) if path is not None)


def _script(server: ServerSettings) -> str:
    first = next((arg for arg in server.args if not arg.startswith("-")), "")
    return first if Path(first).suffix in SCRIPTS else ""


def _pieces(server: ServerSettings, *, without: str = "") -> Iterator[tuple[str, Path | None]]:
    """Yield all that may be a path, and what it is if it is a relative one."""
    for value in server.args:
        if value != without:
            for piece in _SEPARATORS.split(value):
                yield piece, _relative(piece, server.base, or_exists=True)
    for value in server.env.values():
        for piece in _SEPARATORS.split(value):
            yield piece, _relative(piece, server.base, or_exists=False)  # a bare word there is a mode, a level, a name


def _relative(piece: str, base: Path | None, *, or_exists: bool) -> Path | None:
    if base is None or not piece or piece.startswith(("-", "/", "~")):
        return None
    path = Path(os.path.normpath(base / piece))
    if "/" in piece or Path(piece).suffix.lower() in DATABASES:
        return path
    return path if or_exists and os.path.lexists(path) else None
