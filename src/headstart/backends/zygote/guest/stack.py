"""Who is behind a call that is being watched: the call stack, read from the inside out."""

from __future__ import annotations

import sys
from typing import Any

STDLIB_WAY = frozenset(
    [
        "os",
        "posixpath",
        "genericpath",
        "pathlib",
        "pathlib._local",
        "pathlib._abc",
        "_collections_abc",
        "collections.abc",
        "typing",
        "contextlib",
        "tempfile",
        "subprocess",
        "shutil",
    ]
)
"""Who reads on behalf of somebody else: the reader is the first frame above these."""

DRAWING_WAY = (STDLIB_WAY - {"tempfile"}) | {
    "random",
    "secrets",
    "uuid",
    "importlib",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
}
"""Who draws on behalf of somebody else. `tempfile` draws for itself: names, and again where one is taken."""


def reader(way: frozenset[str] = STDLIB_WAY) -> str:
    """Name the module whose code is behind the call that is being watched."""
    frame = _frame_above(way)
    return "?" if frame is None else str(frame.f_globals.get("__name__"))


def place() -> object:
    """Identify the instruction behind the call: `dict(os.environ)` lists all names, then asks for each."""
    frame = _frame_above(STDLIB_WAY)
    return None if frame is None else (frame.f_code, frame.f_lasti)


def bodies() -> list[str]:
    """Name the modules whose bodies are being executed, innermost first."""
    found: list[str] = []
    frame: Any = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way up the stack
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            found.append(str(frame.f_globals.get("__name__")))
        frame = frame.f_back
    return [name for name in found if name != "__main__" and not name.startswith("_headstart_zygote")]


def _frame_above(way: frozenset[str]) -> Any:
    frame: Any = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way up the stack
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in way and not name.startswith("_headstart_zygote"):
            return frame
        frame = frame.f_back
    return None
