"""The broker: every event comes in here, every instruction goes out here."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.core.events import Event, Instruction
from headstart.core.pool import PoolPolicy
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

    pool: PoolPolicy = PoolPolicy()
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
        self._policy = policy
        self._ids = ids

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in this order."""
        raise NotImplementedError(f"{type(event).__name__}: the pool lands next")
