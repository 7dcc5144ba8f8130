"""What is to be written, between a peer and its transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import anyio
from anyio.abc import ByteSendStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from headstart.runtime.contract import JsonObject
from headstart.runtime.json_text import encode_ascii

__all__ = ["MAX_QUEUED_MESSAGES", "LinkClosed", "Outbox", "Outgoing", "PipeOutbox", "QueueOutbox"]

MAX_QUEUED_MESSAGES = 64


class LinkClosed(Exception):
    """The conversation is over; whoever knows the sandbox says why."""


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """A message on its way out; `on_sent` is called once it has been written."""

    message: JsonObject
    on_sent: Callable[[], None] | None = None


class Outbox(Protocol):
    """Where a peer puts what is to be written, in order."""

    async def send(self, item: Outgoing) -> None:
        """Queue a message, waiting for room.

        Raises:
            LinkClosed: Nothing can be written any more.
        """
        ...

    def send_nowait(self, item: Outgoing) -> bool:
        """Queue a message if there is room; return whether there was."""
        ...


class QueueOutbox:
    """An outbox in front of a bounded queue that a writer task empties."""

    def __init__(self, stream: MemoryObjectSendStream[Outgoing]) -> None:
        self._stream = stream

    async def send(self, item: Outgoing) -> None:
        try:
            self._stream.send_nowait(item)
        except anyio.WouldBlock:
            await self._send_when_there_is_room(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkClosed from None

    def close(self) -> None:
        self._stream.close()

    async def _send_when_there_is_room(self, item: Outgoing) -> None:
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkClosed from None

    def send_nowait(self, item: Outgoing) -> bool:
        try:
            self._stream.send_nowait(item)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return False
        return True


@runtime_checkable
class _TakesAtOnce(Protocol):
    def send_nowait(self, item: bytes) -> int:
        """Write what fits now; return how much that was."""
        ...


class PipeOutbox:
    """An outbox in front of a pipe, written to as JSON lines.

    A line goes out at once if the pipe takes it, as a small one into an empty pipe does: no
    task switch between a call and its server. What it does not take (or all, if the stream
    cannot say) waits in a bounded queue for `write_rest`, so that nobody who is cancelled
    leaves half a line behind.
    """

    def __init__(self, pipe: ByteSendStream) -> None:
        self._pipe = pipe
        self._take = pipe.send_nowait if isinstance(pipe, _TakesAtOnce) else _nothing
        send, self._waiting = _queue()
        self._queue = QueueOutbox(send)
        self._behind = False
        """Something is queued or being written; what comes now goes behind it."""
        self._cut = b""
        """What is left of the first message in the queue."""

    async def send(self, item: Outgoing) -> None:
        if self._behind or not self._write_now(item):
            await self._queue.send(item)

    def send_nowait(self, item: Outgoing) -> bool:
        try:
            return (not self._behind and self._write_now(item)) or self._queue.send_nowait(item)
        except LinkClosed:
            return False

    def _write_now(self, item: Outgoing) -> bool:
        """Write a message; False if some of it is left, which then comes first of all that is queued."""
        line = encode_ascii(item.message) + b"\n"
        try:
            taken = self._take(line)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise LinkClosed from None
        if taken == len(line):
            if item.on_sent is not None:
                item.on_sent()
            return True
        self._behind = True
        self._cut = line[taken:]
        return False

    async def write_rest(self) -> None:
        """Write what is queued, until it is closed or the pipe breaks."""
        with self._waiting:  # whoever waits for room learns of the end; the reader tells the rest
            async for item in self._waiting:
                data, self._cut = self._cut or encode_ascii(item.message) + b"\n", b""
                try:
                    await self._pipe.send(data)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    return
                if item.on_sent is not None:
                    item.on_sent()
                self._behind = self._waiting.statistics().current_buffer_used > 0

    def close(self) -> None:
        """Take no more; what is queued is still written."""
        self._queue.close()


def _queue() -> tuple[MemoryObjectSendStream[Outgoing], MemoryObjectReceiveStream[Outgoing]]:
    return anyio.create_memory_object_stream[Outgoing](MAX_QUEUED_MESSAGES)


def _nothing(item: bytes) -> int:  # noqa: ARG001  the shape of `send_nowait`
    return 0
