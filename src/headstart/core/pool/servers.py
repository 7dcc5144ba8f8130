"""The registered servers of each principal, and sandboxes made to their measure."""

from __future__ import annotations

from collections.abc import Iterator

from headstart.core.events import Cause, Priority, ResourceRegistered
from headstart.core.pool.estimates import Estimate, Estimates
from headstart.core.pool.sandboxes import Sandbox, Stake
from headstart.ids import PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["Servers"]

_UNNAMED = SandboxId("")


class Servers:
    """What is registered.

    Args:
        estimates: What their starts take and hold.
        memory_bytes: The budget for all sandboxes together.
    """

    def __init__(self, estimates: Estimates, *, memory_bytes: int) -> None:
        self._estimates = estimates
        self._memory_bytes = memory_bytes
        self._specs: dict[PrincipalId, dict[ResourceId, ResourceRegistered]] = {}

    def register(self, event: ResourceRegistered) -> None:
        """Take in a server, or what is newly known of it."""
        self._estimates.registered(event)
        self._specs.setdefault(event.principal, {})[event.resource] = event

    def find(self, principal: PrincipalId, resource: ResourceId) -> ResourceRegistered | None:
        """Return a registered server."""
        return self._specs.get(principal, {}).get(resource)

    def of(self, principal: PrincipalId) -> Iterator[ResourceRegistered]:
        """Yield a principal's servers in the order of their registration."""
        return iter(list(self._specs.get(principal, {}).values()))

    def estimate(self, spec: ResourceRegistered) -> Estimate:
        """Return what a start of it takes and holds."""
        return self._estimates.of(spec.principal, spec.resource, spec.form)

    def never_fits(self, spec: ResourceRegistered) -> bool:
        """Whether it needs more memory than there is for all together."""
        return self.estimate(spec).memory_bytes > self._memory_bytes

    def too_large(self) -> dict[ResourceId, int]:
        """Return the servers that can never start, with the bytes that they need."""
        specs = (spec for specs in self._specs.values() for spec in specs.values() if not spec.remote)
        return {spec.resource: self.estimate(spec).memory_bytes for spec in specs if self.never_fits(spec)}

    def sandbox(
        self,
        spec: ResourceRegistered,
        *,
        sandbox_id: SandboxId,
        priority: Priority,
        cause: Cause,
        now_s: float,
    ) -> Sandbox:
        """Make a sandbox of it, queued, unclaimed and nobody's in particular."""
        return Sandbox(
            id=sandbox_id,
            principal=spec.principal,
            resource=spec.resource,
            priority=priority,
            cause=cause,
            created_s=now_s,
            memory_bytes=self.estimate(spec).memory_bytes,
            form=spec.form,
            shared=spec.shared,
            session_specific=spec.session_specific and not spec.shared,
        )

    def sandbox_for_session(
        self,
        spec: ResourceRegistered,
        session: SessionId,
        *,
        sandbox_id: SandboxId,
        priority: Priority,
        because: str,
        now_s: float,
    ) -> Sandbox:
        """Make a sandbox that is claimed from the beginning."""
        sandbox = self.sandbox(
            spec, sandbox_id=sandbox_id, priority=priority, cause=Cause(because=because), now_s=now_s
        )
        sandbox.claimed = True
        sandbox.owner = sandbox.session = None if spec.shared else session
        sandbox.by_mode = priority is Priority.CONFIGURED
        return sandbox

    def sandbox_for_stake(self, stake: Stake, *, sandbox_id: SandboxId = _UNNAMED, now_s: float) -> Sandbox:
        """Make a sandbox that a bet is on."""
        bet = stake.bet
        cause = Cause(kind=bet.kind, predictor=bet.predictor, because=bet.because)
        spec = self._specs[bet.principal][bet.resource]
        sandbox = self.sandbox(spec, sandbox_id=sandbox_id, priority=Priority.PREDICTED, cause=cause, now_s=now_s)
        sandbox.stake = stake
        sandbox.cpu_limit_s = stake.cpu_s
        sandbox.session = bet.session if sandbox.session_specific else None
        return sandbox
