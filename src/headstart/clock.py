"""The one place that reads clocks.

`core/` never reads a clock: every event carries the time at which it happened. The
shell reads it here, through an object, so that tests own time.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Where the shell reads time from."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps; only differences mean something."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch, for what people read and what outlives a restart."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_s(self) -> float:
        return time.time()


class ManualClock:
    """A clock that only moves when told to.

    >>> clock = ManualClock()
    >>> clock.advance(1.5)
    >>> clock.monotonic_s()
    1.5
    """

    def __init__(self, *, monotonic_s: float = 0.0, wall_s: float = 1_800_000_000.0) -> None:
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s

    def advance(self, seconds: float) -> None:
        self._monotonic_s += seconds
        self._wall_s += seconds

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_s(self) -> float:
        return self._wall_s
