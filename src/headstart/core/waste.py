"""How much may be wasted on bets, whatever the rule says they are worth.

Two limits. *Memory*: what unclaimed bets hold at any moment. *CPU*: a token bucket on
event time; it fills by `cpu_share` CPU-seconds per second up to `cpu_burst_s`, and what
is wasted leaves it.

An admitted bet reserves what it would waste. When it is claimed the reservation returns;
when it is missed, what was really wasted is spent. A reservation is refused if with it the
reservations of all open bets would exceed what the bucket holds, or their memory its limit.

A reservation is a limit: a sandbox that nobody has claimed uses no more CPU than was reserved
for it. It asks for more (`revise`) before it gets there, and stands still if there is none.
From this follows the promise. At every moment b, for every a < b::

    wasted CPU-seconds in [a, b] + reserved at b  ≤  cpu_burst_s + cpu_share · (b - a)

Whoever holds sandboxes to their limits may look too late. What was used beyond the reservation
is an *overrun*, and a debt: the bucket goes negative, and nothing that may waste CPU is
admitted, or allowed more, until time has paid it off. The left side can be more by the
overruns since the last admission, and by no others.

Rejected: counting only what *was* wasted (a burst of bets passes before the first miss).
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.core.bets import BetId
from headstart.core.policy import Refusal

__all__ = ["WasteBudget", "WasteLimits", "WasteStatistics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteLimits:
    """The bounds.

    Attributes:
        memory_bytes: What unclaimed bets may hold together.
        cpu_share: CPU-seconds that may be wasted per second, on average.
        cpu_burst_s: CPU-seconds that may be wasted at once after a quiet time.
    """

    memory_bytes: int = 1_500_000_000
    cpu_share: float = 0.5
    cpu_burst_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WasteStatistics:
    """Where the budget stands; CPU in CPU-seconds, memory in bytes."""

    open_bets: int
    reserved_memory_bytes: int
    reserved_cpu_s: float
    available_cpu_s: float
    wasted_cpu_s: float


@dataclass(slots=True, kw_only=True)
class _Reservation:
    memory_bytes: int
    cpu_s: float


class WasteBudget:
    """Reserve on admission, settle on hit or miss.

    >>> budget = WasteBudget(WasteLimits(memory_bytes=100, cpu_share=0.5, cpu_burst_s=1.0))
    >>> budget.reserve(BetId("a"), at_s=0.0, memory_bytes=60, cpu_s=0.8)
    >>> budget.reserve(BetId("b"), at_s=0.0, memory_bytes=60, cpu_s=0.1)
    <Refusal.WASTE_MEMORY: 'unclaimed bets hold all the memory they may'>
    >>> budget.reserve(BetId("c"), at_s=0.0, memory_bytes=10, cpu_s=0.8)
    <Refusal.WASTE_CPU: 'too much CPU was wasted lately'>
    """

    def __init__(self, limits: WasteLimits | None = None) -> None:
        self._limits = limits or WasteLimits()
        self._open: dict[BetId, _Reservation] = {}
        self._memory_bytes = 0
        self._reserved_cpu_s = 0.0
        self._level_cpu_s = self._limits.cpu_burst_s
        self._level_at_s: float | None = None
        self._wasted_cpu_s = 0.0

    def reserve(self, bet: BetId, *, at_s: float, memory_bytes: int, cpu_s: float) -> Refusal | None:
        """Set aside what the bet would waste, or say which limit forbids it.

        Raises:
            ValueError: The bet is open already, or an amount is negative.
        """
        if bet in self._open:
            raise ValueError(f"bet {bet} already has a reservation")
        if memory_bytes < 0 or not cpu_s >= 0.0:
            raise ValueError(f"bet {bet} reserves a negative amount: {memory_bytes} bytes, {cpu_s} CPU-seconds")
        refusal = self._refusal(at_s=at_s, memory_bytes=memory_bytes, cpu_s=cpu_s)
        if refusal is None:
            self._open[bet] = _Reservation(memory_bytes=memory_bytes, cpu_s=cpu_s)
            self._recount()
        return refusal

    def revise(
        self, bet: BetId, *, at_s: float, memory_bytes: int, spent_cpu_s: float, ahead_cpu_s: float
    ) -> float | Refusal:
        """Replace an open bet's reservation by what was measured and what it is going to use.

        What it has spent is reserved, whatever it is; what is ahead of it, as far as there is any.

        Returns:
            The CPU-seconds that are reserved now; or that its memory does not fit: it should be stopped, and until
            then the old reservation stands.

        Raises:
            KeyError: No such open bet.
        """
        held = self._open[bet]
        more_bytes = max(0, memory_bytes - held.memory_bytes)
        refusal = self._refusal(at_s=at_s, memory_bytes=more_bytes, cpu_s=0.0)
        if refusal is not None:
            return refusal
        room_cpu_s = self._level_cpu_s - (self._reserved_cpu_s - held.cpu_s)
        cpu_s = max(spent_cpu_s, min(spent_cpu_s + ahead_cpu_s, room_cpu_s))
        self._open[bet] = _Reservation(memory_bytes=memory_bytes, cpu_s=cpu_s)
        self._recount()
        return cpu_s

    def settle_hit(self, bet: BetId) -> None:
        """The bet was claimed: nothing was wasted. Unknown bets are ignored (they were never reserved)."""
        if self._open.pop(bet, None) is not None:
            self._recount()

    def settle_miss(self, bet: BetId, *, at_s: float, cpu_s: float) -> None:
        """The bet came to nothing and `cpu_s` went with it (also if it was never reserved)."""
        self._open.pop(bet, None)
        self._recount()
        self._refill(at_s)
        self._level_cpu_s -= cpu_s
        self._wasted_cpu_s += cpu_s

    def holds(self, bet: BetId) -> bool:
        """Whether the bet is open."""
        return bet in self._open

    def statistics(self, *, at_s: float) -> WasteStatistics:
        self._refill(at_s)
        return WasteStatistics(
            open_bets=len(self._open),
            reserved_memory_bytes=self._memory_bytes,
            reserved_cpu_s=self._reserved_cpu_s,
            available_cpu_s=self._level_cpu_s - self._reserved_cpu_s,
            wasted_cpu_s=self._wasted_cpu_s,
        )

    def _refusal(self, *, at_s: float, memory_bytes: int, cpu_s: float) -> Refusal | None:
        self._refill(at_s)
        if memory_bytes and self._memory_bytes + memory_bytes > self._limits.memory_bytes:
            return Refusal.WASTE_MEMORY
        if cpu_s and self._reserved_cpu_s + cpu_s > self._level_cpu_s:
            return Refusal.WASTE_CPU
        return None

    def _refill(self, at_s: float) -> None:
        """Let time pass; time that goes backwards (a late event) fills nothing."""
        if self._level_at_s is None or at_s <= self._level_at_s:
            self._level_at_s = at_s if self._level_at_s is None else self._level_at_s
            return
        gained = (at_s - self._level_at_s) * self._limits.cpu_share
        self._level_cpu_s = min(self._limits.cpu_burst_s, self._level_cpu_s + gained)
        self._level_at_s = at_s

    def _recount(self) -> None:
        """Sum afresh: sums kept by adding and subtracting drift, and open bets are few."""
        self._memory_bytes = sum(held.memory_bytes for held in self._open.values())
        self._reserved_cpu_s = sum(held.cpu_s for held in self._open.values())
