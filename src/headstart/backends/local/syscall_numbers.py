"""System calls that the filter has an opinion on, and their numbers.

Numbers from <asm/unistd_64.h> (x86-64) and <asm-generic/unistd.h> (arm64); None where the
machine never had the call. From 424 on they are the same everywhere.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["CONFINING", "DENIED", "NEWEST_REVIEWED", "NUMBERS", "UNREADABLE", "Machine", "number_of"]

NEWEST_REVIEWED: Final = 469
"""`file_setattr` (Linux 6.17): later calls do not exist for a sandbox until somebody has read what they do."""


class Machine(Enum):
    """Machines whose numbers are known, as `platform.machine()` names them."""

    X86_64 = "x86_64"
    AARCH64 = "aarch64"


CONFINING: Final = (
    # What a program needs to confine itself, and what would let it out of, or deeper into, the kernel.
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "mount_setattr",
    "sethostname",
    "setdomainname",
)

DENIED: Final = (
    # Mounts that confinement never needs.
    "fspick",
    "open_tree_attr",
    # Looking into other processes.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "kcmp",
    "pidfd_getfd",
    "move_pages",
    "migrate_pages",
    # Code in the kernel, and interfaces whose own history of holes is long.
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "create_module",
    "query_module",
    "get_kernel_syms",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    # Keyrings belong to a uid, not to a namespace.
    "keyctl",
    "add_key",
    "request_key",
    # Files by number instead of by path, and watching whole file systems.
    "open_by_handle_at",
    "fanotify_init",
    "fanotify_mark",
    # The machine itself.
    "swapon",
    "swapoff",
    "reboot",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "acct",
    "quotactl",
    "quotactl_fd",
    "syslog",
    "vhangup",
    "iopl",
    "ioperm",
    "modify_ldt",
    # Left over from another age.
    "lookup_dcookie",
    "nfsservctl",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
)

UNREADABLE: Final = ("clone3", "openat2")
"""Calls whose arguments are behind a pointer, where a filter cannot look; each has an older twin."""

NUMBERS: Final[dict[str, tuple[int, int | None]]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "clone": (56, 220),
    "clone3": (435, 435),
    "creat": (85, None),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "nfsservctl": (180, 42),
    "open": (2, None),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "openat2": (437, 437),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setsockopt": (54, 208),
    "settimeofday": (164, 170),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}


def number_of(name: str, machine: Machine) -> int | None:
    """Return the number of the call `name`, or None where `machine` never had it."""
    x86_64, aarch64 = NUMBERS[name]
    return x86_64 if machine is Machine.X86_64 else aarch64
