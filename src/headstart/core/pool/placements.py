"""Whether a bet on a start can be placed: what is there already, and what is failing."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.core.bets import Bet
from headstart.core.events import ResourceRegistered
from headstart.core.policy import Refusal
from headstart.core.pool.calls import CallBook
from headstart.core.pool.deadlines import Deadlines
from headstart.core.pool.inventory import Inventory
from headstart.core.pool.policy import Mode, PoolPolicy
from headstart.core.pool.restarts import Restarts
from headstart.core.pool.sandboxes import Sandbox
from headstart.core.pool.servers import Servers
from headstart.core.pool.stakes import Stakes
from headstart.ids import PrincipalId, SessionId

__all__ = ["Placements"]


class Placements:
    """Looks at the pool's parts; changes nothing but how long an open bet runs."""

    def __init__(
        self,
        *,
        policy: PoolPolicy,
        servers: Servers,
        inventory: Inventory,
        book: CallBook,
        restarts: Restarts,
        deadlines: Deadlines,
    ) -> None:
        self._predictive = policy.mode is Mode.PREDICTIVE
        self._servers = servers
        self._inventory = inventory
        self._book = book
        self._restarts = restarts
        self._deadlines = deadlines

    def refusal_of(self, bet: Bet, backer: str, now_s: float) -> Refusal | None:
        """Say why a bet cannot be placed, or None if it can.

        If the thing is already being prepared for the same backer, its bet runs on for
        as long as this one would have.
        """
        spec = self._servers.find(bet.principal, bet.resource)
        if not self._predictive:
            return Refusal.NOT_PREDICTIVE
        if spec is None or (spec.session_specific and not spec.shared and bet.session is None):
            return Refusal.UNKNOWN
        if spec.remote or self._is_owned(spec, bet.session) or self._is_prepared(bet, backer):
            return Refusal.ALREADY_THERE
        if self._restarts.wait_s(bet.principal, bet.resource, now_s) > 0.0:
            return Refusal.BACKING_OFF
        return None

    def rebind(self, principal: PrincipalId, backer: str, session: SessionId) -> None:
        """A conversation turned out to be a session's: what is prepared for it is the session's."""
        for spec in self._servers.of(principal):
            for sandbox in self._inventory.shelf(principal, spec.resource):
                Stakes.rebind(sandbox, backer=backer, session=session)

    def _is_owned(self, spec: ResourceRegistered, session: SessionId | None) -> bool:
        if spec.shared or session is not None:
            owner = None if spec.shared else session
            return self._inventory.claimed_by(spec.principal, spec.resource, owner) is not None
        sessions = self._book.sessions_of(spec.principal)
        return 0 < sessions <= self._inventory.claims_on(spec.principal, spec.resource)  # whoever it is, has one

    def prepared(self, bet: Bet, backer: str) -> Iterator[Sandbox]:
        """Yield what is unclaimed, alive and meant for the same call as a bet."""
        spec = self._servers.find(bet.principal, bet.resource)
        shared = spec is not None and spec.shared
        for sandbox in self._inventory.shelf(bet.principal, bet.resource):
            stake = sandbox.stake
            if shared or (stake is not None and (not backer or stake.backer == backer)):
                yield sandbox

    def _is_prepared(self, bet: Bet, backer: str) -> bool:
        for sandbox in self.prepared(bet, backer):
            if Stakes.extend(sandbox, bet.expires_s):
                self._deadlines.set(sandbox, bet.expires_s)
            return True
        return False
