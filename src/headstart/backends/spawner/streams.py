"""Raw pipes as byte streams, and making them."""

from __future__ import annotations

import os
from dataclasses import dataclass

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
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
            anyio.notify_closing(descriptor)
            os.close(descriptor)

    async def aclose(self) -> None:
        self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise ClosedResourceError
        return self._descriptor


class PipeReceiveStream(_Pipe, ByteReceiveStream):
    """The reading end; cancelling `receive` loses nothing."""

    async def receive(self, max_bytes: int = _CHUNK_BYTES) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = os.read(self._open_descriptor(), max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._descriptor)
                continue
            if not data:
                raise EndOfStream
            return data


class PipeSendStream(_Pipe, ByteSendStream):
    """The writing end; cancelling `send` may leave a part of the item written."""

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()  # no turn of the loop: a pipe with room takes it now
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[os.write(self._open_descriptor(), rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._descriptor)
            except BrokenPipeError as error:
                raise BrokenResourceError from error


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
