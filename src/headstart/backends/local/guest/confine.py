"""Confine a process that was forked from a zygote: called from inside, by the fork itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from headstart.backends.local.guest import lockdown, private, userns
from headstart.backends.spawner.guest import syscalls
from headstart.backends.spawner.guest.commands import SparedInit
from headstart.backends.spawner.guest.init import Init, set_limits

__all__ = ["enter", "fork"]

_NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)


def fork(plan: dict[str, Any]) -> int:
    """Fork a zygote into the namespaces of a sandbox; return 0 in the child, its pid in the parent.

    The child must call `enter` next. Python's own hooks around a fork run later, in `enter`.

    Raises:
        OSError: No namespaces, or no process, can be made; there is no child.
    """
    return syscalls.clone(_NAMESPACES | (syscalls.CLONE_NEWNET if plan["network"] == "none" else 0))


def enter(plan: dict[str, Any], wanted: Callable[[], dict[str, int]]) -> None:
    """Turn the calling process, which `fork` has just made, into a sandbox of its own.

    When `enter` returns, it returns in a *different process*, a child of the caller, which

    - is in new user, mount, PID, IPC, UTS, cgroup (and, without network, net) namespaces,
    - has an empty private home, /tmp, /var/tmp, /dev/shm and a fresh /proc,
    - has no capabilities, the sandbox's seccomp filter, and its own cgroup when given one,
    - is the child of a small PID 1 (the caller), which reaps, relays signals, runs more
      commands and reports over `control_fd` how the process ended (execution id 0). It dies
      with the runtime (end of file on `control_fd`), but not with the zygote.

    stdin, stdout, stderr, argv and the environment are left alone: `wanted` and the preloader
    set them, and the working directory. It must see to it that PID 1 is reaped.

    Args:
        plan: Plain JSON data, made by the backend. Keys:

            `hostname` (str): name in the new UTS namespace.
            `private` (dict of str to int): folders that are this sandbox's own, the home among
            them, and their modes.
            `network` (str): `"none"` or `"host"`.
            `scratch_bytes`, `scratch_inodes` (int or None): size of the private tmpfs.
            `overlays` (list of str): folders that are writable here, and whose changes go with
            this sandbox; `plain` (bool): whether they show as they are at `private.PLAIN`.
            `covered` (list of str): mounts below a private folder or an overlay, which stay
            visible.
            `own` (dict): empty; forks made ahead have no files that tell them who they are.
            `based` (bool): whether the private folders begin with what is at `private.BASE`.
            `seccomp` (str): base64 of a BPF program, `""` for none.
            `rlimits` (dict of name to int): `resource.RLIMIT_<name>` soft and hard limits.
        wanted: Waits until this fork is wanted, and returns the number of `control_fd`, a socket
            to the runtime, by that name. Called once, when all has been done that needs nothing
            but the plan. If nobody will want this fork any more, it exits.

    Raises:
        OSError: A step failed. The caller, in whichever process it finds itself, must tell
            the error and `os._exit(70)`; nothing of it may go on running.
    """
    userns.become_own()
    private.lay_private_parts(plan, owner=None, masked=True)
    if plan["network"] == "none":
        private.bring_up_loopback()
    socket.sethostname(plan["hostname"])
    spared = SparedInit()
    lockdown.lock_down(plan, dies_with_parent=False, scopes=syscalls.SCOPE_SOCKETS | syscalls.SCOPE_SIGNALS)
    _leave_init_behind(plan, wanted()["control_fd"], spared)


def _leave_init_behind(plan: dict[str, Any], control: int, spared: SparedInit) -> None:
    """Fork: the parent stays as PID 1 and never returns, the child goes on as the server."""
    server = os.fork()
    if server == 0:
        for descriptor in [control, *spared.descriptors()]:
            os.close(descriptor)
        os.setsid()
        set_limits(plan["rlimits"])
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # our init alone is hidden
        return
    try:
        init = Init(control, ends_with_namespace=True, limits=plan["rlimits"], spared=spared)
        init.adopt(0, server)
        init.let_go_of_everything_else()
        init.serve()
    finally:
        os._exit(70)
