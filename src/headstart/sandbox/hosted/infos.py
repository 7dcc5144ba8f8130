"""What there is to say about a hosted sandbox, whatever it is at."""

from __future__ import annotations

from headstart.backends.contract import Usage
from headstart.errors import BackendError, TransactionRefused
from headstart.sandbox.hosted.messages import HostedInfo, SandboxState
from headstart.sandbox.hosted.record import Hibernation
from headstart.sandbox.hosted.register import Broken, Hibernated, Hosted
from headstart.sandbox.sandbox import Sandbox

__all__ = ["info_of", "info_of_resting", "state_of"]

_NOTHING = Usage(memory_bytes=0, cpu_s=0.0, processes=0)


async def info_of(hosted: Hosted, *, now_s: float) -> HostedInfo:
    """Return what there is to say about one that runs, or stands still.

    Args:
        hosted: Which.
        now_s: The time on the clock that its use is measured by.
    """
    try:
        usage = await hosted.box.usage()
    except (BackendError, TransactionRefused):  # it is ending
        usage = _NOTHING
    record = hosted.record
    return HostedInfo(
        id=hosted.box.id,
        name=hosted.name,
        branch_of=hosted.branch_of,
        state=state_of(hosted),
        version=hosted.box.state_version,
        created_wall_s=record.created_wall_s,
        idle_s=0.0 if hosted.users else now_s - hosted.used_at_s,
        ends_after_idle_s=record.ends_after_idle_s,
        hibernates_after_idle_s=record.hibernates_after_idle_s,
        template=record.options.template,
        network=record.options.network,
        mounts=dict(record.options.mounts),
        usage=usage,
        checkpoints=hosted.box.checkpoints,
    )


def info_of_resting(resting: Hibernated | Broken) -> HostedInfo:
    """Return what there is to say about one that is on disk alone."""
    record = resting.record
    kept = record.hibernation or Hibernation()
    return HostedInfo(
        id=record.id,
        name=record.name,
        branch_of=record.branch_of,
        state=state_of(resting),
        version=kept.version,
        created_wall_s=record.created_wall_s,
        ends_after_idle_s=record.ends_after_idle_s,
        hibernates_after_idle_s=record.hibernates_after_idle_s,
        template=record.options.template,
        network=record.options.network,
        mounts=dict(record.options.mounts),
        checkpoints=kept.checkpoints,
        trouble=resting.why if isinstance(resting, Broken) else "",
    )


def state_of(found: Hosted | Hibernated | Broken) -> SandboxState:
    """Return what it is at."""
    match found:
        case Hibernated():
            return SandboxState.HIBERNATED
        case Broken():
            return SandboxState.BROKEN
        case Hosted():
            return SandboxState.PAUSED if _is_paused(found.box) else SandboxState.RUNNING


def _is_paused(box: Sandbox) -> bool:
    try:
        return box.paused
    except TransactionRefused:  # a branch that has just ended
        return False
