"""What the pool tells the broker beside its instructions: how bets ended, what fell idle."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.core.events import StopReason
from headstart.core.pool.sandboxes import Stake
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["PoolFact", "SandboxFellIdle", "StakeLost", "StakeWon"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeWon:
    """The agent's call came for what a bet had prepared.

    Attributes:
        waited_s: What the call still waited for this sandbox.
        hidden_s: What it would have waited without the bet, minus that; never below 0.
    """

    at_s: float
    stake: Stake
    sandbox: SandboxId
    session: SessionId
    call: CallId | None
    waited_s: float
    hidden_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StakeLost:
    """Nobody came.

    Attributes:
        reason: Why the sandbox was stopped; None: it failed.
        void: It ended for a reason that says nothing about the prediction.
        cpu_s: CPU-seconds used in vain.
        byte_s: Memory held in vain, bytes times seconds.
    """

    at_s: float
    stake: Stake
    sandbox: SandboxId
    reason: StopReason | None
    void: bool
    cpu_s: float
    byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFellIdle:
    """A leased sandbox has no call left and holds no state: is it worth keeping?"""

    at_s: float
    sandbox: SandboxId
    principal: PrincipalId
    resource: ResourceId
    session: SessionId | None
    memory_bytes: int


PoolFact = StakeWon | StakeLost | SandboxFellIdle
