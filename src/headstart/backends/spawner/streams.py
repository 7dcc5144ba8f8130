"""Raw pipes as byte streams, and making them.

A call to a server is a line into one pipe and a line out of another, so both are on the hot
path. The reading end stays registered with the event loop (anyio's `wait_readable` would
register and forget it for every chunk: six system calls instead of one) and holds at most
one chunk that nobody has taken; with one in hand it does not look at the pipe.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteReceiveStream, ByteSendStream

__all__ = ["PipeReceiveStream", "PipeSendStream", "StdioPipes"]

_CHUNK_BYTES = 65_536


class _Pipe:
    """Our end of a pipe, non-blocking, closed once."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def close(self) -> None:
        """Close at once; idempotent. Whoever waits on it gets `ClosedResourceError`."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with suppress(RuntimeError):  # `NoEventLoopError`, or one that has ended, and who waited with it
                anyio.notify_closing(descriptor)
            os.close(descriptor)

    async def aclose(self) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise ClosedResourceError
        return self._descriptor


class PipeReceiveStream(_Pipe, ByteReceiveStream):
    """The reading end, for one reader at a time; cancelling `receive` loses nothing."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._held: bytes | None = None
        """What was read and not taken yet; b"" is the end."""
        self._reader: asyncio.Future[None] | None = None
        self._watching: asyncio.AbstractEventLoop | None = None

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        while self._held is None:
            await self._more(self._open_descriptor())
        if not self._held:
            raise EndOfStream
        data, rest = self._held[:max_bytes], self._held[max_bytes:]
        self._held = rest or None
        return data

    def close(self) -> None:
        self._stop_watching()
        super().close()
        self._held = None
        self._wake()

    async def _more(self, descriptor: int) -> None:
        """Wait until something is held, or the stream is closed."""
        if self._reader is not None:
            raise BusyResourceError("reading from")
        loop = asyncio.get_running_loop()
        if self._watching is None:
            self._watching = loop
            loop.add_reader(descriptor, self._readable)
        self._reader = loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _readable(self) -> None:
        if self._held is not None:
            self._stop_watching()  # until it is taken: the reader is slower than the writer
            return
        try:
            self._held = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return
        if not self._held:
            self._stop_watching()
        self._wake()

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.remove_reader(self._descriptor)
            self._watching = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class PipeSendStream(_Pipe, ByteSendStream):
    """The writing end; cancelling `send` may leave a part of the item written."""

    def send_nowait(self, item: bytes | memoryview) -> int:
        """Write what the pipe takes at once and return how much that was; 0 if it is full.

        Raises:
            BrokenResourceError: Nobody reads it any more.
            ClosedResourceError: It was closed here.
        """
        try:
            return os.write(self._open_descriptor(), item)
        except BlockingIOError:
            return 0
        except BrokenPipeError as error:
            raise BrokenResourceError from error

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()  # no turn of the loop: a pipe with room takes it now
        rest = memoryview(item)
        while rest:
            taken = self.send_nowait(rest)
            rest = rest[taken:]
            if not taken:
                await anyio.wait_writable(self._descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioPipes:
    """Three pipes: our ends as streams, the command's ends as descriptors to hand over."""

    stdin: PipeSendStream
    stdout: PipeReceiveStream
    stderr: PipeReceiveStream
    theirs: tuple[int, int, int]

    @classmethod
    def open(cls) -> StdioPipes:
        """Make the pipes.

        Raises:
            OSError: No descriptors are left; none is leaked.
        """
        ends: list[int] = []
        try:
            for _ in range(3):
                ends.extend(os.pipe2(os.O_CLOEXEC))
        except OSError:
            for end in ends:
                os.close(end)
            raise
        return cls(
            stdin=PipeSendStream(ends[1]),
            stdout=PipeReceiveStream(ends[2]),
            stderr=PipeReceiveStream(ends[4]),
            theirs=(ends[0], ends[3], ends[5]),
        )

    def hand_over(self) -> None:
        """Close the command's ends here, once they have been sent (or could not be)."""
        for end in self.theirs:
            os.close(end)

    def close(self) -> None:
        self.stdin.close()
        self.stdout.close()
        self.stderr.close()
