"""Confine a process that was forked from a zygote: called from inside, by the fork itself."""

from __future__ import annotations

import os
import socket
from typing import Any

from headstart.backends.local.guest import lockdown, private, userns
from headstart.backends.spawner.guest import syscalls
from headstart.backends.spawner.guest.init import Init, set_limits

__all__ = ["enter"]

_NAMESPACES = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)


def enter(plan: dict[str, Any]) -> None:
    """Turn the calling process, a fresh fork of a zygote, into a sandbox of its own.

    The caller must be single-threaded and freshly forked, inside the zygote's own
    sandbox. When `enter` returns, it returns in a *different process* (a descendant of the
    caller; every process on the way there has left with `os._exit`), which

    - is in new user, mount, PID, IPC, UTS, cgroup (and, without network, net) namespaces,
    - has an empty private home, /tmp, /var/tmp, /dev/shm and a fresh /proc,
    - has no capabilities, the sandbox's seccomp filter, and its own cgroup when given one,
    - is the child of a small PID 1, which reaps, relays signals, runs more commands and
      reports over `control_fd` how the process ended (execution id 0). It dies with the
      runtime (end of file on `control_fd`), but not with the zygote.

    stdin, stdout, stderr, argv and the environment are left alone: the preloader sets them,
    and the working directory, afterwards. It must reap its direct child (which exits at
    once, code 0) and may not wait for the server, which is no child of the zygote.

    Args:
        plan: Plain JSON data, made by the backend, except that the preloader replaces the
            `control_fd` by the descriptor's number that it received with the fork request.
            Keys:

            `control_fd` (int): socket to the runtime; `enter` hands it to PID 1.
            `hostname` (str): name in the new UTS namespace.
            `private` (dict of str to int): folders that are this sandbox's own, the home among
            them, and their modes.
            `network` (str): `"none"` or `"host"`.
            `scratch_bytes`, `scratch_inodes` (int or None): size of the private tmpfs.
            `overlays` (list of str): folders that are writable here, and whose changes go with
            this sandbox; `plain` (bool): whether they show as they are at `private.PLAIN`.
            `covered` (list of str): mounts below a private folder or an overlay, which stay
            visible.
            `seccomp` (str): base64 of a BPF program, `""` for none.
            `rlimits` (dict of name to int): `resource.RLIMIT_<name>` soft and hard limits.

    Raises:
        OSError: A step failed. The caller, in whichever process it finds itself, must tell
            the error and `os._exit(70)`; nothing of it may go on running.
    """
    without_network = plan["network"] == "none"
    userns.enter_own(_NAMESPACES | (syscalls.CLONE_NEWNET if without_network else 0))
    if os.fork() != 0:
        os._exit(0)
    private.lay_private_parts(plan, owner=None, masked=True)
    if without_network:
        private.bring_up_loopback()
    socket.sethostname(plan["hostname"])
    lockdown.lock_down(plan, dies_with_parent=False)
    _leave_init_behind(plan)


def _leave_init_behind(plan: dict[str, Any]) -> None:
    """Fork: the parent stays as PID 1 and never returns, the child goes on as the server."""
    server = os.fork()
    if server == 0:
        os.close(plan["control_fd"])
        os.setsid()
        set_limits(plan["rlimits"])
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # our init alone is hidden
        return
    try:
        init = Init(plan["control_fd"], ends_with_namespace=True, limits=plan["rlimits"])
        init.adopt(0, server)
        init.let_go_of_everything_else()
        init.serve()
    finally:
        os._exit(70)
