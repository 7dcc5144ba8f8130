"""A folder of this machine that a sandbox may be able to write to while we copy into it, or out of it.

A path means something else as soon as somebody puts a link on its way. So what is in the folder is
opened from the folder that is open, name by name, and no link is followed.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["HostFolder"]

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HostFolder:
    """An open folder. What fails raises an `OSError` with the full path.

    Attributes:
        path: By which it was found; for messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> Generator[HostFolder]:
        """Open the folder that somebody has named: links on the way are meant."""
        descriptor = os.open(path, _FOLDER)
        try:
            yield cls(descriptor, path)
        finally:
            os.close(descriptor)

    @contextmanager
    def inner(self, name: str) -> Generator[HostFolder]:
        """Open a folder in it."""
        with self._told_of(name):
            descriptor = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=self._descriptor)
        try:
            yield HostFolder(descriptor, self.path / name)
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return what is in it, in order."""
        with os.scandir(self._descriptor) as entries:
            return sorted(entry.name for entry in entries)

    def kind_of(self, name: str) -> int:
        """Return what something in it is: one of `stat.S_IF…`."""
        with self._told_of(name):
            return stat.S_IFMT(os.stat(name, dir_fd=self._descriptor, follow_symlinks=False).st_mode)

    def read(self, name: str) -> tuple[bytes, int] | None:
        """Return a file's content and permissions; None if it is no file any more."""
        with self._told_of(name), os.fdopen(os.open(name, _FILE, dir_fd=self._descriptor), "rb") as file:
            facts = os.fstat(file.fileno())
            return (file.read(), stat.S_IMODE(facts.st_mode)) if stat.S_ISREG(facts.st_mode) else None

    def make_folder(self, name: str) -> None:
        """Make a folder in it; one that is there is fine, and so is anything else until it is opened."""
        with self._told_of(name):
            try:
                os.mkdir(name, dir_fd=self._descriptor)
            except FileExistsError:
                return

    def put(self, name: str, content: bytes, mode: int) -> None:
        """Have a file with this content in it: whoever reads it sees the old one or the new one, whole."""
        beside = f".headstart-{secrets.token_hex(8)}"
        with self._told_of(name):
            descriptor = os.open(beside, _NEW, 0o600, dir_fd=self._descriptor)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                    os.fchmod(file.fileno(), mode)
                os.replace(beside, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            except BaseException:
                os.unlink(beside, dir_fd=self._descriptor)
                raise

    def set_mode(self, mode: int) -> None:
        """Give it these permissions."""
        os.fchmod(self._descriptor, mode)

    @contextmanager
    def _told_of(self, name: str) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error
