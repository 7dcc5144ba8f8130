"""How bets on sandboxes end, told as facts.

A bet is won when a call comes for what it prepared. What it hid is what that call would
have waited, had the start begun when it came, less what it waited all the same. The
start that is compared with is the shorter of this sandbox's own and the mean of its
kind: a predicted start runs in the background and may take longer than one that is
waited for, and that difference must not count as won.

A bet that was won without a call being answered from it (the call was cancelled, the
start failed under it) was right and hid nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headstart.core.bets import BetKind
from headstart.core.events import StopReason
from headstart.core.pool.estimates import Estimates
from headstart.core.pool.facts import PoolFact, StakeLost, StakeWon
from headstart.core.pool.sandboxes import Sandbox
from headstart.ids import CallId, SessionId

__all__ = ["Stakes"]

_SAYS_NOTHING: Final = frozenset({StopReason.SESSION_CLOSED, StopReason.DRAINING, StopReason.UNWANTED})
"""Ends that are not the prediction's fault."""


class Stakes:
    """Settles stakes and collects the facts.

    Args:
        estimates: What starts take.
    """

    def __init__(self, estimates: Estimates) -> None:
        self._estimates = estimates
        self.facts: list[PoolFact] = []

    def answered(self, sandbox: Sandbox, *, call: CallId, session: SessionId, arrived_s: float, now_s: float) -> None:
        """A call that came for a staked sandbox is granted."""
        estimate_s = self._estimates.of(sandbox.principal, sandbox.resource, sandbox.form).start_s
        would_wait_s = estimate_s if sandbox.start_s is None else min(estimate_s, sandbox.start_s)
        waited_s = max(0.0, now_s - arrived_s)
        self._won(
            sandbox,
            session=session,
            call=call,
            waited_s=waited_s,
            hidden_s=max(0.0, would_wait_s - waited_s),
            now_s=now_s,
        )

    def claimed_in_vain(self, sandbox: Sandbox, now_s: float) -> None:
        """A claimed sandbox will answer none of the calls that claimed it."""
        session = sandbox.claim.session if sandbox.claim else SessionId("")
        self._won(sandbox, session=session, call=None, waited_s=0.0, hidden_s=0.0, now_s=now_s)

    def ended(self, sandbox: Sandbox, *, reason: StopReason | None, now_s: float) -> None:
        """A sandbox is gone, or is no longer kept: settle what is open on it."""
        stake = sandbox.stake
        if stake is None:
            return
        kept = stake.bet.kind is BetKind.KEEP
        if sandbox.claimed and not kept:
            self.claimed_in_vain(sandbox, now_s)
            return
        sandbox.stake = None
        since_s = stake.placed_s if kept else sandbox.started_s
        self.facts.append(
            StakeLost(
                at_s=now_s,
                stake=stake,
                sandbox=sandbox.id,
                reason=reason,
                void=reason is None or reason in _SAYS_NOTHING or since_s is None,
                cpu_s=0.0 if kept else sandbox.cpu_s,
                byte_s=0.0 if since_s is None else (now_s - since_s) * sandbox.memory_bytes,
            )
        )

    @staticmethod
    def extend(sandbox: Sandbox, expires_s: float) -> bool:
        """Move an open stake's expiry on; False if it already runs as long."""
        if sandbox.stake is None or sandbox.stake.expires_s >= expires_s:
            return False
        sandbox.stake = replace(sandbox.stake, expires_s=expires_s)
        return True

    @staticmethod
    def rebind(sandbox: Sandbox, *, backer: str, session: SessionId) -> None:
        """What was staked for a conversation is the session's that it turned out to be."""
        if sandbox.stake is not None and sandbox.stake.backer == backer:
            sandbox.stake = replace(sandbox.stake, backer=session)

    def _won(
        self,
        sandbox: Sandbox,
        *,
        session: SessionId,
        call: CallId | None,
        waited_s: float,
        hidden_s: float,
        now_s: float,
    ) -> None:
        stake, sandbox.stake = sandbox.stake, None
        if stake is not None:
            self.facts.append(
                StakeWon(
                    at_s=now_s,
                    stake=stake,
                    sandbox=sandbox.id,
                    session=session,
                    call=call,
                    waited_s=waited_s,
                    hidden_s=hidden_s,
                )
            )
