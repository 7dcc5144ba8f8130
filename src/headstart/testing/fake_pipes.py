"""Pipes in memory that behave like the kernel's: bytes, a bounded buffer, EOF, EPIPE."""

from __future__ import annotations

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

__all__ = ["FakePipe"]

PIPE_BYTES = 65_536


class FakePipe:
    """One direction. Writers wait while the buffer is full, readers while it is empty.

    Messages keep no borders: what was written in one piece may be read in several.
    Closing the writing end lets the reader finish what is buffered; closing the reading
    end breaks the writer at once, as SIGPIPE would.
    """

    def __init__(self, *, capacity_bytes: int = PIPE_BYTES) -> None:
        self._buffer = bytearray()
        self._capacity_bytes = capacity_bytes
        self._changed = anyio.Event()
        self._reader_stands = self._writer_stands = False
        self.write_closed = False
        self.read_closed = False
        self.writer: ByteSendStream = _Writer(self)
        self.reader: ByteReceiveStream = _Reader(self)

    def close(self) -> None:
        """Close both ends, as a process that dies does."""
        self.write_closed = self.read_closed = True
        self._wake()

    def close_writer(self) -> None:
        """No more bytes will come."""
        self.write_closed = True
        self._wake()

    def close_reader(self) -> None:
        """Nobody will read any more."""
        self.read_closed = True
        self._wake()

    def hold_reader(self, *, still: bool) -> None:
        """Have who reads stand still, or go on."""
        self._reader_stands = still
        self._wake()

    def hold_writer(self, *, still: bool) -> None:
        """Have who writes stand still, or go on."""
        self._writer_stands = still
        self._wake()

    async def write(self, data: bytes) -> None:
        """Put all of `data` in, waiting for room. Cancelled: some of it may be in."""
        view = memoryview(data)
        while True:
            while self._writer_stands and not self.write_closed:
                await self._changed.wait()
            if self.write_closed:
                raise anyio.ClosedResourceError
            if self.read_closed:
                raise anyio.BrokenResourceError
            room = self._capacity_bytes - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            self._wake()
            if not view:
                await anyio.lowlevel.checkpoint()
                return
            await self._changed.wait()

    async def read(self, max_bytes: int) -> bytes:
        """Take up to `max_bytes`, waiting for the first. Cancelled: nothing is lost."""
        await anyio.lowlevel.checkpoint()
        while not self._buffer or (self._reader_stands and not self.read_closed):
            if self.read_closed:
                raise anyio.ClosedResourceError
            if self.write_closed and not self._reader_stands:
                raise anyio.EndOfStream
            await self._changed.wait()
        taken = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._wake()
        return taken

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _Writer(ByteSendStream):
    def __init__(self, pipe: FakePipe) -> None:
        self._pipe = pipe

    async def send(self, item: bytes) -> None:
        await self._pipe.write(item)

    async def aclose(self) -> None:
        self._pipe.close_writer()


class _Reader(ByteReceiveStream):
    def __init__(self, pipe: FakePipe) -> None:
        self._pipe = pipe

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        return await self._pipe.read(max_bytes)

    async def aclose(self) -> None:
        self._pipe.close_reader()
