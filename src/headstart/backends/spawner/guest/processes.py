"""Whose child is whose, and ending whole trees of processes, from /proc."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Sequence

__all__ = [
    "children",
    "descendants",
    "exit_facts",
    "in_group",
    "inner_pid",
    "is_alive",
    "is_below",
    "kill_everything_below",
    "kill_everything_in_namespace",
    "members",
    "pause",
    "pid_namespace",
    "pss_bytes",
    "reap",
    "tracer_of",
]

_PF_EXITING = 0x4
"""Among the kernel's flags of a process: set before its descriptors are closed, which others may notice."""


def children(pid: int) -> list[int]:
    """The direct children of all threads of a process; none once it has ended."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listing:
                found.extend(int(child) for child in listing.read().split())
    except OSError:
        pass  # it ended while we looked
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs or could run; one that is on its way out, or waits to be reaped, has ended.

    It lives on in its other threads when its first one has ended.
    """
    threads = _stat(f"/proc/{pid}/stat")[17:18]
    if threads in ([], [b"0"], [b"1"]):
        return _runs(f"/proc/{pid}/stat")
    try:
        return any(_runs(f"/proc/{pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False  # it ended while we looked


def _runs(path: str) -> bool:
    fields = _stat(path)
    return bool(fields) and fields[0] not in (b"Z", b"X") and not int(fields[6]) & _PF_EXITING


def _stat(path: str) -> list[bytes]:
    """Return what a `stat` tells after the name; nothing if there is none any more."""
    try:
        with open(path, "rb") as facts:
            return facts.read().rpartition(b")")[2].split()
    except OSError:
        return []


def is_below(pid: int, top: int) -> bool:
    """Whether a process is a descendant of `top`, as far as /proc shows it."""
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat", "rb") as facts:
                pid = int(facts.read().rpartition(b")")[2].split()[1])
        except OSError:
            return False  # it ended while we looked
        if pid == top:
            return True
    return False


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, parents before their children."""
    found = children(pid)
    for child in found:  # grows while we walk: breadth first
        found.extend(children(child))
    return found


def members(init: int, groups: Sequence[str], apart: Sequence[int] = ()) -> list[int]:
    """List what is in a sandbox beside its init, ended or not; a control group forgets nobody who forks while we look.

    Args:
        init: Its init's pid.
        groups: The folders of its control groups; there may be none.
        apart: Those in it that are children of nobody in it, and join its control groups a moment late.
    """
    more = [pid for root in apart for pid in (root, *descendants(root))]
    if not groups:
        return [*descendants(init), *more]
    with open(groups[0] + "/cgroup.procs") as listing:
        listed = [pid for pid in map(int, listing.read().split()) if pid != init]
    return [*listed, *(pid for pid in more if pid not in listed)]


def in_group(group: str) -> list[int]:
    """List what is in a control group, given its folder; nothing if there is none."""
    try:
        with open(group + "/cgroup.procs") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return []


def pid_namespace(pid: int) -> str:
    """Return what identifies the PID namespace of a process, "" if it has ended."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def inner_pid(pid: int) -> int:
    """Return how a process is called in its own PID namespace; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb") as facts:
            return int(facts.read().partition(b"\nNSpid:")[2].partition(b"\n")[0].split()[-1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def pss_bytes(pid: int) -> int:
    """Return what one process holds, its share of shared pages included; 0 once it has ended."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            return int(rollup.read().partition(b"\nPss:")[2].split(None, 1)[0]) * 1024
    except (OSError, IndexError):
        return 0  # it has ended


def tracer_of(pid: int) -> int:
    """Return the pid of who traces a process, 0 if nobody does."""
    try:
        with open(f"/proc/{pid}/status", "rb") as facts:
            return int(facts.read().partition(b"\nTracerPid:")[2].split(None, 1)[0])
    except (OSError, IndexError):
        return 0  # it has ended


def reap() -> list[tuple[int, int]]:
    """Collect every child that has ended, as (pid, wait status)."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def exit_facts(status: int) -> dict[str, int]:
    """Say how a process ended, from its wait status: `{"code": n}` or `{"signal": n}`."""
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def kill_everything_in_namespace() -> None:
    """As the first process of a PID namespace: kill and reap all others, and return when they are gone.

    The kernel would do the same when we exit, but only after it has closed our descriptors,
    which tell the service that all is over.
    """
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nobody is left
    try:
        while True:
            os.wait()
    except ChildProcessError:
        return


def kill_everything_below(pid: int, *, rounds: int = 400) -> bool:
    """Kill and reap all descendants of this process (a subreaper); return whether none is left.

    Whoever forks faster than we read /proc is caught in a later round: what was killed
    cannot fork, and orphans come back to us.
    """
    for _ in range(rounds):
        for victim in descendants(pid):
            try:
                os.kill(victim, signal.SIGKILL)
            except OSError:
                pass  # it ended by itself
        reap()
        if not children(pid):
            return True
        pause(0.002)
    return False


def pause(seconds: float) -> None:
    """Let others go on for a moment."""
    select.select([], [], [], seconds)
