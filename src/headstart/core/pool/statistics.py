"""The pool at one moment, as values."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.core.events import Cause, PrepareForm
from headstart.core.pool.sandboxes import Sandbox, SandboxState
from headstart.ids import PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["PoolStatistics", "SandboxView", "view"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxView:
    """One sandbox.

    Attributes:
        session: Who has claimed it, or whose identity it carries.
        age_s: Since it was wanted.
        memory_bytes: What it is charged with.
        cpu_s: CPU-seconds so far.
        served: Calls so far.
        running: Calls now.
        stateful: Somebody may have left state in it.
        cause: Why it was started.
    """

    id: SandboxId
    principal: PrincipalId
    resource: ResourceId
    state: SandboxState
    session: SessionId | None
    form: PrepareForm
    age_s: float
    memory_bytes: int
    cpu_s: float
    served: int
    running: int
    stateful: bool
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatistics:
    """All sandboxes, and the budgets: used and limit.

    Attributes:
        set_aside_bytes: What zygotes may hold beside `memory_bytes`.
        hosted_bytes: What hosted sandboxes use of `memory_bytes`, beside `used_bytes`.
        too_large: One sentence for each server that can never start within the budget.
        queued: Starts that wait for a slot or for memory.
        backing_off: Servers that are not started now because they failed.
        ended: Sandboxes that are gone; of these, how many never served a call, and the
            CPU-seconds that these had used.
    """

    sandboxes: tuple[SandboxView, ...]
    used_bytes: int
    memory_bytes: int
    set_aside_bytes: int
    hosted_bytes: int
    too_large: tuple[str, ...]
    starting: int
    starts_at_once: int
    queued: int
    sessions: int
    calls: int
    backing_off: tuple[tuple[PrincipalId, ResourceId, float], ...]
    ended: int
    ended_unused: int
    ended_unused_cpu_s: float


def view(sandbox: Sandbox, at_s: float) -> SandboxView:
    """Return a sandbox as a value."""
    return SandboxView(
        id=sandbox.id,
        principal=sandbox.principal,
        resource=sandbox.resource,
        state=sandbox.state,
        session=sandbox.owner or sandbox.session,
        form=sandbox.form,
        age_s=max(0.0, at_s - sandbox.created_s),
        memory_bytes=sandbox.memory_bytes,
        cpu_s=sandbox.cpu_s,
        served=sandbox.served,
        running=len(sandbox.running),
        stateful=bool(sandbox.stateful_for),
        cause=sandbox.cause,
    )
