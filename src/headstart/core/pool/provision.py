"""Which sandbox a session gets: its own, one from the shelf, or a new one.

On the shelf are what bets have prepared and what the reserved sets hold. Whoever of the
principal's sessions asks first may take from it, unless the sandbox carries another
session's identity; the warmest goes first, and among equals what was prepared for the
asking session.
"""

from __future__ import annotations

from typing import Final

from headstart.core.events import Cause, Priority, ResourceRegistered
from headstart.core.pool.calls import Call, OpenSession
from headstart.core.pool.deadlines import Deadlines
from headstart.core.pool.inventory import Inventory
from headstart.core.pool.policy import Mode, PoolPolicy
from headstart.core.pool.restarts import Restarts
from headstart.core.pool.sandboxes import Sandbox, SandboxState, Stake
from headstart.core.pool.servers import Servers
from headstart.ids import IdSource, PrincipalId, ResourceId, SandboxId

__all__ = ["Provision"]

_WARMEST_FIRST: Final = (SandboxState.READY, SandboxState.STARTING, SandboxState.QUEUED)


class Provision:
    """Hands out sandboxes and keeps the reserved sets complete."""

    def __init__(
        self,
        *,
        policy: PoolPolicy,
        ids: IdSource,
        servers: Servers,
        inventory: Inventory,
        restarts: Restarts,
        deadlines: Deadlines,
    ) -> None:
        self._policy = policy
        self._ids = ids
        self._servers = servers
        self._inventory = inventory
        self._restarts = restarts
        self._deadlines = deadlines
        self._refill_s: dict[tuple[PrincipalId, ResourceId], float] = {}
        self._closed = False

    # ------------------------------------------------------------ for sessions

    def owned(self, session: OpenSession, spec: ResourceRegistered) -> Sandbox | None:
        """Return the sandbox that the session has (a shared one: that its principal has)."""
        return self._inventory.claimed_by(session.principal, spec.resource, None if spec.shared else session.id)

    def obtain(
        self, session: OpenSession, spec: ResourceRegistered, *, call: Call | None, now_s: float
    ) -> Sandbox | None:
        """Return the session's sandbox, or claim one from the shelf for it."""
        owned = self.owned(session, spec)
        if owned is not None:
            return owned
        found = self._pick(session, spec)
        if found is not None:
            self._inventory.claim(found, session.id, call=call.id if call else None, at_s=now_s)
            self._deadlines.set(found, None)
            self.refill(spec, now_s)
        return found

    def add(
        self, session: OpenSession, spec: ResourceRegistered, *, priority: Priority, because: str, now_s: float
    ) -> Sandbox:
        """Queue a new sandbox, the session's from the beginning."""
        sandbox = self._servers.sandbox_for_session(
            spec, session.id, sandbox_id=self._new_id(), priority=priority, because=because, now_s=now_s
        )
        self._inventory.add(sandbox, note=because)
        return sandbox

    def provide(self, session: OpenSession, resource: ResourceId, now_s: float) -> None:
        """Give a session a server before it asks, as eager and reserved modes do."""
        spec = self._servers.find(session.principal, resource)
        if spec is None or spec.remote or self.owned(session, spec) is not None:
            return
        if self._restarts.wait_s(session.principal, resource, now_s) > 0.0 or self._servers.never_fits(spec):
            return  # the first call is told why
        found = self.obtain(session, spec, call=None, now_s=now_s)
        if found is None:
            because = f"{self._policy.mode.value} pool"
            self.add(session, spec, priority=Priority.CONFIGURED, because=because, now_s=now_s)
        else:
            found.by_mode = True

    def place(self, stake: Stake, now_s: float) -> None:
        """Queue the start that an admitted bet is on, for nobody yet."""
        sandbox = self._servers.sandbox_for_stake(stake, sandbox_id=self._new_id(), now_s=now_s)
        self._inventory.add(sandbox, note=f"bet by {stake.bet.predictor}: {stake.bet.because}")
        self._deadlines.set(sandbox, stake.expires_s)

    def _pick(self, session: OpenSession, spec: ResourceRegistered) -> Sandbox | None:
        shelf = self._inventory.shelf(session.principal, spec.resource)
        return min(
            (each for each in shelf if each.may_be_claimed_by(session.id)),
            key=lambda each: (
                _WARMEST_FIRST.index(each.state),
                each.stake is None or each.stake.backer != session.id,
                each.created_s if each.started_s is None else each.started_s,
            ),
            default=None,
        )

    # ------------------------------------------------------------ reserved sets

    def refill(self, spec: ResourceRegistered, now_s: float) -> None:
        """Complete the reserved sets of a server; while it backs off, later."""
        if self._policy.mode is not Mode.RESERVED or self._closed or self._servers.never_fits(spec):
            return
        if spec.remote or spec.shared or spec.session_specific:
            return
        wait_s = self._restarts.wait_s(spec.principal, spec.resource, now_s)
        if wait_s > 0.0:
            self._refill_s[spec.principal, spec.resource] = now_s + wait_s
            return
        for _ in range(self._policy.reserved_sets - len(self._inventory.shelf(spec.principal, spec.resource))):
            cause = Cause(because="reserved set")
            sandbox = self._servers.sandbox(
                spec, sandbox_id=self._new_id(), priority=Priority.CONFIGURED, cause=cause, now_s=now_s
            )
            sandbox.by_mode = True
            self._inventory.add(sandbox, note="reserved set")

    def refill_due(self, now_s: float) -> None:
        """Complete the sets of servers whose back-off is over."""
        for key in [key for key, due_s in self._refill_s.items() if due_s <= now_s]:
            del self._refill_s[key]
            spec = self._servers.find(*key)
            if spec is not None:
                self.refill(spec, now_s)

    def next_refill_s(self) -> float | None:
        """Return when `refill_due` has something to do."""
        return min(self._refill_s.values(), default=None)

    def close(self) -> None:
        """The service drains: nothing is refilled any more."""
        self._closed = True
        self._refill_s.clear()

    def _new_id(self) -> SandboxId:
        return SandboxId(self._ids.new("sbx"))
