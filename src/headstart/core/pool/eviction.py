"""What has to go when memory is needed.

One currency: expected saved seconds per byte-second. A staked sandbox is worth
`p · hidden_s` over the memory and the time that the bet still asks for; a bet about to
expire holds its memory for little longer, so it becomes dearer to evict, which is right:
almost all of its cost is sunk.

The order, cheapest loss first:

1. *unclaimed*: staked ones by value, then those that the mode keeps in reserve;
2. *idle*: leased, no call, only READ calls served. Nothing is lost but a start;
3. *stateful*: leased, no call, but an agent has left state in it. By price never: only
   when an agent waits for memory and nothing else is left, the longest idle first, and
   its owner is told.

A sandbox with a call in it, or with a call waiting for it, is never evicted. Victims are
chosen all or none: a start that cannot be given enough evicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from headstart.core.events import Priority
from headstart.core.pool.sandboxes import Sandbox, SandboxState

__all__ = ["Standing", "cheapest_first", "standing_of", "value_density", "victims_for"]

_MARGIN: Final = 1.25
"""A bet displaces another only if it is worth this much more; or two bets could take turns for ever."""


class Standing(IntEnum):
    """How dear a sandbox is, before its value is asked."""

    UNCLAIMED = 0
    IDLE = 1
    STATEFUL = 2
    UNTOUCHABLE = 3


def standing_of(sandbox: Sandbox) -> Standing:
    """Return how dear a sandbox is."""
    if sandbox.busy or sandbox.state not in {SandboxState.STARTING, SandboxState.READY, SandboxState.LEASED}:
        return Standing.UNTOUCHABLE
    if not sandbox.claimed:
        return Standing.UNCLAIMED
    return Standing.STATEFUL if sandbox.stateful_for else Standing.IDLE


def value_density(sandbox: Sandbox, now_s: float) -> float:
    """Return the expected saved seconds per byte-second; 0 where nothing is staked on it."""
    stake = sandbox.stake
    if stake is None:
        return 0.0
    left_s = max(stake.expires_s - now_s, 1e-3)
    return stake.probability * stake.bet.hidden_s / (max(sandbox.memory_bytes, 1) * left_s)


def victims_for(newcomer: Sandbox, sandboxes: Iterable[Sandbox], *, need_bytes: int, now_s: float) -> list[Sandbox]:
    """Choose what goes so that `newcomer` gets `need_bytes` more; empty if that cannot be."""
    candidates = [other for other in sandboxes if _may_displace(newcomer, other, now_s)]
    candidates.sort(key=lambda other: _rank(other, now_s))
    chosen: list[Sandbox] = []
    freed_bytes = 0
    for other in candidates:
        chosen.append(other)
        freed_bytes += other.memory_bytes
        if freed_bytes >= need_bytes:
            return chosen
    return []


def cheapest_first(sandboxes: Iterable[Sandbox], now_s: float) -> list[Sandbox]:
    """Return what may go for its price alone (never state, never what is busy), cheapest loss first."""
    may_go = [each for each in sandboxes if standing_of(each) in {Standing.UNCLAIMED, Standing.IDLE}]
    return sorted(may_go, key=lambda each: _rank(each, now_s))


def _may_displace(newcomer: Sandbox, other: Sandbox, now_s: float) -> bool:
    standing = standing_of(other)
    if other is newcomer or standing is Standing.UNTOUCHABLE:
        return False
    match newcomer.priority:
        case Priority.CLAIMED:
            return True
        case Priority.CONFIGURED:
            return standing is Standing.UNCLAIMED and other.stake is not None
        case Priority.PREDICTED:
            cheap = standing is Standing.UNCLAIMED or (standing is Standing.IDLE and other.stake is not None)
            return (
                cheap
                and other.stake is not None
                and value_density(newcomer, now_s) > _MARGIN * value_density(other, now_s)
            )


def _rank(sandbox: Sandbox, now_s: float) -> tuple[int, bool, float, float]:
    """Sort key: cheapest loss first; without a stake the longest idle first."""
    since_s = sandbox.idle_since_s if sandbox.idle_since_s is not None else sandbox.created_s
    return (standing_of(sandbox), sandbox.stake is None, value_density(sandbox, now_s), since_s)
