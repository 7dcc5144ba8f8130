"""Telling whoever watches what happens to hosted sandboxes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

from headstart.clock import Clock
from headstart.sandbox.hosted.messages import Event, HostedEvent

__all__ = ["Happenings"]

_MOST_UNREAD = 1_000


class Happenings:
    """Tells each that watches of all that happens from then on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: list[Callable[[Event], None]] = []

    def tell(self, event: HostedEvent, sandbox: str, *, about: str = "") -> None:
        """Tell that something has happened."""
        told = Event(event=event, sandbox=sandbox, at_wall_s=self._clock.wall_s(), about=about)
        for listener in tuple(self._listeners):
            listener(told)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[AsyncGenerator[Event]]:
        """Yield what happens from now on. Who does not read a thousand events misses the oldest."""
        send, receive = anyio.create_memory_object_stream[Event](_MOST_UNREAD)

        def note(event: Event) -> None:
            try:
                send.send_nowait(event)
            except anyio.WouldBlock:
                receive.receive_nowait()
                send.send_nowait(event)

        async def events() -> AsyncGenerator[Event]:
            async for event in receive:
                yield event

        self._listeners.append(note)
        try:
            with send, receive:
                yield events()
        finally:
            self._listeners.remove(note)
