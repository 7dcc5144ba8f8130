r"""An MCP conversation over the stdio of a sandbox's server: JSON lines over pipes.

Three tasks per link: one reads stdout, one drains stderr, one writes to stdin what the pipe
did not take at once. That has its own task because a write that is cancelled half-way would
leave half a line in the pipe; a caller may be cancelled at any time, the writer never is
before the link ends.

Lines are cut at `\n` only, and each chunk is searched once: an answer of 50 MB costs one
join, not one copy per chunk. What is no JSON-RPC message (servers print banners on stdout)
is counted and the last lines are kept for messages; the first one is told at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteReceiveStream

from headstart.backends.contract import ByteStreams
from headstart.clock import Clock
from headstart.ids import ResourceId
from headstart.runtime.json_text import decode
from headstart.runtime.outbox import PipeOutbox
from headstart.runtime.rpc import Owner, Peer

__all__ = ["LineCutter", "MessageTooLong", "StdioLink", "Tail", "open_stdio_link"]

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 256 * 1024


class MessageTooLong(Exception):
    """A line is longer than its limit."""


class LineCutter:
    r"""Cuts a byte stream into lines without copying any byte twice.

    >>> cutter = LineCutter(max_bytes=1_000)
    >>> list(cutter.cut(b'one\ntw')), list(cutter.cut(b'o\n'))
    ([b'one'], [b'two'])
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    def cut(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, without their newline.

        Raises:
            MessageTooLong: An unfinished line has grown past the limit.
        """
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            line = chunk[start:end]
            if self._begun:
                line = b"".join((*self._begun, line))
                self._forget()
            yield line
            start = end + 1
        if start < len(chunk):
            self._begun.append(chunk[start:] if start else chunk)
            self._begun_bytes += len(chunk) - start
        if self._begun_bytes > self._max_bytes:
            self._forget()
            raise MessageTooLong

    def rest(self) -> bytes:
        """Return the line that was begun and never ended."""
        line = b"".join(self._begun)
        self._forget()
        return line

    def _forget(self) -> None:
        self._begun = []
        self._begun_bytes = 0


class Tail:
    """The last lines of something that is otherwise thrown away, for messages.

    Attributes:
        lines: How many there were in all.
    """

    def __init__(self, *, keep: int = 20, width: int = 500) -> None:
        self._kept: deque[str] = deque(maxlen=keep)
        self._width = width
        self.lines = 0

    def add(self, line: bytes) -> None:
        text = line[: self._width * 4].decode("utf-8", "replace").rstrip()
        if text:
            self.lines += 1
            self._kept.append(text if len(text) <= self._width else text[: self._width] + "…")

    def last(self, count: int = 20) -> tuple[str, ...]:
        return tuple(self._kept)[-count:]


class StdioLink:
    """A live conversation with one server process.

    Attributes:
        peer: Where requests go.
        stdout_junk: What the server printed on stdout that is no message.
        stderr: What it wrote to stderr.
        failure: Why the link ended, when it was not the server's end of file.
    """

    def __init__(self, *, streams: ByteStreams, peer: Peer, on_junk: Callable[[str], None] | None) -> None:
        self._streams = streams
        self._on_junk = on_junk
        self.peer = peer
        self.stdout_junk = Tail()
        self.stderr = Tail()
        self.failure: str | None = None
        self.ended = anyio.Event()
        """Set once the server can no longer answer."""

    async def read_stdout(self) -> None:
        cutter = LineCutter(max_bytes=MAX_MESSAGE_BYTES)
        try:
            async for chunk in _chunks(self._streams.stdout):
                for line in cutter.cut(chunk):
                    self._take(line)
        except MessageTooLong:
            self.failure = f"it wrote a message of more than {MAX_MESSAGE_BYTES // 1024**2} MiB"
        else:
            self.stdout_junk.add(cutter.rest())
        finally:
            self.peer.close()
            self.ended.set()

    async def drain_stderr(self) -> None:
        cutter = LineCutter(max_bytes=64 * 1024)
        async for chunk in _chunks(self._streams.stderr):
            try:
                for line in cutter.cut(chunk):
                    self.stderr.add(line)
            except MessageTooLong:
                self.stderr.add(b"(a line of more than 64 KiB)")
        self.stderr.add(cutter.rest())

    def _take(self, line: bytes) -> None:
        if not line or line.isspace():
            return
        try:
            message: object = decode(line)
        except ValueError:
            self._take_junk(line)
        else:
            if not self.peer.receive(message, size_bytes=len(line)):
                self._take_junk(line)

    def _take_junk(self, line: bytes) -> None:
        self.stdout_junk.add(line)
        if self.stdout_junk.lines == 1 and self._on_junk is not None:
            self._on_junk(self.stdout_junk.last()[0])


@asynccontextmanager
async def open_stdio_link(
    streams: ByteStreams,
    *,
    server: ResourceId,
    owner: Owner,
    clock: Clock,
    on_junk: Callable[[str], None] | None = None,
) -> AsyncGenerator[StdioLink]:
    """Talk to the server behind `streams` while the context is open.

    `on_junk` is given the first line on stdout that is no message.
    Leaving it ends the conversation and what waits for it (`LinkClosed`); the process is
    left to whoever attached it.
    """
    outbox = PipeOutbox(streams.stdin)
    async with anyio.create_task_group() as tasks:
        peer = Peer(server=server, outbox=outbox, owner=owner, clock=clock, tasks=tasks)
        link = StdioLink(streams=streams, peer=peer, on_junk=on_junk)
        tasks.start_soon(link.read_stdout, name="mcp stdout")
        tasks.start_soon(outbox.write_rest, name="mcp stdin")
        tasks.start_soon(link.drain_stderr, name="mcp stderr")
        try:
            yield link
        finally:
            peer.close()
            outbox.close()
            tasks.cancel_scope.cancel()


async def _chunks(stream: ByteReceiveStream) -> AsyncIterator[bytes]:
    while True:
        try:
            yield await stream.receive(CHUNK_BYTES)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
