"""Folders that come and go while several processes use them: who uses one, or fills one, holds a lock on it.

The kernel lets go of a lock when its holder ends, however that is. So a folder that is wanted no more, and
that nobody has locked, is rubbish, whatever happened to whoever made it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Collection, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from headstart.backends.local.guest.copying import delete_tree

__all__ = ["SharedFolders", "new_name", "remove"]

_GOING = "going-"


class SharedFolders:
    """Folders below one folder. All but `held` and `remove` is for whoever keeps others from doing the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        return self._folder / name

    @contextmanager
    def held(self, name: str) -> Generator[Path]:
        """Yield a folder that stays for as long as the block lasts.

        Raises:
            FileNotFoundError: It is not there.
        """
        descriptor = os.open(self.path(name), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield self.path(name)
        finally:
            os.close(descriptor)

    def make(self) -> str:
        """Make a new folder, and return its name."""
        name = new_name()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.path(name).mkdir(mode=0o700)
        return name

    def put(self, name: str, to: str) -> None:
        """Give a folder another name; who uses what had that name goes on."""
        self.set_aside(to)
        self.path(name).rename(self.path(to))

    def set_aside(self, name: str) -> None:
        """Take a folder, if it is there, out of its place; `collect` will find it."""
        with suppress(FileNotFoundError):
            self.path(name).rename(self.path(_GOING + new_name()))

    def collect(self, wanted: Collection[str]) -> list[Path]:
        """Return what is wanted no more and used by nobody, out of its place: to be given to `remove`."""
        found: list[Path] = []
        with suppress(FileNotFoundError):
            for path in list(self._folder.iterdir()):
                if path.name not in wanted and not _is_used(path):
                    going = path if path.name.startswith(_GOING) else path.rename(self.path(_GOING + new_name()))
                    found.append(going)
        return found


def new_name() -> str:
    """Return a name that nothing has."""
    return secrets.token_hex(8)


def remove(folder: Path) -> None:
    """Delete a folder with all that is in it, as far as that is possible; several may at once."""
    for rest in (folder, *folder.parent.glob(f"{folder.name}.*")):  # where an earlier try has put what was deep in it
        with suppress(OSError):
            _open_up(rest)
            delete_tree(str(rest))


def _open_up(folder: Path) -> None:
    """Let its owner into all folders in a folder, also where he has closed them to himself."""
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        with suppress(OSError):
            here.chmod(0o700)
            with os.scandir(here) as entries:
                waiting += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]


def _is_used(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False  # somebody has removed it, or it is no folder and none of ours
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
