"""The parts of a sandbox's file tree that are its own: laid over the template's tree.

One tmpfs, with a size and a number of inodes, carries home, /tmp, /var/tmp, /dev/shm and
the changes to overlay mounts; its pages count as the sandbox's memory. The mount that
all of them were bound from stays, closed to everybody: taking a mount away makes the
kernel wait for every CPU (up to 11 ms when they are busy), adding one does not.

A zygote's fork does the same, in namespaces nested in the zygote's: the new mounts cover the
zygote's own, which it cannot uncover, having no capabilities left.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from typing import Any

from headstart.backends.spawner.guest import syscalls

__all__ = ["EMPTY", "HOST_PROC", "SCRATCH", "bring_up_loopback", "lay_private_parts"]

SCRATCH = "/.headstart/scratch"
HOST_PROC = "/.headstart/proc"
EMPTY = "/.headstart/empty"

_MASKED_FILES = ("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug")
_MASKED_FOLDERS = ("/proc/acpi", "/proc/asound", "/proc/scsi", "/proc/fs")

_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def lay_private_parts(plan: dict[str, Any], *, owner: tuple[int, int] | None, masked: bool) -> None:
    """Mount everything private in this process's mount namespace.

    Args:
        plan: `home`, `scratch_bytes`, `scratch_inodes`, `overlays`, `covered` (mounts below
            a private folder or an overlay, which stay visible), as in `confine.enter`.
        owner: Who owns the private folders, if not whoever mounts.
        masked: Hide what /proc tells about the machine. Not for a zygote: its forks could
            then not mount a /proc of their own.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    kept = {target: syscalls.open_tree(target, _COPY) for target in plan["covered"] if os.path.exists(target)}
    syscalls.mount("headstart", SCRATCH, "tmpfs", flags, _tmpfs_options(plan))
    private = {plan["home"]: 0o700, "/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777}
    for number, (target, mode) in enumerate(private.items()):
        folder = _own_folder(f"{SCRATCH}/{number}", mode, owner)
        syscalls.mount(folder, target, None, syscalls.MS_BIND)
    for number, target in enumerate(sorted({*kept, *plan["overlays"]}, key=lambda path: path.count("/"))):
        if target in kept:
            _put_back(kept[target], target)
        if target in plan["overlays"]:
            _overlay(target, f"{SCRATCH}/o{number}", owner)
    syscalls.mount("proc", "/proc", "proc", flags | syscalls.MS_NOEXEC)
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666")
    if masked:
        _mask()


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


def _put_back(mount: int, target: str) -> None:
    """Attach a mount again that a private folder has covered."""
    facts = os.fstat(mount)
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if stat.S_ISDIR(facts.st_mode):
        os.makedirs(target, mode=0o755, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    syscalls.move_mount(mount, target)
    os.close(mount)


def _overlay(target: str, folder: str, owner: tuple[int, int] | None) -> None:
    """Make a mount point writable; its own files stay as they are."""
    os.mkdir(folder)
    facts = os.stat(target)
    _own_folder(folder + "/upper", facts.st_mode & 0o7777, (facts.st_uid, facts.st_gid) if owner is not None else None)
    os.mkdir(folder + "/work")
    options = f"lowerdir={target},upperdir={folder}/upper,workdir={folder}/work,userxattr"
    syscalls.mount("overlay", target, "overlay", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


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
