"""What a call is told when it cannot have a sandbox: what, where and the cure."""

from __future__ import annotations

from headstart.core.events import LeaseRefusal, RefuseLease
from headstart.core.pool.policy import PoolPolicy
from headstart.ids import CallId, ResourceId, SessionId

__all__ = [
    "backing_off",
    "draining",
    "never_fits",
    "no_memory_for_now",
    "session_closed",
    "start_failed",
    "state_lost",
    "too_little_memory",
    "unknown_resource",
]

_MB = 1_000_000


def draining(call: CallId) -> RefuseLease:
    return RefuseLease(call=call, refusal=LeaseRefusal.DRAINING, message="the service is stopping")


def session_closed(call: CallId, session: SessionId) -> RefuseLease:
    message = f"session {session} is not open (it may have ended)"
    return RefuseLease(call=call, refusal=LeaseRefusal.SESSION_CLOSED, message=message)


def unknown_resource(call: CallId, resource: ResourceId) -> RefuseLease:
    return RefuseLease(call=call, refusal=LeaseRefusal.UNKNOWN_RESOURCE, message=f"there is no server {resource!r}")


def state_lost(call: CallId, resource: ResourceId) -> RefuseLease:
    message = (
        f"{resource}: this session's state is gone, with the sandbox that held it; "
        "the next call starts a new one, which is empty"
    )
    return RefuseLease(call=call, refusal=LeaseRefusal.STATE_LOST, message=message)


def start_failed(call: CallId, resource: ResourceId, why: str, wait_s: float) -> RefuseLease:
    return RefuseLease(
        call=call,
        refusal=LeaseRefusal.START_FAILED,
        message=f"{resource} did not start: {why}",
        retry_after_s=wait_s,
    )


def backing_off(call: CallId, resource: ResourceId, why: str, wait_s: float) -> RefuseLease:
    return RefuseLease(
        call=call,
        refusal=LeaseRefusal.BACKING_OFF,
        message=f"{resource} failed and is tried again in {wait_s:.1f} s: {why}",
        retry_after_s=wait_s,
    )


def never_fits(call: CallId, resource: ResourceId, needed_bytes: int, policy: PoolPolicy) -> RefuseLease:
    return RefuseLease(
        call=call, refusal=LeaseRefusal.NO_MEMORY, message=too_little_memory(resource, needed_bytes, policy)
    )


def too_little_memory(resource: ResourceId, needed_bytes: int, policy: PoolPolicy) -> str:
    """Say that a server can never start, and with which budget it could: the part for zygotes grows with it."""
    budget, aside = policy.memory_bytes, policy.set_aside_bytes
    cure = -(-needed_bytes * (budget + aside) // (budget * _MB))
    told = f" ({aside // _MB} MB more are set aside for zygotes)" if aside else ""
    return (
        f"{resource} needs about {-(-needed_bytes // _MB)} MB, but the memory budget for all sandboxes is "
        f"{budget // _MB} MB{told}; set memory_mb of [pool] to at least {cure}"
    )


def no_memory_for_now(
    call: CallId, resource: ResourceId, *, waited_s: float, used_bytes: int, budget_bytes: int
) -> RefuseLease:
    message = (
        f"{resource} waited {waited_s:g} s for memory: {used_bytes // 1_000_000} MB of the budget of "
        f"{budget_bytes // 1_000_000} MB are held by sandboxes that are answering calls; "
        "try again, or raise memory_mb of [pool]"
    )
    return RefuseLease(call=call, refusal=LeaseRefusal.NO_MEMORY, message=message, retry_after_s=waited_s)
