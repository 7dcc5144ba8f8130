"""What an interpreter says, through pipes that have no end between two pieces of code.

A result arrives in one pipe while output is still in others, and nothing in those marks where a
piece's output ends. But whoever sends a result has written all of the output before, so it is in
the pipe by then: `finish` asks the kernel how much that is, and exactly so much is still read.

Between two pieces nobody reads, but what earlier ones have left running may go on talking, and a
full pipe would hold it up for ever. So a pipe at rest is read all the same: the first MiB of that
is kept and comes first in the next piece's output.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios

import anyio

from headstart.backends.output import Sink

__all__ = ["Pipe", "open_pipes"]

_CHUNK_BYTES = 65_536
_KEPT_BYTES = 1 << 20


class Pipe:
    """The reading end of a pipe, at rest until `begin`. For one reader at a time; closed once.

    Args:
        descriptor: It is owned from now on.
        kept_bytes: How much is kept of what comes while it is at rest.
    """

    def __init__(self, descriptor: int, *, kept_bytes: int = _KEPT_BYTES) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._kept_bytes = kept_bytes
        self._kept = bytearray()
        self._left: int | None = None
        """How many bytes are still to be read; None: no bound."""
        self._reader: asyncio.Future[None] | None = None
        self._watching: asyncio.AbstractEventLoop | None = None
        self.at_end = False
        """Nobody can write to it any more."""
        self.dropped = False
        """More came at rest than is kept."""
        self.rest()

    def rest(self) -> None:
        """Keep what comes, until `begin`."""
        self._left, self.dropped = None, False
        if self._watching is None and not self.at_end:
            self._watching = asyncio.get_running_loop()
            self._watching.add_reader(self._descriptor, self._read_at_rest)

    def begin(self) -> None:
        """Be read from; what came at rest comes first."""
        self._stop_watching()

    def finish(self) -> None:
        """Be read to the end of what is there now, and no further."""
        self._left = 0 if self._descriptor < 0 else _waiting_in(self._descriptor)
        self._wake()

    async def receive(self) -> bytes:
        """Return what comes next, b"" at the end; a pipe that was closed is at its end. Cancelling loses nothing."""
        await anyio.lowlevel.checkpoint()  # who talks without pause must not keep the loop to himself
        while not self._kept:
            if self._left == 0 or self.at_end:
                return b""
            if self._read_now():
                break
            await self._wait()
        data = bytes(self._kept)
        self._kept.clear()
        return data

    async def drain(self, sink: Sink) -> None:
        """Give all that comes to a sink, to the end."""
        while chunk := await self.receive():
            await sink(chunk)

    def look(self) -> None:
        """See whether it is at its end, keeping what is there."""
        self._read_now()

    def close(self) -> None:
        """Close at once; idempotent. Whoever reads sees the end."""
        self._stop_watching()
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            if self._reader is not None:
                self._reader.get_loop().remove_reader(descriptor)
            os.close(descriptor)
        self.at_end = True
        self._wake()

    def _read_now(self) -> bool:
        """Keep what is there, as far as it is to be read; return whether there was anything, if only the end."""
        if self._descriptor < 0:
            return True
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES if self._left is None else min(self._left, _CHUNK_BYTES))
        except BlockingIOError:
            return False
        self.at_end = not chunk
        self._kept += chunk
        if self._left is not None:
            self._left -= len(chunk)
        return True

    def _read_at_rest(self) -> None:
        if not self._read_now():
            return
        if self.at_end:
            self._stop_watching()
        self.dropped = self.dropped or len(self._kept) > self._kept_bytes
        del self._kept[self._kept_bytes :]

    async def _wait(self) -> None:
        """Wait until there is something, or `finish` or `close`."""
        loop = asyncio.get_running_loop()
        self._reader = reader = loop.create_future()
        loop.add_reader(self._descriptor, self._wake)
        try:
            await reader
        finally:
            self._reader = None
            if self._descriptor >= 0:
                loop.remove_reader(self._descriptor)

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.remove_reader(self._descriptor)
            self._watching = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def open_pipes(count: int) -> list[tuple[int, int]]:
    """Make pipes; return the reading and the writing end of each.

    Raises:
        OSError: No descriptors are left; none is leaked.
    """
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(count):
            pipes.append(os.pipe2(os.O_CLOEXEC))  # noqa: PERF401 those that were made must be known
    except OSError:
        for end in (end for pipe in pipes for end in pipe):
            os.close(end)
        raise
    return pipes


def _waiting_in(descriptor: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])
