"""System calls that Python's `os` lacks, through libc's `syscall` (x86-64 and arm64).

Each wrapper raises `OSError` with the call's name, and what it was about, in the message.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct

__all__ = [
    "act_on_files_as",
    "be_a_helper_of",
    "can_scope",
    "clone",
    "close_all_descriptors_except",
    "drop_all_capabilities",
    "forbid_new_privileges",
    "install_seccomp",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_mount_to",
    "open_tree",
    "pivot_root",
    "prctl",
    "scope",
    "scoping",
    "set_title",
    "setns",
    "syncfs",
    "umount",
    "unshare",
]

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

OPEN_TREE_CLONE = 0x1
OPEN_TREE_CLOEXEC = 0x80000
AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_IDMAP = 0x100000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

TMPFS_MAGIC = 0x01021994
PROC_SUPER_MAGIC = 0x9FA0
SYSFS_MAGIC = 0x62656572
CGROUP_SUPER_MAGIC = 0x27E0EB
CGROUP2_SUPER_MAGIC = 0x63677270

_STATFS_BYTES = 256
"""More than the kernel's structure has anywhere."""
SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63

MACHINE = os.uname().machine
_NR_CLONE, _NR_PIVOT_ROOT, _NR_SETNS, _NR_CAPSET = {
    "x86_64": (56, 155, 308, 126),
    "aarch64": (220, 41, 268, 91),
}.get(MACHINE, (-1, -1, -1, -1))
_NR_LANDLOCK_CREATE, _NR_LANDLOCK_RESTRICT = 444, 446
_SCOPES_SINCE = 6
SCOPE_SOCKETS, SCOPE_SIGNALS = 0x1, 0x2
_NR_OPEN_TREE, _NR_MOVE_MOUNT, _NR_CLOSE_RANGE, _NR_MOUNT_SETATTR = 428, 429, 436, 442  # the same everywhere

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(what: str, number: int, *arguments: object) -> int:
    if number < 0:
        raise OSError(38, f"{what}: not known on {MACHINE}")
    return _check(_syscall(ctypes.c_long(number), *arguments), what)


def clone(flags: int) -> int:
    """Fork with namespace flags; return 0 in the child, its pid in the parent.

    Only in a single-threaded process: Python's own hooks around `fork` do not run.
    """
    if MACHINE == "aarch64":
        return _call("clone", _NR_CLONE, ctypes.c_ulong(flags | signal.SIGCHLD), None, None, ctypes.c_ulong(0), None)
    return _call("clone", _NR_CLONE, ctypes.c_ulong(flags | signal.SIGCHLD), None, None, None, ctypes.c_ulong(0))


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare({flags:#x})")


def setns(descriptor: int, kind: int) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    _check(result, f"mount({kind or source} on {target})")


def umount(target: str) -> None:
    """Take a mount away now, and for good once nobody uses it any more."""
    _check(_libc.umount2(os.fsencode(target), ctypes.c_int(MNT_DETACH)), f"umount({target})")


def pivot_root(new_root: str, put_old: str) -> None:
    _call(f"pivot_root({new_root})", _NR_PIVOT_ROOT, os.fsencode(new_root), os.fsencode(put_old))


def open_tree(path: str, flags: int) -> int:
    """Return a descriptor of (a detached copy of) the mount at `path`."""
    return _call(
        f"open_tree({path})",
        _NR_OPEN_TREE,
        ctypes.c_int(AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(flags | OPEN_TREE_CLOEXEC),
    )


def mount_setattr(
    descriptor: int, attributes: int, *, without: int = 0, userns: int = 0, recursive: bool = True
) -> None:
    """Set attributes on a mount (and clear those of `without`), and on all mounts below it.

    `userns` is a descriptor for id-mapping.
    """
    request = struct.pack("=QQQQ", attributes, without, 0, userns)
    _call(
        f"mount_setattr({attributes:#x})",
        _NR_MOUNT_SETATTR,
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_uint(AT_EMPTY_PATH | (AT_RECURSIVE if recursive else 0)),
        request,
        ctypes.c_size_t(len(request)),
    )


def move_mount(descriptor: int, target: str) -> None:
    """Attach a detached mount at `target`."""
    _call(
        f"move_mount({target})",
        _NR_MOVE_MOUNT,
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_int(AT_FDCWD),
        os.fsencode(target),
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH),
    )


def move_mount_to(descriptor: int, place: int) -> None:
    """Attach a detached mount at what is open as `place`."""
    _call(
        "move_mount",
        _NR_MOVE_MOUNT,
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_int(place),
        b"",
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH),
    )


def filesystem_of(descriptor: int) -> int:
    """Return the magic number of the filesystem that something open lies on, as `statfs(2)` lists them."""
    facts = ctypes.create_string_buffer(_STATFS_BYTES)
    _check(_libc.fstatfs(descriptor, facts), "fstatfs")
    return ctypes.c_long.from_buffer(facts).value


def syncfs(descriptor: int) -> None:
    """Return when all that was written to the filesystem of something open is on its disk."""
    _check(_libc.syncfs(ctypes.c_int(descriptor)), "syncfs")


def prctl(option: int, argument: int = 0, more: int = 0) -> int:
    return _check(_prctl(option, argument, more, 0, 0), f"prctl({option})")


def act_on_files_as(uid: int, gid: int) -> None:
    """Have files looked up as if this process were another user, without what root may."""
    _libc.setfsgid(ctypes.c_uint(gid))
    _libc.setfsuid(ctypes.c_uint(uid))


def be_a_helper_of(parent: int, keep: list[int]) -> None:
    """As a fresh fork of `parent`: die with it, and hold none of its descriptors but `keep` and 0, 1, 2.

    A helper that kept the other end of a channel open would hide from the peer that
    `parent` has died.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has died already
        os._exit(70)
    signal.set_wakeup_fd(-1)  # Python would write to the number, whatever it is by then
    close_all_descriptors_except([0, 1, 2, *keep])


def forbid_new_privileges() -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def scope(what: int) -> bool:
    """Cut this process and what it starts off from others' abstract Unix sockets or signals (Landlock, Linux 6.12).

    Returns whether the kernel can. Needs no_new_privs.
    """
    if not can_scope():
        return False
    rules = scoping(what)
    ruleset = _call("landlock", _NR_LANDLOCK_CREATE, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint(0))
    try:
        _call("landlock", _NR_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return True


def scoping(what: int) -> bytes:
    """Return Landlock's rules for `scope`."""
    return struct.pack("=QQQ", 0, 0, what)


def can_scope() -> bool:
    """Whether `scope` can do something here."""
    return _syscall(ctypes.c_long(_NR_LANDLOCK_CREATE), None, ctypes.c_size_t(0), ctypes.c_uint(1)) >= _SCOPES_SINCE


def set_title(title: str) -> None:
    """Let `ps` show `title` instead of this process's arguments, which tell paths."""
    with open("/proc/self/stat", "rb") as facts:
        fields = facts.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if 0 < start < end:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def drop_all_capabilities() -> None:
    """Empty the bounding, ambient, effective, permitted and inheritable sets."""
    for capability in range(LAST_CAPABILITY):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            break  # past the kernel's last one, or (ordinary user) not allowed and not needed
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", _NR_CAPSET, header, b"\0" * 24)


def install_seccomp(program: bytes) -> None:
    """Install a BPF program (8 bytes per instruction) for this process and what it starts."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)), struct.calcsize("@HxxxxxxP")
    )
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def close_all_descriptors_except(keep: list[int]) -> None:
    """Close every descriptor that is not in `keep`."""
    lowest = 0
    for descriptor in [*sorted(set(keep)), 2147483647]:
        if lowest < descriptor:
            _close_range(lowest, descriptor - 1)
        lowest = descriptor + 1


def _close_range(first: int, last: int) -> None:
    try:
        _call("close_range", _NR_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0))
    except OSError:  # before Linux 5.9
        os.closerange(first, min(last + 1, os.sysconf("SC_OPEN_MAX")))
