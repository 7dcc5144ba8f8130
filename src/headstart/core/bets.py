"""A bet: something that could be done early, and what it may win and cost.

Prewarming, prefetching, keeping a sandbox: one type. Predictors propose bets, the policy
prices them, the broker admits them, the ledger counts what became of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NewType

from headstart.ids import PrincipalId, ResourceId, SessionId

__all__ = ["Bet", "BetId", "BetKind", "PredictorName"]

BetId = NewType("BetId", str)
PredictorName = NewType("PredictorName", str)
"""`keyword`, `tool-name`, `semantic`, `transitions`, `keep-alive`, …"""


class BetKind(Enum):
    """What is done early."""

    PREWARM = "prewarm"
    """Prepare for the current step, from its tokens."""
    PREFETCH = "prefetch"
    """Prepare for a later step, from the history."""
    KEEP = "keep"
    """Keep a sandbox resident that could be stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bet:
    """One proposal, before or after pricing.

    Attributes:
        predictor: Who proposes it, so that its record can be kept.
        session: For whom, or None where that is not known yet (what is prepared then
            stays unleased).
        probability: The predictor's own, in [0, 1]; the policy calibrates it before use.
        hidden_s: Seconds that the agent will not wait if it comes true.
        verify_s: Seconds to check that the prepared thing is the wanted one.
        miss_s: Seconds lost to others (CPU that a needed start had to share) if it does not.
        waste_cpu_s: CPU-seconds thrown away if it does not.
        waste_byte_s: Memory held in vain if it does not, bytes times seconds.
        expires_s: When to give up waiting, on the event clock.
        because: What made the predictor propose it, for people ("keywords: pdf, page").
    """

    kind: BetKind
    predictor: PredictorName
    principal: PrincipalId
    session: SessionId | None
    resource: ResourceId
    probability: float
    hidden_s: float
    expires_s: float
    verify_s: float = 0.0
    miss_s: float = 0.0
    waste_cpu_s: float = 0.0
    waste_byte_s: float = 0.0
    because: str = ""
