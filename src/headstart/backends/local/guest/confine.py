"""Confine a process that was forked from a zygote: called from inside, by the fork itself."""

from __future__ import annotations

from typing import Any

__all__ = ["enter"]


def enter(plan: dict[str, Any]) -> None:
    """Turn the calling process, a fresh fork of a zygote, into a sandbox of its own.

    The caller must be single-threaded and freshly forked, inside the zygote's own
    sandbox. When `enter` returns, it returns in a *different process* (a descendant of the
    caller; every process on the way there has left with `os._exit`), which

    - is in new user, mount, PID, IPC, UTS (and, without network, net) namespaces,
    - has an empty private home, /tmp, /var/tmp, /dev/shm and a fresh /proc,
    - has no capabilities, the sandbox's seccomp filter, and its own cgroup when given one,
    - is the child of a small PID 1, which reaps, relays signals, runs more commands and
      reports over `control_fd` how the process ended (execution id 0). It dies with the
      runtime (end of file on `control_fd`), but not with the zygote.

    stdin, stdout, stderr, the working directory, argv and the environment are left alone:
    the preloader sets them. It must reap its direct child (which exits at once, code 0) and may
    not wait for the server, which is no child of the zygote.

    Args:
        plan: Plain JSON data, made by the backend (`Prepared` passes it through), except
            that the preloader replaces the two `*_fd(s)` values by the descriptor numbers
            it received with the fork request. Keys:

            `control_fd` (int): socket to the runtime; `enter` hands it to PID 1.
            `cgroup_fds` (list of int): open `cgroup.procs` files to join, may be empty.
            `hostname` (str): name in the new UTS namespace.
            `home` (str): absolute path of the private home.
            `network` (str): `"none"` or `"host"`.
            `scratch_bytes`, `scratch_inodes` (int or None): size of the private tmpfs.
            `overlays` (list of str): declared paths that are writable here, and whose
            changes go with this sandbox.
            `seccomp` (str): base64 of a BPF program, `""` for none.
            `rlimits` (dict of name to int): `resource.RLIMIT_<name>` soft and hard limits.

    Raises:
        OSError: A step failed. The caller (still the first process, or PID 1's parent) must
            write the error to stderr and `os._exit(70)`; nothing of it may go on running.
    """
    raise NotImplementedError
