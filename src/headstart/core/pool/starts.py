"""Who starts next: slots and memory, claimed before configured before predicted.

Starting a server is CPU-bound, so only `starts_at_once` run together. What is *waited
for or configured* counts against the slots alone; what is *predicted* is admitted only
if, with everything that is starting, a slot is still free, and only while nothing that
is waited for stands in the queue. So a claimed start never waits behind a predicted one:
it takes the slot that the prediction had, and the prediction, which runs at background
priority, goes on with the CPU that is left over. (Rejected: stopping the prediction to
make way. Its work would be thrown away exactly when it is probably needed next.)

A start that takes far longer than such starts do is not waiting for the CPU: its server
downloads, or hangs. It goes on, but holds no slot any more, so that servers which never
answer keep nobody else waiting.

Memory is charged when a start is admitted and given back when the sandbox has stopped,
so the sum of what was admitted never exceeds the budget. A start that lacks memory asks
for victims (`core/pool/eviction.py`) and stays first in line while they stop; if nothing may
go for it, others may pass that fit without eviction.

What hosted sandboxes use is their users' own and comes out of the same budget, for what is
predicted or configured. A call that waits does not fail for it, and nobody's state goes:
such a start sees the budget without them.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from headstart.core.events import Priority
from headstart.core.pool.eviction import victims_for
from headstart.core.pool.inventory import Inventory
from headstart.core.pool.policy import PoolPolicy
from headstart.core.pool.sandboxes import Sandbox

__all__ = ["Room", "StartQueue"]

_OVERLONG: Final = 4.0
"""A start that takes so many times what is usual holds its slot no longer."""


class Room(Enum):
    """Whether a start finds memory."""

    FITS = auto()
    FREEING = auto()
    """Enough is stopping."""
    FULL = auto()
    """Nothing may go for it."""


class StartQueue:
    """Admits queued sandboxes; acts through the callables it is given.

    Args:
        inventory: All sandboxes.
        policy: Its slots and memory.
        usual_start_s: What a start of this sandbox's kind takes, as far as is known.
        may_start: Whether a sandbox's server is not backing off.
        evict: Stops a victim.
        start: Starts an admitted sandbox.
    """

    def __init__(
        self,
        inventory: Inventory,
        policy: PoolPolicy,
        *,
        usual_start_s: Callable[[Sandbox], float],
        may_start: Callable[[Sandbox], bool],
        evict: Callable[[Sandbox], None],
        start: Callable[[Sandbox], None],
    ) -> None:
        self._inventory = inventory
        self._slots = policy.starts_at_once
        self._memory_bytes = policy.memory_bytes
        self._slot_patience_s = policy.slot_patience_s
        self._usual_start_s = usual_start_s
        self._may_start = may_start
        self._evict = evict
        self._start = start

    def pump(self, now_s: float) -> list[Sandbox]:
        """Admit what can start now; return the waited-for ones for which no memory can be freed."""
        blocked = self._pump_foreground(now_s)
        if not blocked and not self._inventory.queued(Priority.CLAIMED):
            self._pump_predicted(now_s)
        return blocked

    def holding_slots(self, now_s: float) -> list[Sandbox]:
        """Return what is being started and has not yet taken too long to be waiting for the CPU."""
        return [each for each in self._inventory.starting() if self._gives_up_slot_s(each) > now_s]

    def next_slot_s(self, now_s: float) -> float | None:
        """Return when a start that goes on will give up its slot, if anything waits for one."""
        if not self._inventory.all_queued():
            return None
        return min(map(self._gives_up_slot_s, self.holding_slots(now_s)), default=None)

    def room_for(self, newcomer: Sandbox, now_s: float) -> Room:
        """Whether there is memory, or could be, without doing anything about it."""
        lacking = self._lacking_bytes(newcomer)
        if lacking <= 0:
            return Room.FITS
        lacking -= self._inventory.stopping_bytes
        if lacking <= 0 or victims_for(newcomer, self._inventory, need_bytes=lacking, now_s=now_s):
            return Room.FREEING
        return Room.FULL

    def _pump_foreground(self, now_s: float) -> list[Sandbox]:
        blocked: list[Sandbox] = []
        for priority in (Priority.CLAIMED, Priority.CONFIGURED):
            if self._foreground_starts(now_s) >= self._slots:
                return blocked  # before the queue, which may be long, is looked at
            for sandbox in self._inventory.queue(priority):
                if self._foreground_starts(now_s) >= self._slots:
                    return blocked
                if not self._may_start(sandbox):
                    continue
                room = self._make_room(sandbox, now_s, evicting=not blocked)
                if room is Room.FITS:
                    self._start(sandbox)
                elif room is Room.FREEING:
                    return blocked
                elif priority is Priority.CLAIMED:
                    blocked.append(sandbox)
        return blocked

    def _pump_predicted(self, now_s: float) -> None:
        if len(self.holding_slots(now_s)) >= self._slots:
            return
        queue = self._inventory.queue(Priority.PREDICTED)
        queue.sort(key=lambda each: -(each.stake.worth_s if each.stake else 0.0))
        for sandbox in queue:
            if len(self.holding_slots(now_s)) >= self._slots:
                return
            if not self._may_start(sandbox):
                continue
            if self._make_room(sandbox, now_s, evicting=True) is Room.FITS:
                self._start(sandbox)

    def _foreground_starts(self, now_s: float) -> int:
        return sum(each.priority is not Priority.PREDICTED for each in self.holding_slots(now_s))

    def _gives_up_slot_s(self, sandbox: Sandbox) -> float:
        began_s = sandbox.created_s if sandbox.started_s is None else sandbox.started_s
        return began_s + max(self._slot_patience_s, _OVERLONG * self._usual_start_s(sandbox))

    def _make_room(self, newcomer: Sandbox, now_s: float, *, evicting: bool) -> Room:
        lacking = self._lacking_bytes(newcomer)
        if lacking <= 0:
            return Room.FITS
        lacking -= self._inventory.stopping_bytes
        if lacking <= 0:
            return Room.FREEING
        victims = victims_for(newcomer, self._inventory, need_bytes=lacking, now_s=now_s) if evicting else []
        for victim in victims:
            self._evict(victim)
        return Room.FREEING if victims else Room.FULL

    def _lacking_bytes(self, newcomer: Sandbox) -> int:
        free_bytes = self._memory_bytes - self._inventory.used_bytes
        if newcomer.priority is not Priority.CLAIMED:
            free_bytes -= self._inventory.hosted_bytes
        return newcomer.memory_bytes - free_bytes
