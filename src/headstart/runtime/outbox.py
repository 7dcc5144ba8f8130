"""What is to be written, between a peer and its transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from headstart.runtime.contract import JsonObject

__all__ = ["MAX_QUEUED_MESSAGES", "LinkClosed", "Outbox", "Outgoing", "QueueOutbox"]

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
