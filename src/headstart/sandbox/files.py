"""A sandbox's files, as its user has them: what changes something makes another state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from headstart.backends.contract import FileInfo, Files, RunningSandbox
from headstart.errors import BackendError

__all__ = ["SandboxFiles"]

_T = TypeVar("_T")


class SandboxFiles:
    """Implements `Files` for whichever sandbox a handle means at the moment.

    Args:
        current: Returns the sandbox that it means.
        running: Yields it for something that changes it.
    """

    def __init__(
        self,
        current: Callable[[], RunningSandbox],
        running: Callable[[], AbstractAsyncContextManager[RunningSandbox]],
    ) -> None:
        self._current = current
        self._running = running

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """See `Files.read`."""
        return await self._reading(lambda files: files.read(path, limit_bytes=limit_bytes))

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """See `Files.list`."""
        return await self._reading(lambda files: files.list(path))

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        return await self._reading(lambda files: files.stat(path))

    async def _reading(self, read: Callable[[Files], Awaitable[_T]]) -> _T:
        """Read, and again whenever the sandbox was replaced meanwhile."""
        while True:
            sandbox = self._current()
            try:
                return await read(sandbox.files)
            except BackendError:
                if self._current() is sandbox:
                    raise

    async def write(self, path: str, content: bytes | str, *, mode: int | None = None) -> None:
        """See `Files.write`; text is written as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        async with self._running() as sandbox:
            await sandbox.files.write(path, data, mode=mode)

    async def make_folder(self, path: str) -> None:
        """See `Files.make_folder`."""
        async with self._running() as sandbox:
            await sandbox.files.make_folder(path)

    async def rename(self, path: str, to: str) -> None:
        """See `Files.rename`."""
        async with self._running() as sandbox:
            await sandbox.files.rename(path, to)

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        async with self._running() as sandbox:
            await sandbox.files.remove(path)
