"""What a tree of processes uses, from /proc: for sandboxes that have no control group.

Memory is PSS (`smaps_rollup`): pages that forks share are split among them, so that sums
over sandboxes are true. Reading it walks page tables, a millisecond per process or so;
call it from a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from headstart.backends.contract import Usage
from headstart.backends.spawner.guest.processes import descendants, pss_bytes

__all__ = ["tree_cpu_s", "tree_usage"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_usage(root: int, without: Collection[int] = (), *, beside: Collection[int] = ()) -> Usage:
    """Return what `root` and everything below it use, and what the trees `beside` do; those of `without` apart.

    CPU time includes that of descendants that have been reaped; what has ended while we
    looked counts zero.
    """
    apart = {pid for top in without for pid in (top, *descendants(top))}
    members = [pid for pid in _members(root, beside) if pid not in apart]
    return Usage(
        memory_bytes=sum(pss_bytes(pid) for pid in members),
        cpu_s=sum(_cpu_s(pid) for pid in members),
        processes=len(members) - 1,
    )


def tree_cpu_s(root: int, *, beside: Collection[int] = ()) -> float:
    """Return the `cpu_s` of the same usage; no page table is walked for it."""
    return sum(_cpu_s(pid) for pid in _members(root, beside))


def _members(root: int, beside: Collection[int]) -> list[int]:
    return [pid for top in (root, *beside) for pid in (top, *descendants(top))]


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # it has ended
    return sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
