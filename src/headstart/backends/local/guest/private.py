"""The parts of a sandbox's file tree that are its own: laid over the template's tree.

One tmpfs, with a size and a number of inodes, carries home, /tmp, /var/tmp, /dev/shm, the
folders that lead to the user's mounts, and the changes to overlay mounts; its pages count as
the sandbox's memory. The mount that all of them were bound from stays, in a folder that is
closed to everybody: taking a mount away makes the kernel wait for every CPU (up to 11 ms when
they are busy), adding one does not.

A store's sandbox has a folder of the store there instead, which is on disk and outlives it.

In it, what a sandbox writes goes to a *layer*, a folder of its own: `w/upper/N` for the Nth
private folder, `oN/upper` for the Nth overlay. A sandbox begins with one. A checkpoint seals
it and stacks an empty one on top (`layers`); the private folders of all its layers are then
put together by one more overlay, at `STATE`. In a store they are from the beginning, and where a
template has something that they begin with: a layer below all others, on the host's disk, at `BASE`.
A layer that is whole is told from one that was being made when somebody killed us by its mode.

A zygote's fork does the same, in namespaces nested in the zygote's: the new mounts cover the
zygote's own, which it cannot uncover, having no capabilities left. Its overlays do not lie on
the zygote's but on the same plain folders, which a zygote's tree has a second time, at
`PLAIN`: the kernel stacks two overlays at most, and a fork sees what a cold start sees.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Mapping
from typing import Any

from headstart.backends.local.guest import userns
from headstart.backends.local.guest.copying import delete_tree
from headstart.backends.spawner.guest import syscalls

__all__ = [
    "BASE",
    "CLOSED",
    "EMPTY",
    "HOST_PROC",
    "NEXT",
    "OWN",
    "OWN_FILES",
    "PLAIN",
    "PREVIOUS",
    "SCRATCH",
    "STATE",
    "WHOLE",
    "bring_up_loopback",
    "escaped",
    "hide_host_proc",
    "lay_private_parts",
    "overlay",
    "scratch_in",
]

CLOSED = "/.headstart/closed"
"""A folder of the read-only tree that a sandbox cannot look into."""

BASE = CLOSED + "/base"
"""Where a tree has what its private folders begin with, if anything: the Nth in `N`."""

SCRATCH = CLOSED + "/scratch"
STATE = CLOSED + "/state"
NEXT = CLOSED + "/next"
PREVIOUS = CLOSED + "/previous"
HOST_PROC = "/.headstart/proc"
EMPTY = "/.headstart/empty"
OWN = CLOSED + "/own"
"""Where the files are that tell a sandbox who it is; they are bound to where those belong."""

OWN_FILES = ("/etc/hostname", "/etc/hosts", "/etc/machine-id")
"""Files of a tree in whose place a sandbox may have one of its own."""

PLAIN = "/.headstart/plain"
"""Where a zygote's tree has each folder that its forks lay overlays on, by its place in the plan's `overlays`."""

WHOLE = 0o755
"""The mode of a layer that has all its parts."""

_MASKED_FILES = ("/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug")
_MASKED_FOLDERS = ("/proc/acpi", "/proc/asound", "/proc/scsi", "/proc/fs")

_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 0x1


def lay_private_parts(
    plan: dict[str, Any],
    *,
    owner: tuple[int, int] | None,
    masked: bool,
    scratch: int | None = None,
    carried: Mapping[str, int] | None = None,
) -> None:
    """Mount everything private in this process's mount namespace.

    Args:
        plan: `private` (folder → mode; they start empty), `scratch_bytes`, `scratch_inodes`,
            `overlays`, `plain` (whether `PLAIN` has them, too), `covered` (mounts below a
            private folder or an overlay, which stay visible), `layers` (names, the lowest first;
            the last one is new unless the sandbox `goes_on` with it), `store` (whose layers they are,
            or None), `based` (whether there is something at `BASE`), as in `confine.enter`; `own` (path → text: files
            that tell it who it is, among `OWN_FILES` or in /proc).
        owner: Who owns the private folders, if not whoever mounts.
        masked: Hide what /proc tells about the machine, and `PLAIN`. Not for a zygote: its
            forks could then not mount a /proc of their own.
        scratch: A detached mount of the folder that has the lower layers; a new tmpfs is made if there are none.
        carried: Detached mounts, by where they belong, of /proc, /dev/pts and `OWN_FILES`; new ones are made unless given.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    *below, top = plan["layers"]
    kept = {target: syscalls.open_tree(target, _COPY) for target in plan["covered"] if os.path.exists(target)}
    if scratch is None:
        syscalls.mount("headstart", SCRATCH, "tmpfs", flags, _tmpfs_options(plan))
    else:
        syscalls.move_mount(scratch, SCRATCH)
    os.chdir(SCRATCH)  # so that many layers' names fit into a mount's options
    if not plan["goes_on"]:
        os.mkdir(top, 0o700)
    folders = _private_folders(plan, below, top, owner)
    for target, folder in folders.items():
        syscalls.mount(folder, target, None, syscalls.MS_BIND)
    for target in sorted({*kept, *plan["overlays"]}, key=lambda path: path.count("/")):
        if target in kept:
            _put_back(kept[target], target, owner, make=not below or plan["goes_on"])
        if target in plan["overlays"]:
            _lay_overlay(target, plan, owner)
    os.chmod(top, WHOLE)
    os.chdir("/")
    if carried is None:
        _mount_kernels_own(flags)
        _show_own(plan["own"], flags)
        if masked:
            _mask(plan)
    else:
        for target, mount in carried.items():
            syscalls.move_mount(mount, target)


def _mount_kernels_own(flags: int) -> None:
    syscalls.mount("proc", "/proc", "proc", flags | syscalls.MS_NOEXEC)
    syscalls.mount("devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666")


def _show_own(files: dict[str, str], flags: int) -> None:
    """Show files of the sandbox's own, which it cannot write, in the place of what is there."""
    if not files:
        return
    syscalls.mount("headstart", OWN, "tmpfs", flags | syscalls.MS_NOEXEC, "mode=0,size=64k,nr_inodes=16")
    sources = {path: f"{OWN}/{number}" for number, path in enumerate(files)}
    for path, source in sources.items():
        descriptor = os.open(source, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444)
        os.fchmod(descriptor, 0o444)
        os.write(descriptor, files[path].encode())
        os.close(descriptor)
    mount = syscalls.open_tree(OWN, 0)
    syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_RDONLY, recursive=False)
    os.close(mount)
    for path, source in sources.items():
        syscalls.mount(source, path, None, syscalls.MS_BIND)


def _lay_overlay(target: str, plan: dict[str, Any], owner: tuple[int, int] | None) -> None:
    *below, top = plan["layers"]
    number = plan["overlays"].index(target)
    lower = [f"{name}/o{number}/upper" for name in reversed(below)]
    lower.append(f"{PLAIN}/{number}" if plan["plain"] else target)
    overlay(lower, target, f"{top}/o{number}", owner, **_kind_of_layer(plan))


def _kind_of_layer(plan: dict[str, Any]) -> dict[str, bool]:
    return {"goes_on": plan["goes_on"], "on_disk": plan["store"] is not None}


def scratch_in(mounts: int) -> int:
    """Enter a sandbox's mount namespace, and return a detached mount of the tmpfs that has its layers."""
    syscalls.setns(mounts, syscalls.CLONE_NEWNS)
    return syscalls.open_tree(SCRATCH, syscalls.OPEN_TREE_CLONE)


def _private_folders(plan: dict[str, Any], below: list[str], top: str, owner: tuple[int, int] | None) -> dict[str, str]:
    """Return what to mount at each private folder: empty folders, or what the layers have there."""
    private: dict[str, int] = plan["private"]
    home = f"{top}/w/upper"
    lower = [f"{name}/w/upper" for name in reversed(below)] + ([BASE] if plan["based"] else [])
    if lower or plan["store"] is not None:
        home = STATE
        overlay(lower or [EMPTY], STATE, f"{top}/w", owner, **_kind_of_layer(plan))
    else:
        os.makedirs(home)
    folders = {target: f"{home}/{number}" for number, target in enumerate(private)}
    if not below and not plan["goes_on"]:
        for target, folder in folders.items():
            if not os.path.exists(folder):
                _own_folder(folder, private[target], owner)
    return folders


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


def _own_folder(path: str, mode: int, owner: tuple[int, int] | None) -> None:
    os.mkdir(path)
    if owner is not None:
        os.chown(path, *owner)
    os.chmod(path, mode)


def _put_back(mount: int, target: str, owner: tuple[int, int] | None, *, make: bool) -> None:
    """Attach a mount again that a private folder has covered; the way to it is as private as that folder.

    A sandbox may have put anything on that way: no link on it is followed.

    Raises:
        OSError: Not `make`, and the way is not what it was.
    """
    is_folder = stat.S_ISDIR(os.fstat(mount).st_mode)
    try:
        place = _walk(target, owner, make=make, to_folder=is_folder)
    except OSError as error:
        told = "what leads to the mount there was moved or replaced; put it back"
        raise OSError(error.errno, f"{target}: {told} ({error.strerror})") from error
    syscalls.move_mount_to(mount, place)
    os.close(place)
    os.close(mount)


def _walk(target: str, owner: tuple[int, int] | None, *, make: bool, to_folder: bool) -> int:
    """Return a descriptor of what is at a path, reached without following a link."""
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, last = target.strip("/").split("/")
    for name in folders:
        here = _step(here, name, owner, make=make, to_folder=True)
    return _step(here, last, owner, make=make, to_folder=to_folder)


def _step(folder: int, name: str, owner: tuple[int, int] | None, *, make: bool, to_folder: bool) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if to_folder else 0)
    try:
        try:
            there = os.open(name, flags, dir_fd=folder)
        except FileNotFoundError:
            if not make:
                raise
            if to_folder:
                os.mkdir(name, 0o755, dir_fd=folder)
                if owner is not None:
                    os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644, dir_fd=folder))
            there = os.open(name, flags, dir_fd=folder)
    finally:
        os.close(folder)
    if stat.S_ISLNK(os.fstat(there).st_mode) or (not to_folder and not stat.S_ISREG(os.fstat(there).st_mode)):
        os.close(there)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return there


def overlay(
    lower: list[str],
    target: str,
    folder: str,
    owner: tuple[int, int] | None,
    *,
    goes_on: bool = False,
    on_disk: bool = False,
) -> None:
    """Mount folders on top of each other, made writable; what is in them stays as it is.

    Where root mounts, a folder from below can be renamed; else that fails with EXDEV, and `mv` copies.

    Args:
        lower: The folders, the topmost first.
        target: Where to mount them.
        folder: For what changes.
        owner: Who owns the top of it if, its ids not being mapped, it is nobody's inside; None: whoever mounts.
        goes_on: The folder is there, with what has changed before; else it is made.
        on_disk: It is on a disk, to which nothing is to be written only because a mount goes or a program asks for it.

    Raises:
        OSError: This kernel cannot do it, or not on this file system, or that is full.
    """
    if goes_on:
        delete_tree(folder + "/work/work/incompat")  # else what was not on the disk yet when it went may not be used
    else:
        _make_upper(lower, folder, owner)
    layers = {
        "lowerdir": ":".join(escaped(path) for path in lower),
        "upperdir": escaped(folder + "/upper"),
        "workdir": escaped(folder + "/work"),
    }
    options = [f"{name}={path}" for name, path in layers.items()]
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    options.append("redirect_dir=on" if owner is not None else "userxattr")
    if on_disk:
        options.append("volatile")
    syscalls.mount("overlay", target, "overlay", flags, ",".join(options))
    if os.statvfs(target).f_flag & os.ST_RDONLY:  # what the kernel does if there is no room for what it needs itself
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)


def _make_upper(lower: list[str], folder: str, owner: tuple[int, int] | None) -> None:
    os.mkdir(folder)
    facts = os.stat(lower[0])
    theirs = (facts.st_uid, facts.st_gid) if facts.st_uid >= userns.FIRST_ID or len(lower) > 1 else owner
    _own_folder(folder + "/upper", facts.st_mode & 0o7777, theirs if owner is not None else None)
    _dress(lower[0], folder + "/upper", facts)
    os.mkdir(folder + "/work")


def _dress(source: str, target: str, facts: os.stat_result) -> None:
    """Give the top of a layer what the top of the one below has: overlayfs shows the topmost one's."""
    for name in os.listxattr(source):
        if name.startswith(("user.", "system.posix_acl")) and not name.startswith("user.overlay."):
            try:
                os.setxattr(target, name, os.getxattr(source, name))
            except OSError as error:
                if error.errno != errno.ENOTSUP:  # a tmpfs of before Linux 6.6 has none
                    raise
    os.utime(target, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def escaped(path: str) -> str:
    """Write a path as overlayfs reads it in its options."""
    return "".join("\\" + letter if letter in "\\:," else letter for letter in path)


def _mask(plan: dict[str, Any]) -> None:
    for path in _MASKED_FILES:
        if os.path.exists(path):
            syscalls.mount("/dev/null", path, None, syscalls.MS_BIND)
    for path in _MASKED_FOLDERS:
        if os.path.isdir(path):
            syscalls.mount(EMPTY, path, None, syscalls.MS_BIND)
    if plan["plain"]:
        syscalls.mount(EMPTY, PLAIN, None, syscalls.MS_BIND)


def bring_up_loopback() -> None:
    """Give a new network namespace its 127.0.0.1 and ::1."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(anything, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(anything, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))
