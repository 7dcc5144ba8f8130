"""A sandbox's files, through descriptors that its init opens and hands out.

The init resolves paths, inside, as the sandbox's user; what it hands out is looked at before
it is used, because an init that was taken over may hand out anything. Content is read and
written by worker threads.

Cancelling, anyio's or asyncio's own (`wait_for`), ends the waiting at once and the thread soon.
Writing begins with a file that nobody asked for. So that none is left behind, it is done in a
task of the sandbox's own, which puts it in its place or removes it, whatever becomes of who waits.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import posixpath
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from headstart.backends.contract import FileInfo, FileKind
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.gate import Gate
from headstart.backends.spawner.guest import syscalls
from headstart.errors import BackendError

__all__ = ["SpawnedFiles"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_LONGEST_PATH = 4096
_LARGEST_ERRNO = 4095
"""The kernel's own bounds (`PATH_MAX`, `MAX_ERRNO`)."""
_LONGEST_LISTING_BYTES = 8 << 20
_ENTRY_BYTES = 64
"""A folder is somebody else's work: it may have any number of names, and each is told with its whole path."""
_ANSWER_TIMEOUT_S = 10.0
_LAST_ACT_S = 3.0
_PERMISSIONS = 0o777
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.FOLDER, stat.S_IFLNK: FileKind.LINK}

_MADE_UP = frozenset(
    {syscalls.PROC_SUPER_MAGIC, syscalls.SYSFS_MAGIC, syscalls.CGROUP_SUPER_MAGIC, syscalls.CGROUP2_SUPER_MAGIC}
)

_T = TypeVar("_T")
_Answer = tuple[dict[str, Any], list[int]]
_GoOn = Callable[[], bool]


class SpawnedFiles:
    """Implements `Files` over a `Channel`; relative paths begin at `home`. What the init is asked for passes the `gate`."""

    def __init__(self, channel: Channel, *, home: str, gate: Gate) -> None:
        self._channel = channel
        self._home = home
        self._gate = gate

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """See `Files.read`."""
        async with self._opened("open", path) as (opened, _):
            return await opened.use(path, lambda descriptor, go_on: _read(descriptor, limit_bytes, go_on))

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """See `Files.write`."""
        self._full(path)
        writing = _Writing()
        self._channel.start_soon(lambda: self._write(path, content, mode, writing))
        try:
            await writing.done.wait()
        except BaseException:
            writing.wanted = False
            await _wait_out(writing.done)
            if writing.failure is None and anyio.current_effective_deadline() == -math.inf:
                return  # it was too late to cancel it; whoever cancelled us is heard at the next checkpoint
            raise
        if writing.failure is not None:
            raise writing.failure

    async def _write(self, path: str, content: bytes, mode: int | None, writing: _Writing) -> None:
        def still_wanted(go_on: _GoOn) -> _GoOn:
            return lambda: go_on() and writing.wanted

        try:
            async with self._gate.passing(), self._created(path) as (created, place):
                try:
                    await created.use(path, lambda descriptor, go_on: _write(descriptor, content, still_wanted(go_on)))
                    writing.stop_unless_wanted()
                    wanted = place if mode is None else {**place, "mode": stat.S_IMODE(mode) & _PERMISSIONS}
                    _close_all(await self._ask_in_time("place", path, **wanted))
                except BaseException:
                    await self._forget(place["temporary"])
                    raise
        except Exception as failure:  # noqa: BLE001 told to who waits
            writing.failure = failure
        except BaseException:
            writing.failure = BackendError("the sandbox is gone")
            raise
        finally:
            writing.done.set()

    async def _forget(self, temporary: str) -> None:
        with anyio.move_on_after(_LAST_ACT_S, shield=True) as scope:
            try:
                _close_all(await self._ask("remove", temporary))
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
        async with self._opened("open", path) as (opened, _):
            return await opened.use(path, lambda descriptor, go_on: _list(descriptor, folder, go_on))

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        async with self._opened("look", path) as (opened, _):
            return _info(self._shown(path), await opened.use(path, lambda descriptor, _: os.fstat(descriptor)))

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
        async with self._gate.passing():
            _close_all(await self._ask(operation, path, **details))

    @asynccontextmanager
    async def _opened(self, operation: str, path: str) -> AsyncGenerator[tuple[_Opened, dict[str, Any]]]:
        async with self._gate.passing():
            answer = await self._ask(operation, path)
        with _closing(answer, path) as opened:
            yield opened, answer[0]

    @asynccontextmanager
    async def _created(self, path: str) -> AsyncGenerator[tuple[_Opened, dict[str, Any]]]:
        """Yield a new file beside `path`, and what `place` is to be told about it."""
        answer = await self._ask_in_time("create", path)
        with _closing(answer, path) as opened:
            yield opened, _place_in(answer[0])

    async def _ask_in_time(self, operation: str, path: str, **details: Any) -> _Answer:
        with anyio.move_on_after(_ANSWER_TIMEOUT_S):
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


class _Stopped(Exception):
    """A worker thread has seen that nobody waits for it any more."""


@dataclass
class _Writing:
    """A write that goes on.

    Attributes:
        wanted: Whether somebody waits for it. Worker threads look at it.
        failure: What came of it, once it is `done`.
    """

    wanted: bool = True
    failure: Exception | None = None
    done: anyio.Event = field(default_factory=anyio.Event)

    def stop_unless_wanted(self) -> None:
        if not self.wanted:
            raise _Stopped


class _Opened:
    """A descriptor for worker threads; it is closed when its owner and the thread are done with it.

    A thread that nobody waits for any more may run for a while, and a number that was closed
    under it might be another file's by then.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changing = threading.Lock()
        self._in_use = self._closed = False

    async def use(self, path: str, work: Callable[[int, _GoOn], _T]) -> _T:
        """Do it in a worker thread; an `OSError` is told with the path inside.

        Args:
            path: What is told.
            work: Gets the descriptor and a function that says whether to go on.
        """

        def run() -> _T:
            if not self._begin():
                raise _Stopped
            try:
                return work(self._descriptor, lambda: not self._closed)
            finally:
                self._end()

        try:
            return await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def _begin(self) -> bool:
        with self._changing:
            self._in_use = not self._closed
            return self._in_use

    def _end(self) -> None:
        with self._changing:
            self._in_use = False
            if self._closed:
                os.close(self._descriptor)

    def close(self) -> None:
        """Let go of it, once."""
        with self._changing:
            self._closed = True
            if not self._in_use:
                os.close(self._descriptor)


async def _wait_out(event: anyio.Event) -> None:
    """Wait for what comes soon, whoever cancels us; asyncio's own cancelling does not know of shields."""
    with anyio.CancelScope(shield=True):
        while not event.is_set():
            try:
                await event.wait()
            except asyncio.CancelledError:
                continue  # whoever is cancelled raises what it got first


@contextmanager
def _closing(answer: _Answer, path: str) -> Generator[_Opened]:
    """Yield the descriptor of an answer, and close what came with it at the end."""
    descriptors = answer[1]
    if not descriptors:
        raise BackendError(
            f"nothing was handed out for {path!r}",
            hint="if this process has as many files open as it may (ulimit -n), do less at once",
        )
    opened = _Opened(descriptors[0])
    try:
        yield opened
    finally:
        opened.close()


def _close_all(answer: _Answer) -> None:
    for descriptor in answer[1]:
        os.close(descriptor)


def _place_in(told: dict[str, Any]) -> dict[str, Any]:
    match told:
        case {"temporary": str() as temporary, "target": str() as target, "mode": int() as mode}:
            return {"temporary": temporary, "target": target, "mode": mode}
        case _:
            raise BackendError("the sandbox made a file and does not say where")


def _read(descriptor: int, limit_bytes: int, go_on: _GoOn) -> bytes:
    facts = _regular(descriptor)
    if facts.st_size > limit_bytes:
        raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, and limit_bytes is {limit_bytes}")
    content = bytearray()
    while chunk := os.read(descriptor, min(_CHUNK_BYTES, limit_bytes + 1 - len(content))):
        if not go_on():
            raise _Stopped
        content += chunk
        if len(content) > limit_bytes:  # it grows
            raise OSError(errno.EFBIG, f"it has more bytes than limit_bytes, {limit_bytes}")
    return bytes(content)


def _write(descriptor: int, content: bytes, go_on: _GoOn) -> None:
    _regular(descriptor)
    rest = memoryview(content)
    while rest:
        if not go_on():
            raise _Stopped
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


def _list(descriptor: int, folder: PurePosixPath, go_on: _GoOn) -> list[FileInfo]:
    found: list[FileInfo] = []
    length = 0
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if not go_on():
                raise _Stopped
            length += len(str(folder)) + len(entry.name) + _ENTRY_BYTES
            if length > _LONGEST_LISTING_BYTES:
                raise OSError(errno.EFBIG, "it has more in it than can be listed at once: use a command (ls, find)")
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
