"""Who ends a sandbox of the process backend when its init cannot.

An init that is a subreaper and no PID 1 leaves its daemons to somebody else when it is
killed: to the spawner, if that lives. If the service, the spawner and the init are all
killed at once, nobody would be left who knows them. So each init has a parent, the guard,
which does nothing but outlive it.
"""

from __future__ import annotations

import os

from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["leave_guard_behind"]


def leave_guard_behind(control: int) -> None:
    """Fork: the child goes on, to be the init; the parent stays, ends what the init leaves, and never returns.

    The guard keeps `control` open, unread, so that the service sees its end only when all is
    over. It holds nothing else, and ends with status 0.
    """
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    init = os.fork()
    if init == 0:
        return
    try:
        syscalls.close_all_descriptors_except([control])
        os.waitpid(init, 0)
        processes.kill_everything_below(os.getpid())
    finally:
        os._exit(0)
