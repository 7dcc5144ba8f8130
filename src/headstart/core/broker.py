"""The broker: every event comes in here, every instruction goes out here."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.core.events import Event, Instruction, SetTimer, TimerFired
from headstart.core.pool import Estimates, Pool, PoolPolicy
from headstart.ids import IdSource

__all__ = ["Broker", "BrokerPolicy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicy:
    """All that can be set about deciding.

    Attributes:
        gamma: Distinct keyword hits that make a server a candidate.
        prefetch: `priced` (the bet rule) or `paper` (SpecBox's thresholds).
        waste_price: λ of the bet rule: seconds that one wasted CPU-second is worth.
        waste_cpu_share: Wasted CPU-seconds allowed per second of wall time.
        waste_memory_bytes: Memory that unclaimed bets may hold at any time.
        learn_text: Remember texts that led to calls.
    """

    pool: PoolPolicy = field(default_factory=PoolPolicy)
    gamma: int = 2
    prefetch: str = "priced"
    waste_price: float = 0.2
    waste_cpu_share: float = 0.5
    waste_memory_bytes: int = 1_500_000_000
    learn_text: bool = True


class Broker:
    """Predict, price, admit, execute, settle: a pure function of the events so far.

    Args:
        policy: Its limits.
        ids: Makes the ids of sandboxes; with `SequentialIds` a replay makes the same.
    """

    def __init__(self, policy: BrokerPolicy, ids: IdSource) -> None:
        self._pool = Pool(policy.pool, ids, Estimates())
        self._timer_s: float | None = None

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in this order.

        Raises:
            InvalidTransition: The event contradicts what went before.
        """
        if isinstance(event, TimerFired):
            self._timer_s = None
        out = self._pool.handle(event)
        out.extend(self._timer())
        return out

    def check_invariants(self) -> None:
        """Assert what holds after every event (for tests).

        Raises:
            AssertionError: It does not; the message has the story.
        """
        self._pool.check_invariants()

    def _timer(self) -> list[Instruction]:
        """Ask for the next wake-up if it differs from the one asked for."""
        due_s = self._pool.next_deadline_s()
        if due_s is None or due_s == self._timer_s:
            return []
        self._timer_s = due_s
        return [SetTimer(at_s=due_s)]
