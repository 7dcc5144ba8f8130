"""The process backend's counterpart of confinement: an own home, /tmp and limits, no isolation."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from headstart.backends.process.guest.guard import leave_guard_behind
from headstart.backends.spawner.guest import runs, syscalls
from headstart.backends.spawner.guest.init import Init, set_limits

__all__ = ["enter", "fork"]


def fork(plan: dict[str, Any]) -> int:  # noqa: ARG001  the promise of all confinements
    """Fork; the child must call `enter` next."""
    return os.fork()


def enter(plan: dict[str, Any], wanted: Callable[[], dict[str, int]]) -> None:
    """Give the calling process, a fresh fork of a zygote, an init and a private home.

    The same promise as `headstart.backends.local.guest.confine.enter` without the
    isolation: it returns in a different process, which is the child of a small subreaper
    that reaps, relays signals, runs more commands and reports over `control_fd` how the
    process ended (execution id 0). The subreaper dies with the runtime and takes
    everything below it along; it is no child of the zygote.

    stdin, stdout, stderr, argv, the environment (HOME and TMPDIR are set by the preloader
    as given in the fork request) and the working directory are left alone.

    Args:
        plan: Plain JSON data. Keys:

            `directories` (list of str): private directories to make (0700) and, at the
            end, to remove.
            `rlimits` (dict of name to int): `resource.RLIMIT_<name>` soft and hard limits.
            `niceness` (int): added to the zygote's.
        wanted: As there. Called first: everything here differs from fork to fork.

    Raises:
        OSError: A step failed; the caller must tell it and `os._exit(70)`.
    """
    control = wanted()["control_fd"]
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    leave_guard_behind(control)
    os.nice(plan["niceness"])
    for folder in plan["directories"]:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    keeper = os.getpid()
    server = os.fork()
    if server == 0:
        os.close(control)
        os.setsid()
        set_limits(plan["rlimits"])
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(70)
        return
    try:
        init = Init(
            control,
            ends_with_namespace=False,
            at_end=lambda: runs.remove_trees(plan["directories"]),
            limits=plan["rlimits"],
        )
        init.adopt(0, server)
        init.let_go_of_everything_else()
        init.serve()
    finally:
        os._exit(70)
