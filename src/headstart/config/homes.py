"""Folders that hold more than a server should ever see: homes above all, with their keys and histories.

A program that lies directly in one is shown with the code beside it, and nothing else of the
folder. Rejected: its folder as a whole, as everywhere else (`.ssh` would show), and refusing to
start it (in a container, `/root/server.py` is how many begin).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SHARED", "code_beside", "is_crowded", "python_in"]

_HOMES = (Path("/home"), Path("/Users"))
SHARED = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))  # noqa: S108 not used, but recognised
"""Everybody's on the host; every sandbox has these to itself."""
_MARKS = (".ssh", ".gnupg", ".bashrc", ".profile")
_NODE = frozenset({".cjs", ".js", ".mjs", ".ts"})


def is_crowded(folder: Path, home: Path | None = None) -> bool:
    """Whether a folder is a home, holds one, or is everybody's; `home` is the service's own."""
    real, own = (Path(os.path.realpath(each)) for each in (folder, home or Path.home()))  # also of links in a circle
    if own.is_relative_to(real) or real in (*_HOMES, *SHARED) or real.parent in _HOMES:
        return True
    return any(os.path.lexists(real / mark) for mark in _MARKS)


def code_beside(program: Path) -> Iterator[Path]:
    """Yield a program in a crowded folder, and its owner's code there that it may load: its kind of files, packages.

    Raises:
        OSError: It or the folder cannot be read.
    """
    yield program
    kinds = _NODE if program.suffix in _NODE else frozenset({program.suffix} - {""})
    owner = program.stat().st_uid
    for path in _code_in(program.parent, kinds):
        if path != program and path.lstat().st_uid == owner:  # whose the link is: anybody's could lead to the owner's
            yield path


def python_in(folder: Path) -> Iterator[Path]:
    """Return the Python modules and packages that lie directly in a crowded folder.

    Raises:
        OSError: It cannot be read.
    """
    return _code_in(folder, frozenset({".py"}))


def _code_in(folder: Path, kinds: frozenset[str]) -> Iterator[Path]:
    return (path for path in sorted(folder.iterdir()) if not path.name.startswith(".") and _is_code(path, kinds))


def _is_code(path: Path, kinds: frozenset[str]) -> bool:
    try:
        if path.is_file():
            return path.suffix in kinds or (path.name == "package.json" and kinds == _NODE)
        if kinds == _NODE:
            return path.name == "node_modules" and path.is_dir()
        return ".py" in kinds and (path / "__init__.py").is_file()
    except OSError:  # it is, or leads to, a folder that this user may not look into
        return False
