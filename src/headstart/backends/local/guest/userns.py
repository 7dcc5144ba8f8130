"""User namespaces and their id maps.

Three uses:

- A root service makes one namespace for all its sandboxes: 65,536 ids from a range that
  nobody else uses. Inside, the sandbox is uid 1000; outside it is nobody at all.
- A mount can show files as owned by somebody else (an id-mapped mount). The map is
  written as a user namespace in which nothing ever runs: on disk → as seen.
- An ordinary user becomes "root" of a namespace in which only it exists, and may then
  mount; each sandbox gets a namespace of its own below that, so that it has no power over
  the mounts, and the kernel counts its processes separately.
"""

from __future__ import annotations

import os
import signal

from headstart.backends.spawner.guest import syscalls

__all__ = [
    "FIRST_ID",
    "SANDBOX_ID",
    "become_own",
    "become_root_of_own",
    "enter_own",
    "make",
    "map_all_but_the_sandboxs",
    "map_owner",
    "map_shift",
]

SANDBOX_ID = 1000
"""Uid and gid of every sandbox, as it sees itself."""

FIRST_ID = 0x7000_0000
"""The host's ids from here on stand for a sandbox's 0 …; beyond what systemd and subuid hand out."""

_COUNT = 65_536


def map_shift() -> list[tuple[int, int, int]]:
    """Every id of a sandbox is the host's id plus `FIRST_ID`."""
    return [(0, FIRST_ID, _COUNT)]


def map_owner(owner: int) -> list[tuple[int, int, int]]:
    """As `map_shift`, but `owner` and the sandbox's id trade places: the sandbox owns what `owner` does."""
    if owner == SANDBOX_ID or owner >= _COUNT:
        return map_shift()
    low, high = sorted((owner, SANDBOX_ID))
    extents = [
        (0, FIRST_ID, low),
        (low, FIRST_ID + high, 1),
        (low + 1, FIRST_ID + low + 1, high - low - 1),
        (high, FIRST_ID + low, 1),
        (high + 1, FIRST_ID + high + 1, _COUNT - high - 1),
    ]
    return [extent for extent in extents if extent[2] > 0]


def map_all_but_the_sandboxs() -> list[tuple[int, int, int]]:
    """As `map_shift`, but what the host's user of the sandbox's number owns is nobody's."""
    above = SANDBOX_ID + 1
    return [(0, FIRST_ID, SANDBOX_ID), (above, FIRST_ID + above, _COUNT - above)]


def make(uids: list[tuple[int, int, int]], gids: list[tuple[int, int, int]]) -> int:
    """Return a descriptor of a new user namespace with these maps (inside, outside, count); root only."""
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    pid = syscalls.clone(syscalls.CLONE_NEWUSER)
    if pid == 0:
        try:
            syscalls.be_a_helper_of(parent, [read_end])
            os.read(read_end, 1)
        finally:
            os._exit(0)
    try:
        _write_map(f"/proc/{pid}/uid_map", uids)
        _write_map(f"/proc/{pid}/gid_map", gids)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)


def become_root_of_own() -> None:
    """Move this process, an ordinary user's, to user and mount namespaces where it is uid 0 and may mount."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
    _write_own_maps(inside=0, uid=uid, gid=gid)


def enter_own() -> None:
    """Move this process to a user namespace of its own, as the sandbox's id."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _write_own_maps(inside=SANDBOX_ID, uid=uid, gid=gid)


def become_own() -> None:
    """As a fork of a sandbox's process into a user namespace of its own, take the sandbox's id there."""
    _write_own_maps(inside=SANDBOX_ID, uid=SANDBOX_ID, gid=SANDBOX_ID)


def _write_own_maps(*, inside: int, uid: int, gid: int) -> None:
    _write("/proc/self/setgroups", "deny")
    _write_map("/proc/self/uid_map", [(inside, uid, 1)])
    _write_map("/proc/self/gid_map", [(inside, gid, 1)])


def _write_map(path: str, extents: list[tuple[int, int, int]]) -> None:
    _write(path, "".join("{} {} {}\n".format(*extent) for extent in extents))


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
