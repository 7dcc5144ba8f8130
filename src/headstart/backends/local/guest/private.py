"""The parts of a sandbox's file tree that are its own: laid over the template's tree.

One tmpfs, with a size and a number of inodes, carries home, /tmp, /var/tmp, /dev/shm, the
folders that lead to the user's mounts, and the changes to overlay mounts; its pages count as
the sandbox's memory. The mount that all of them were bound from stays, closed to everybody:
taking a mount away makes the kernel wait for every CPU (up to 11 ms when they are busy),
adding one does not.

A zygote's fork does the same, in namespaces nested in the zygote's: the new mounts cover the
zygote's own, which it cannot uncover, having no capabilities left. Its overlays do not lie on
the zygote's but on the same plain folders, which a zygote's tree has a second time, at
`PLAIN`: the kernel stacks two overlays at most, and a fork sees what a cold start sees.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from typing import Any

from headstart.backends.local.guest import userns
from headstart.backends.spawner.guest import syscalls

__all__ = [
    "EMPTY",
    "HOST_PROC",
    "PLAIN",
    "SCRATCH",
    "bring_up_loopback",
    "hide_host_proc",
    "lay_private_parts",
    "overlay",
]

SCRATCH = "/.headstart/scratch"
HOST_PROC = "/.headstart/proc"
EMPTY = "/.headstart/empty"
PLAIN = "/.headstart/plain"
"""Where a zygote's tree has each folder that its forks lay overlays on, by its place in the plan's `overlays`."""

_MASKED_FILES = ("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug")
_MASKED_FOLDERS = ("/proc/acpi", "/proc/asound", "/proc/scsi", "/proc/fs")

_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def lay_private_parts(plan: dict[str, Any], *, owner: tuple[int, int] | None, masked: bool) -> None:
    """Mount everything private in this process's mount namespace.

    Args:
        plan: `private` (folder → mode; they start empty), `scratch_bytes`, `scratch_inodes`,
            `overlays`, `plain` (whether `PLAIN` has them, too), `covered` (mounts below a
            private folder or an overlay, which stay visible), as in `confine.enter`.
        owner: Who owns the private folders, if not whoever mounts.
        masked: Hide what /proc tells about the machine, and `PLAIN`. Not for a zygote: its
            forks could then not mount a /proc of their own.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    kept = {target: syscalls.open_tree(target, _COPY) for target in plan["covered"] if os.path.exists(target)}
    syscalls.mount("headstart", SCRATCH, "tmpfs", flags, _tmpfs_options(plan))
    for number, (target, mode) in enumerate(plan["private"].items()):
        folder = _own_folder(f"{SCRATCH}/{number}", mode, owner)
        syscalls.mount(folder, target, None, syscalls.MS_BIND)
    for target in sorted({*kept, *plan["overlays"]}, key=lambda path: path.count("/")):
        if target in kept:
            _put_back(kept[target], target, owner)
        if target in plan["overlays"]:
            number = plan["overlays"].index(target)
            overlay(f"{PLAIN}/{number}" if plan["plain"] else target, target, f"{SCRATCH}/o{number}", owner)
    syscalls.mount("proc", "/proc", "proc", flags | syscalls.MS_NOEXEC)
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666")
    if masked:
        _mask()
        if plan["plain"]:
            syscalls.mount(EMPTY, PLAIN, None, syscalls.MS_BIND)


def hide_host_proc() -> None:
    """Cover the host's /proc for good, once the sandbox's own is mounted."""
    syscalls.mount(EMPTY, HOST_PROC, None, syscalls.MS_BIND)


def _tmpfs_options(plan: dict[str, Any]) -> str:
    options = ["mode=0"]
    if plan["scratch_bytes"] is not None:
        options.append("size={}".format(plan["scratch_bytes"]))
    if plan["scratch_inodes"] is not None:
        options.append("nr_inodes={}".format(plan["scratch_inodes"]))
    return ",".join(options)


def _own_folder(path: str, mode: int, owner: tuple[int, int] | None) -> str:
    os.mkdir(path)
    if owner is not None:
        os.chown(path, *owner)
    os.chmod(path, mode)
    return path


def _put_back(mount: int, target: str, owner: tuple[int, int] | None) -> None:
    """Attach a mount again that a private folder has covered; the way to it is as private as that folder."""
    facts = os.fstat(mount)
    _make_way(os.path.dirname(target), owner)
    if stat.S_ISDIR(facts.st_mode):
        _make_way(target, owner)
    elif not os.path.lexists(target):
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.move_mount(mount, target)
    os.close(mount)


def _make_way(folder: str, owner: tuple[int, int] | None) -> None:
    if not os.path.isdir(folder):
        _make_way(os.path.dirname(folder), owner)
        _own_folder(folder, 0o755, owner)


def overlay(lower: str, target: str, folder: str, owner: tuple[int, int] | None) -> None:
    """Mount a folder, made writable; what is in it stays as it is.

    Args:
        lower: The folder.
        target: Where to mount it.
        folder: Is made, for what changes.
        owner: Who owns the top of it if, its ids not being mapped, it is nobody's inside.

    Raises:
        OSError: This kernel cannot do it, or not on this file system.
    """
    os.mkdir(folder)
    facts = os.stat(lower)
    theirs = (facts.st_uid, facts.st_gid) if facts.st_uid >= userns.FIRST_ID else owner
    _own_folder(folder + "/upper", facts.st_mode & 0o7777, theirs if owner is not None else None)
    os.mkdir(folder + "/work")
    layers = {"lowerdir": lower, "upperdir": folder + "/upper", "workdir": folder + "/work"}
    options = [f"{name}={_escaped(path)}" for name, path in layers.items()]
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("overlay", target, "overlay", flags, ",".join([*options, "userxattr"]))


def _escaped(path: str) -> str:
    """Write a path as overlayfs reads it in its options."""
    return "".join("\\" + letter if letter in "\\:," else letter for letter in path)


def _mask() -> None:
    for path in _MASKED_FILES:
        if os.path.exists(path):
            syscalls.mount("/dev/null", path, None, syscalls.MS_BIND)
    for path in _MASKED_FOLDERS:
        if os.path.isdir(path):
            syscalls.mount(EMPTY, path, None, syscalls.MS_BIND)


def bring_up_loopback() -> None:
    """Give a new network namespace its 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(anything, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
