"""The last steps before anything foreign runs: no privileges, no way back to any."""

from __future__ import annotations

import base64
import os
import signal
from typing import Any

from headstart.backends.spawner.guest import syscalls

__all__ = ["become", "lock_down"]


def become(uid: int, gid: int) -> None:
    """Change to a user without groups; for who was root outside."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def lock_down(plan: dict[str, Any], *, dies_with_parent: bool, scopes: int) -> None:
    """Drop all capabilities, install the plan's `seccomp` filter and `scopes`, and hide this process from ptrace.

    Order matters: changing ids clears the parent-death signal and the dumpable flag, so
    both are set here, after it.
    """
    syscalls.forbid_new_privileges()
    syscalls.drop_all_capabilities()
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    if dies_with_parent:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if scopes:
        syscalls.scope(scopes)
    if plan["seccomp"]:
        syscalls.install_seccomp(base64.b64decode(plan["seccomp"]))
