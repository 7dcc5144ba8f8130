"""Unpacking a root file system from a tar archive that a stranger may have made.

`tarfile` reads the archive; writing is ours. Its filter `data` is no help: Python 3.11 has it
since 3.11.4 only (Debian 12 has 3.11.2), it could be led out of the folder by long paths
(CVE-2025-4138), and it refuses absolute links, which every root file system is full of. Here a
link is text that nobody follows: each folder on the way to a member is opened by a descriptor of
the one above, without following links, and what is at the member's own place is removed before
something new is put there. So no name leads anywhere but into the folder.

What is unpacked belongs to whoever unpacks it, is writable by nobody else, and has no setuid, setgid
or sticky bit. Devices, FIFOs and attributes are left out.
"""

from __future__ import annotations

import math
import os
import stat
import tarfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headstart.errors import ConfigError
from headstart.sandbox.templates.archive import (
    BLOCK_BYTES,
    CHUNK_BYTES,
    HEADER_BYTES,
    ArchiveLimits,
    BoundedFile,
    HashedFile,
    decompressed,
    told,
    too_large,
)

__all__ = ["Unpacked", "unpack"]

_DEEPEST = 128
_LONGEST_BYTES = 3_500
"""So that what a root shows can be named from anywhere (`PATH_MAX` is 4,096)."""

_LATEST_S = 1 << 33
_ZEROS = bytes(CHUNK_BYTES)
_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """What was unpacked.

    Attributes:
        digest: SHA-256 of the archive.
        size_bytes: Of the files' content.
        files: How many files, folders and links there are.
        left_out: How many devices, FIFOs and other members that cannot be part of a root.
    """

    digest: str
    size_bytes: int
    files: int
    left_out: int


def unpack(archive: Path, folder: Path, *, pulse: Callable[[], None], limits: ArchiveLimits | None = None) -> Unpacked:
    """Unpack a tar archive, plain or compressed with gzip, xz or zstd, into an empty folder.

    What was unpacked when it fails is left there.

    Raises:
        ConfigError: It is no such archive, is damaged or hostile, or exceeds the limits; the message says which member.
    """
    with told(archive), archive.open("rb") as file:
        whole = HashedFile(file, pulse)
        with decompressed(whole) as content:
            unpacking = _Unpacking(archive, BoundedFile(content, archive, limits or ArchiveLimits()), folder)
            try:
                unpacking.run()
            finally:
                unpacking.close()
        while whole.read(CHUNK_BYTES):
            pass  # what follows the end of an archive is part of its digest
    return Unpacked(
        digest=whole.digest(), size_bytes=unpacking.size_bytes, files=unpacking.files, left_out=unpacking.left_out
    )


class _Unpacking:
    """One archive on its way into one folder."""

    def __init__(self, archive: Path, content: BoundedFile, folder: Path) -> None:
        self._archive = archive
        self._content = content
        self._places = _Places(folder, self._count)
        self.size_bytes = 0
        self.files = 0
        self.left_out = 0

    def close(self) -> None:
        self._places.close()

    def run(self) -> None:
        """Unpack it all."""
        self._content.header_left = HEADER_BYTES
        with tarfile.TarFile(fileobj=self._content, mode="r", encoding="utf-8", errors="surrogateescape") as tar:  # pyright: ignore[reportArgumentType]
            while (member := tar.next()) is not None:
                tar.members.clear()  # it would keep them all # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
                self._content.header_left = None
                try:
                    self._unpack(tar, member)
                except OSError as error:
                    raise self._refused(member, f"cannot be written: {error.strerror}") from error
                self._content.header_left = HEADER_BYTES
        if self._content.last_block.strip(b"\0") or len(self._content.last_block) != BLOCK_BYTES:
            raise ValueError("it ends in the middle, or is damaged there")
        if not self.files:
            raise ValueError("there is nothing in it")

    def _unpack(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        *folders, name = self._parts(member, member.name) or [b""]
        if not name:
            return  # the root itself
        place = self._folder(member, folders)
        if member.isdir():
            if self._clear(member, place, name, for_folder=True):
                os.mkdir(name, dir_fd=place)
                self._count()
            os.chmod(name, member.mode & 0o755 | 0o700, dir_fd=place)
        elif member.isreg():
            self._clear(member, place, name)
            self._count()
            self._write(tar, member, place, name)
        elif member.issym():
            self._check_text(member, member.linkname)
            self._clear(member, place, name)
            self._count()
            os.symlink(os.fsencode(member.linkname), name, dir_fd=place)
        elif member.islnk():
            self._link(member, place, name)
        else:
            self.left_out += 1
            self._count(0)

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo, place: int, name: bytes) -> None:
        if member.size < 0:
            raise self._refused(member, "says that it has a negative size")
        self.size_bytes += member.size
        if self.size_bytes > self._content.limits.size_bytes:
            raise too_large(self._archive, self._content.limits)
        content = tar.extractfile(member)
        if content is None:
            raise ValueError("a file without content")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=place), "wb", buffering=0) as file:
            while chunk := content.read(CHUNK_BYTES):
                if member.issparse() and chunk == _ZEROS[: len(chunk)]:
                    file.seek(len(chunk), os.SEEK_CUR)
                else:
                    file.write(chunk)
            file.truncate(member.size)
            os.fchmod(file.fileno(), member.mode & 0o755 | 0o600)
            os.utime(file.fileno(), (moment := _moment_s(member.mtime), moment))

    def _link(self, member: tarfile.TarInfo, place: int, name: bytes) -> None:
        *folders, other = self._parts(member, member.linkname) or [b""]
        with self._places.other(folders) as source:
            found = None if source is None or not other else _kind_of(other, source)
            if source is None or found not in {stat.S_IFREG, stat.S_IFLNK}:
                raise self._refused(member, f"is a hard link to {_shown(member.linkname)}, which is no file before it")
            if _same(source, other, place, name):
                return
            self._clear(member, place, name)
            self._count()
            os.link(other, name, src_dir_fd=source, dst_dir_fd=place, follow_symlinks=False)

    def _folder(self, member: tarfile.TarInfo, folders: list[bytes]) -> int:
        try:
            return self._places.folder(folders)
        except NotADirectoryError:
            raise self._refused(member, "goes through a link or a file of the same archive") from None

    def _clear(self, member: tarfile.TarInfo, place: int, name: bytes, *, for_folder: bool = False) -> bool:
        """Make room for a member, in place of an earlier one; return False if a folder is wanted and there."""
        kind = _kind_of(name, place)
        if kind == stat.S_IFDIR:
            if for_folder:
                return False
            raise self._refused(member, "was a folder before, and now is something else")
        if kind is not None:
            os.unlink(name, dir_fd=place)
        return True

    def _parts(self, member: tarfile.TarInfo, name: str) -> list[bytes]:
        """Return a path's parts below the root; a leading / is nothing."""
        self._check_text(member, name)
        parts = [os.fsencode(part) for part in name.split("/") if part not in {"", "."}]
        if b".." in parts:
            raise self._refused(member, f"leads out of the root: {_shown(name)}")
        if len(parts) > _DEEPEST:
            raise self._refused(member, f"lies more than {_DEEPEST} folders deep")
        return parts

    def _check_text(self, member: tarfile.TarInfo, text: str) -> None:
        if not text or "\0" in text or len(os.fsencode(text)) > _LONGEST_BYTES:
            raise self._refused(member, f"has a path that is empty, longer than {_LONGEST_BYTES} bytes, or no path")

    def _count(self, more: int = 1) -> None:
        self.files += more
        if self.files + self.left_out > self._content.limits.files:
            raise ConfigError(
                f"has more than {self._content.limits.files:,} files and folders",
                where=str(self._archive),
                hint="take out of it what is not needed, or unpack it yourself and give the folder: --from FOLDER",
            )

    def _refused(self, member: tarfile.TarInfo, why: str) -> ConfigError:
        return ConfigError(
            f"its member {_shown(member.name)} {why}",
            where=str(self._archive),
            hint="pack a root file system as it is (tar -C ROOT -c .), or give the folder: --from FOLDER",
        )


class _Places:
    """The folders below one folder, reached by descriptors; those on the way to the last one stay open."""

    def __init__(self, root: Path, count: Callable[[], None]) -> None:
        self._root = os.open(root, _FOLDER_FLAGS)
        self._count = count
        self._open: list[tuple[bytes, int]] = []

    def close(self) -> None:
        self._close_below(0)
        os.close(self._root)

    def folder(self, path: list[bytes]) -> int:
        """Return a descriptor of a folder, good until the next call; what is missing on the way is made.

        Raises:
            NotADirectoryError: Something on the way is no folder.
        """
        same = 0
        for (name, _), wanted in zip(self._open, path, strict=False):
            if name != wanted:
                break
            same += 1
        self._close_below(same)
        for name in path[same:]:
            above = self._open[-1][1] if self._open else self._root
            if _kind_of(name, above) is None:
                os.mkdir(name, 0o755, dir_fd=above)
                self._count()
            self._open.append((name, os.open(name, _FOLDER_FLAGS, dir_fd=above)))
        return self._open[-1][1] if self._open else self._root

    @contextmanager
    def other(self, path: list[bytes]) -> Generator[int | None]:
        """Yield a descriptor of another folder, None if it is not there."""
        here = os.dup(self._root)
        try:
            for name in path:
                below = os.open(name, _FOLDER_FLAGS, dir_fd=here)
                os.close(here)
                here = below
        except (FileNotFoundError, NotADirectoryError):
            os.close(here)
            here = -1
        try:
            yield None if here < 0 else here
        finally:
            if here >= 0:
                os.close(here)

    def _close_below(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])


def _kind_of(name: bytes, place: int) -> int | None:
    """Return what is at a name in a folder, as `stat.S_IFMT` tells it; None if nothing is."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=place, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None


def _same(source: int, other: bytes, place: int, name: bytes) -> bool:
    """Whether two names are the same file's already."""
    if _kind_of(name, place) is None:
        return False
    ours = os.stat(name, dir_fd=place, follow_symlinks=False)
    return os.path.samestat(os.stat(other, dir_fd=source, follow_symlinks=False), ours)


def _moment_s(mtime: float) -> float:
    return min(max(mtime, 0), _LATEST_S) if math.isfinite(mtime) else 0


def _shown(name: str) -> str:
    """Write a name that may be anything, so that it can be printed."""
    told = repr(name)
    return told if len(told) <= 120 else told[:117] + "…"
