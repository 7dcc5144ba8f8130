"""A sandbox's files, through descriptors that its init opens and hands out.

The init resolves paths, inside, as the sandbox's user; what it hands out is looked at before
it is used, because an init that was taken over may hand out anything. Content is read and
written by worker threads.

Writing begins with a file that nobody asked for. So that none is left behind, its making and
placing are not cut short by cancelling; an init that does not answer is waited for a bounded time.
"""

from __future__ import annotations

import errno
import logging
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from headstart.backends.contract import FileInfo, FileKind
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.guest import syscalls
from headstart.errors import BackendError

__all__ = ["SpawnedFiles"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_LONGEST_PATH = 4096
_LARGEST_ERRNO = 4095
"""The kernel's own bounds (`PATH_MAX`, `MAX_ERRNO`)."""
_ANSWER_TIMEOUT_S = 10.0
_LAST_ACT_S = 3.0
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.FOLDER, stat.S_IFLNK: FileKind.LINK}

_MADE_UP = frozenset(
    {syscalls.PROC_SUPER_MAGIC, syscalls.SYSFS_MAGIC, syscalls.CGROUP_SUPER_MAGIC, syscalls.CGROUP2_SUPER_MAGIC}
)

_T = TypeVar("_T")
_Answer = tuple[dict[str, Any], list[int]]


class SpawnedFiles:
    """Implements `Files` over a `Channel`; relative paths begin at `home`."""

    def __init__(self, channel: Channel, *, home: str) -> None:
        self._channel = channel
        self._home = home

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """See `Files.read`."""
        async with self._opened("open", path) as (descriptor, _):
            return await _in_thread(path, lambda: _read(descriptor, limit_bytes))

    async def write(self, path: str, content: bytes) -> None:
        """See `Files.write`."""
        async with self._created(path) as (descriptor, place):
            try:
                await _in_thread(path, lambda: _write(descriptor, content))
                _close_all(await self._ask_to_the_end("place", path, **place))
            except BaseException:
                await self._forget(place["temporary"])
                raise

    async def _forget(self, temporary: str) -> None:
        with anyio.move_on_after(_LAST_ACT_S, shield=True) as scope:
            try:
                await self._do("remove", temporary)
            except FileNotFoundError:
                pass  # it had been put in its place
            except BackendError:
                pass  # it went with its sandbox
            except OSError as error:
                _log.warning("an unfinished file stays in a sandbox: %s", error)
        if scope.cancelled_caught:
            _log.warning("an unfinished file may stay in a sandbox that does not answer: %r", temporary)

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """See `Files.list`."""
        folder = self._shown(path)
        async with self._opened("open", path) as (descriptor, _):
            return await _in_thread(path, lambda: _list(descriptor, folder))

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        async with self._opened("look", path) as (descriptor, _):
            return _info(self._shown(path), await _in_thread(path, lambda: os.fstat(descriptor)))

    async def make_folder(self, path: str) -> None:
        """See `Files.make_folder`."""
        await self._do("make-folder", path)

    async def rename(self, path: str, to: str) -> None:
        """See `Files.rename`."""
        await self._do("rename", path, to=self._full(to))

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        await self._do("remove", path)

    def _full(self, path: str) -> str:
        full = posixpath.join(self._home, "" if path == "." else path).rstrip("/") or "/"
        if len(full) >= _LONGEST_PATH:  # before it is too long for a message as well
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
        return full

    def _shown(self, path: str) -> PurePosixPath:
        return PurePosixPath(self._home, path)

    async def _do(self, operation: str, path: str, **details: Any) -> None:
        _close_all(await self._ask(operation, path, **details))

    @asynccontextmanager
    async def _opened(self, operation: str, path: str) -> AsyncGenerator[tuple[int, dict[str, Any]]]:
        with _closing(await self._ask(operation, path)) as (told, descriptors):
            yield _one_of(descriptors, path), told

    @asynccontextmanager
    async def _created(self, path: str) -> AsyncGenerator[tuple[int, dict[str, Any]]]:
        """Yield a new file beside `path`, and what `place` is to be told about it."""
        with _closing(await self._ask_to_the_end("create", path)) as (told, descriptors):
            yield _one_of(descriptors, path), _place_in(told)

    async def _ask_to_the_end(self, operation: str, path: str, **details: Any) -> _Answer:
        """Ask for what has to be known to be done or not: cancelling has no effect meanwhile."""
        with anyio.move_on_after(_ANSWER_TIMEOUT_S, shield=True):
            return await self._ask(operation, path, **details)
        raise BackendError(f"the sandbox did not answer about {path!r} within {_ANSWER_TIMEOUT_S:.0f} s")

    async def _ask(self, operation: str, path: str, **details: Any) -> _Answer:
        answer = await self._channel.ask(operation, path=self._full(path), **details)
        match answer[0]:
            case {"errno": int() as number} if 0 < number <= _LARGEST_ERRNO:
                _close_all(answer)
                raise OSError(number, os.strerror(number), path)
            case {"errno": _}:
                _close_all(answer)
                raise BackendError(f"the sandbox failed to {operation} {path!r} for no reason that there is")
            case _:
                return answer


@contextmanager
def _closing(answer: _Answer) -> Generator[_Answer]:
    try:
        yield answer
    finally:
        _close_all(answer)


def _close_all(answer: _Answer) -> None:
    for descriptor in answer[1]:
        os.close(descriptor)


def _one_of(descriptors: Sequence[int], path: str) -> int:
    if not descriptors:
        raise BackendError(f"the sandbox opened {path!r} and handed nothing out")
    return descriptors[0]


def _place_in(told: dict[str, Any]) -> dict[str, Any]:
    match told:
        case {"temporary": str() as temporary, "target": str() as target, "mode": int() as mode}:
            return {"temporary": temporary, "target": target, "mode": mode}
        case _:
            raise BackendError("the sandbox made a file and does not say where")


async def _in_thread(path: str, work: Callable[[], _T]) -> _T:
    """Do it in a worker thread, which looks itself whether it is cancelled; an `OSError` is told with the path inside."""
    try:
        return await anyio.to_thread.run_sync(work)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _read(descriptor: int, limit_bytes: int) -> bytes:
    facts = _regular(descriptor)
    if facts.st_size > limit_bytes:
        raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, and limit_bytes is {limit_bytes}")
    content = bytearray()
    while chunk := os.read(descriptor, min(_CHUNK_BYTES, limit_bytes + 1 - len(content))):
        anyio.from_thread.check_cancelled()
        content += chunk
        if len(content) > limit_bytes:  # it grows, or its size is not told (/proc)
            raise OSError(errno.EFBIG, f"it has more bytes than limit_bytes, {limit_bytes}")
    return bytes(content)


def _write(descriptor: int, content: bytes) -> None:
    _regular(descriptor)
    rest = memoryview(content)
    while rest:
        anyio.from_thread.check_cancelled()
        rest = rest[os.write(descriptor, rest[:_CHUNK_BYTES]) :]


def _regular(descriptor: int) -> os.stat_result:
    """Return the facts of a file that holds content.

    Reading a device, FIFO or socket might never end. What the kernel makes up is refused as
    well: some of it looks at who reads or writes, and that is not the sandbox's user here.
    """
    facts = os.fstat(descriptor)
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(facts.st_mode) or syscalls.filesystem_of(descriptor) in _MADE_UP:
        raise OSError(
            errno.EINVAL, "it is no file with content but the kernel's (/proc, a device, FIFO or socket): use a command"
        )
    return facts


def _list(descriptor: int, folder: PurePosixPath) -> list[FileInfo]:
    found: list[FileInfo] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            try:
                found.append(_info(folder / entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue  # it went meanwhile
    return sorted(found, key=lambda info: info.name)


def _info(path: PurePosixPath, facts: os.stat_result) -> FileInfo:
    return FileInfo(
        name=path.name or "/",
        path=str(path),
        kind=_KINDS.get(stat.S_IFMT(facts.st_mode), FileKind.OTHER),
        size_bytes=facts.st_size,
        mode=stat.S_IMODE(facts.st_mode),
        modified_s=facts.st_mtime,
    )
