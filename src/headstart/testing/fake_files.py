"""A sandbox's files in memory: a dict from full paths to files and folders.

Refusals are those of the contract, with `errno` and the path as it was given. There are no
links, no devices and no permissions to lack; modes are kept and nothing looks at them.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

import anyio.lowlevel

from headstart.backends.contract import FileInfo, FileKind
from headstart.clock import Clock, ManualClock

__all__ = ["FakeFiles"]

LONGEST_NAME_BYTES: Final = 255
LONGEST_PATH: Final = 4095


@dataclass(slots=True, kw_only=True)
class _Entry:
    """A file, or a folder if it has no content."""

    content: bytes | None
    mode: int
    modified_s: float

    @property
    def is_folder(self) -> bool:
        return self.content is None


def _always_there() -> None:
    """The owner of the files is never gone."""


class FakeFiles:
    """An in-memory `Files`: an empty home and `/tmp`.

    Args:
        home: Where relative paths begin.
        check: Raises if the sandbox is gone; called by every operation.
        clock: Tells when files are changed.
    """

    def __init__(
        self,
        home: str = "/home/sandbox",
        *,
        check: Callable[[], None] = _always_there,
        clock: Clock | None = None,
    ) -> None:
        self._home = home
        self._check = check
        self._clock = clock or ManualClock()
        self._entries: dict[str, _Entry] = {"/": self._new_folder()}
        for folder in (home, "/tmp"):  # noqa: S108  it is not the machine's
            self._make_folders(folder, folder)

    def checked_by(self, check: Callable[[], None]) -> FakeFiles:
        """Return the same files, for another owner: what is done to them there is seen here."""
        same = FakeFiles(self._home, check=check, clock=self._clock)
        same._entries = self._entries
        return same

    def copy(self) -> FakeFiles:
        """Return these as they are now, whatever becomes of who owns them."""
        copied = FakeFiles(self._home, clock=self._clock)
        copied._entries = {path: replace(entry) for path, entry in self._entries.items()}
        return copied

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """See `Files.read`."""
        await self._begin()
        content = self._entry(self._resolve(path), path).content
        if content is None:
            raise _refused(errno.EISDIR, path)
        if len(content) > limit_bytes:
            raise _refused(errno.EFBIG, path)
        return content

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """See `Files.write`."""
        await self._begin()
        folder, name = posixpath.split(path.rstrip("/"))
        if name in {"", ".", ".."}:
            raise _refused(errno.EISDIR, path)
        full = posixpath.join(self._make_folders(posixpath.normpath(folder), path), _name(name, path))
        before = self._entries.get(full)
        if before is not None and before.is_folder:
            raise _refused(errno.EISDIR, path)
        usual = 0o644 if before is None else before.mode
        given = usual if mode is None else mode & 0o777
        self._entries[full] = _Entry(content=bytes(content), mode=given, modified_s=self._clock.wall_s())

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """See `Files.list`."""
        await self._begin()
        folder = self._folder(self._resolve(path), path)
        shown = PurePosixPath(self._home, path)
        return [_info(shown / posixpath.basename(full), self._entries[full]) for full in self._within(folder)]

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        await self._begin()
        return _info(PurePosixPath(self._home, path), self._entry(self._resolve(path), path))

    async def make_folder(self, path: str) -> None:
        """See `Files.make_folder`."""
        await self._begin()
        if self._is_file(path):
            raise _refused(errno.EEXIST, path)
        self._make_folders(path, path)

    async def rename(self, path: str, to: str) -> None:
        """See `Files.rename`."""
        await self._begin()
        old, new = self._resolve(path), self._resolve(to, told=path)
        moved = self._entry(old, path)
        if old == new:
            return
        if new.startswith(f"{old.rstrip('/')}/"):
            raise _refused(errno.EINVAL, path)
        self._make_room(new, for_folder=moved.is_folder, path=path)
        for full in [full for full in self._entries if full == old or full.startswith(f"{old}/")]:
            self._entries[new + full.removeprefix(old)] = self._entries.pop(full)

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        await self._begin()
        full = self._resolve(path)
        self._entry(full, path)
        if full == "/":
            raise _refused(errno.EBUSY, path)
        if self._within(full):
            raise _refused(errno.ENOTEMPTY, path)
        del self._entries[full]

    async def _begin(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._check()

    def _resolve(self, path: str, *, told: str | None = None) -> str:
        """Return where walking along `path` ends; all but the last step must be there. Refusals tell `told`."""
        told = path if told is None else told
        if len(path) > LONGEST_PATH:
            raise _refused(errno.ENAMETOOLONG, told)
        here = "/"
        for part in posixpath.join(self._home, path).rstrip("/").split("/"):
            here = _step(self._folder(here, told), part, told)
        return here

    def _make_folders(self, path: str, told: str) -> str:
        """Walk along `path`, make the folders that are missing, and return where it ends."""
        here = "/"
        for part in posixpath.join(self._home, path).split("/"):
            here = _step(here, part, told)
            self._entries.setdefault(here, self._new_folder())
            self._folder(here, told)
        return here

    def _make_room(self, full: str, *, for_folder: bool, path: str) -> None:
        """Drop what is at `full`, if that may be replaced."""
        replaced = self._entries.get(full)
        if replaced is None:
            return
        if self._within(full):
            raise _refused(errno.ENOTEMPTY if for_folder else errno.EISDIR, path)
        if replaced.is_folder != for_folder:
            raise _refused(errno.ENOTDIR if for_folder else errno.EISDIR, path)
        del self._entries[full]

    def _entry(self, full: str, path: str) -> _Entry:
        if full not in self._entries:
            raise _refused(errno.ENOENT, path)
        return self._entries[full]

    def _folder(self, full: str, path: str) -> str:
        if not self._entry(full, path).is_folder:
            raise _refused(errno.ENOTDIR, path)
        return full

    def _is_file(self, path: str) -> bool:
        entry = self._entries.get(posixpath.normpath(posixpath.join(self._home, path)))
        return entry is not None and not entry.is_folder

    def _within(self, folder: str) -> Sequence[str]:
        """Return the full paths of what is directly in a folder, by name."""
        return sorted(full for full in self._entries if full != "/" and posixpath.dirname(full) == folder)

    def _new_folder(self) -> _Entry:
        return _Entry(content=None, mode=0o755, modified_s=self._clock.wall_s())


def _step(folder: str, part: str, path: str) -> str:
    if part in {"", "."}:
        return folder
    return posixpath.dirname(folder) if part == ".." else posixpath.join(folder, _name(part, path))


def _name(part: str, path: str) -> str:
    if "\0" in part:
        raise _refused(errno.EINVAL, path)
    if len(os.fsencode(part)) > LONGEST_NAME_BYTES:
        raise _refused(errno.ENAMETOOLONG, path)
    return part


def _refused(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _info(path: PurePosixPath, entry: _Entry) -> FileInfo:
    return FileInfo(
        name=path.name or "/",
        path=str(path),
        kind=FileKind.FOLDER if entry.content is None else FileKind.FILE,
        size_bytes=len(entry.content or b""),
        mode=entry.mode,
        modified_s=entry.modified_s,
    )
