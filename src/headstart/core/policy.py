"""The one rule that prices every bet, and what keeps the rule honest.

A bet is worth taking when::

    p · L_hidden  >  C_verify + (1 - p) · C_miss + λ · C_waste

Every term is in seconds of somebody's waiting. `p` is the *calibrated* probability
(`Calibration`): a predictor's own confidence is an opinion, what became of its earlier
bets is a fact. `L_hidden` is what the agent would be spared, never more than the time
there is to hide it in (`LeadTimes`). `C_waste` is what is expected to be thrown away,
`(1 - p) · (CPU-seconds + byte-seconds / R)`, in CPU-seconds; so a certain bet wastes
nothing, and short notice alone never forbids it. `λ` turns a wasted CPU-second into
seconds of waiting: 0.2 says that five CPU-seconds in vain are as bad as one second of
an agent's time. `R`, the byte-seconds that cost as much as one CPU-second, is nine
gigabyte-seconds: about what public clouds charge for the two.

Price is not the only bound. Estimates can be wrong together (a new server, a change in
what agents do), and then the rule admits too much until calibration has caught up.
`WasteBudget` (core/waste.py) bounds the harm in the meantime.

Rejected: a threshold on p alone (it prefetches cheap servers and ignores dear ones); one
learned weight for everything (nobody can say why a bet was taken).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headstart.core.bets import Bet

__all__ = ["BYTE_SECONDS_PER_CPU_SECOND", "BetRule", "Price", "Refusal"]

BYTE_SECONDS_PER_CPU_SECOND = 9e9
"""R: byte-seconds that are worth one CPU-second."""


class Refusal(Enum):
    """Why a proposed bet was not taken; the ledger counts by these."""

    NOT_WORTH_IT = "not worth it"
    """The rule's left side does not exceed its right side."""
    ALREADY_THERE = "already warm or starting"
    WASTE_MEMORY = "unclaimed bets hold all the memory they may"
    WASTE_CPU = "too much CPU was wasted lately"
    POOL_MEMORY = "the memory budget leaves no room"
    BACKING_OFF = "its starts have been failing"
    NOT_PREDICTIVE = "the pool's mode takes no bets"
    UNKNOWN = "no such server for this session"
    DRAINING = "the service is stopping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A bet's two sides, seconds each.

    Attributes:
        probability: Calibrated, as used.
        gain_s: `p · L_hidden`.
        verify_s: `C_verify`.
        miss_s: `(1 - p) · C_miss`.
        waste_s: `λ · C_waste`.
    """

    probability: float
    gain_s: float
    verify_s: float
    miss_s: float
    waste_s: float

    @property
    def cost_s(self) -> float:
        """The rule's right side."""
        return self.verify_s + self.miss_s + self.waste_s

    @property
    def worth_s(self) -> float:
        """Left side minus right side: the seconds that taking it wins on average."""
        return self.gain_s - self.cost_s

    @property
    def worth_taking(self) -> bool:
        return self.worth_s > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BetRule:
    """The rule with its two exchange rates.

    >>> from headstart.core.bets import Bet, BetKind
    >>> bet = Bet(
    ...     kind=BetKind.PREWARM, predictor="keyword", principal="local", session=None, resource="excel",
    ...     probability=0.5, hidden_s=0.8, waste_cpu_s=0.8, waste_byte_s=1.8e9, expires_s=30.0,
    ... )
    >>> price = BetRule().price(bet)
    >>> round(price.gain_s, 3), round(price.waste_s, 3), price.worth_taking
    (0.4, 0.1, True)

    Attributes:
        waste_price: λ, seconds of waiting that one wasted CPU-second is worth.
        byte_s_per_cpu_s: R, byte-seconds that are worth one CPU-second.
    """

    waste_price: float = 0.2
    byte_s_per_cpu_s: float = BYTE_SECONDS_PER_CPU_SECOND

    def price(self, bet: Bet, *, probability: float | None = None) -> Price:
        """Price a bet at a calibrated probability (by default its own)."""
        p = min(1.0, max(0.0, bet.probability if probability is None else probability))
        wasted_cpu_s = bet.waste_cpu_s + bet.waste_byte_s / self.byte_s_per_cpu_s
        return Price(
            probability=p,
            gain_s=p * bet.hidden_s,
            verify_s=bet.verify_s,
            miss_s=(1.0 - p) * bet.miss_s,
            waste_s=(1.0 - p) * self.waste_price * wasted_cpu_s,
        )
