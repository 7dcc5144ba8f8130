"""The one way into the broker: an event is journalled, decided, and its instructions are carried out.

Everything runs on the event loop's thread and nothing here waits, so events are handled one
after the other, in the order in which they were reported. Carrying out an instruction may
report an event of its own; it is handled after the one at hand, never inside it.

An event that nobody waits for (a call has returned: its answer is what counts) need not be
handled before the task that reports it goes on. It takes its place in the order at once and
is handled when the loop is free, or before the next event, whichever comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from headstart.clock import Clock
from headstart.core.events import Event, Instruction, SetTimer, TimerFired

__all__ = ["Decider", "Driver", "EventLog"]

_log = logging.getLogger(__name__)


class Decider(Protocol):
    """What decides: `core.broker.Broker`."""

    def handle(self, event: Event) -> list[Instruction]: ...


class EventLog(Protocol):
    """What remembers events: `Journal`."""

    def append(self, event: Event) -> None: ...


class Driver:
    """Feeds the broker and keeps its timer.

    Attributes:
        handled: Events so far.
        broken: Events that the broker could not handle (our bugs; each is logged with its story).
    """

    def __init__(
        self, *, decider: Decider, journal: EventLog, clock: Clock, execute: Callable[[Instruction], None]
    ) -> None:
        self._decider = decider
        self._journal = journal
        self._clock = clock
        self._execute = execute
        self._waiting: deque[Event] = deque()
        self._busy = False
        self._settling = False
        self._timer_s: float | None = None
        self._timer_changed = anyio.Event()
        self.handled = 0
        self.broken = 0

    def handle(self, event: Event) -> None:
        """Handle an event now, or right after the one at hand; for those whom its decision concerns.

        Raises:
            InvalidTransition: The broker has no row for it. Others' events are still handled.
        """
        self._waiting.append(event)
        failure = self._handle_waiting(event)
        if failure is not None:
            raise failure

    def report(self, event: Event) -> None:
        """Handle an event like `handle`, but never raise: what happened has happened, and its reporter goes on.

        What the broker cannot handle is logged with its story and counted.
        """
        self._waiting.append(event)
        self._handle_waiting(None)

    def handle_soon(self, event: Event) -> None:
        """Handle an event once the task at hand pauses, at the latest before the next event."""
        self._waiting.append(event)
        if not self._settling:
            self._settling = True
            asyncio.get_running_loop().call_soon(self.settle)

    def settle(self) -> None:
        """Handle now what was to be handled soon; what the broker cannot handle is logged and counted."""
        self._settling = False
        self._handle_waiting(None)

    def _handle_waiting(self, asked: Event | None) -> Exception | None:
        """Handle all that waits; return what went wrong with the event that was asked for."""
        if self._busy:
            return None
        self._busy = True
        failure: Exception | None = None
        try:
            while self._waiting:
                one = self._waiting.popleft()
                try:
                    self._handle_one(one)
                except Exception as exc:  # noqa: BLE001 returned, once the others' events are handled
                    self.broken += 1
                    _log.exception("the broker could not handle %s", type(one).__name__)
                    failure = exc if one is asked else failure
        finally:
            self._busy = False
        return failure

    def _handle_one(self, event: Event) -> None:
        self._journal.append(event)
        self.handled += 1
        for instruction in self._decider.handle(event):
            if isinstance(instruction, SetTimer):
                self._timer_s = instruction.at_s
                self._timer_changed.set()
            else:
                self._execute(instruction)

    async def run_timer(self) -> None:
        """Report `TimerFired` whenever the time has come that the broker last asked for."""
        while True:
            self._timer_changed = anyio.Event()
            if self._timer_s is None:
                await self._timer_changed.wait()
                continue
            wait_s = self._timer_s - self._clock.monotonic_s()
            with anyio.move_on_after(max(0.0, wait_s)):
                await self._timer_changed.wait()
                continue
            self._timer_s = None
            self.report(TimerFired(at_s=self._clock.monotonic_s()))
