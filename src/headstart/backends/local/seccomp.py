"""Which system calls a sandboxed program may make, as a classic BPF filter.

The idea: like container runtimes, allow what programs need and deny what reaches the
kernel's administrative and rarely audited parts. The list is one of denials, because
what Python, Node, git and a browser call together is most of the table, and a forgotten
entry in a list of permissions breaks a server in a way that nobody can read. Two things
keep that choice honest. Calls newer than the table we reviewed answer ENOSYS, so a future
kernel adds nothing by itself; programs take that answer as "old kernel" and fall back.
And foreign ABIs (32-bit, x32), whose numbers mean other calls, kill the process.

The filter is one layer: it runs under no_new_privs, without capabilities and in its own
namespaces, most of which would refuse the same calls. Its own weight is in what an
*unprivileged* process may ask of the kernel: user namespaces (a fresh set of
capabilities), bpf, io_uring, perf, userfaultfd, keyrings (not namespaced), odd socket
families, and pushing characters into a terminal.

Files that would run as their owner are refused too: where a sandbox writes through to the
host, its files may belong to root there, and a setuid bit on one would hand root to
whoever can run it outside.

`clone3` and `openat2` hide their flags behind a pointer that a filter cannot follow, so
they answer ENOSYS; programs then use `clone` and `openat`, whose flags are in registers. Arguments are
compared by their lower 32 bits only, exactly as much as the kernel reads of them: a
64-bit comparison could be bypassed by setting a high bit.

Layout: every rule is a comparison and a block that ends in a return; so there are no
labels and no long jumps. The kernel caches numbers that are always allowed, which makes
the length of the list irrelevant for them. Of the rest, `openat` is frequent and goes first.

Rejected: libseccomp (a C library for what is one page here), and a list of permissions
(see above).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from headstart.backends.local.syscall_numbers import (
    CONFINING,
    DENIED,
    NEWEST_REVIEWED,
    UNREADABLE,
    Machine,
    number_of,
)
from headstart.errors import BackendUnavailable

__all__ = ["SeccompProfile", "build_filter"]


class SeccompProfile(Enum):
    """For whom a filter is."""

    SANDBOX = "sandbox"
    """A tool server and whatever it starts."""
    ZYGOTE = "zygote"
    """A preloader: as SANDBOX, but it may make and enter namespaces and mount in them,
    because its forks confine themselves. They add SANDBOX before they become a server."""


Instruction = tuple[int, int, int, int]
"""`struct sock_filter`: code, jump if true, jump if false, constant."""

Rule = list[Instruction]

# Opcodes of <linux/bpf_common.h>, as far as they are used.
LOAD_WORD: Final = 0x20
AND: Final = 0x54
JUMP_EQUAL: Final = 0x15
JUMP_GREATER_EQUAL: Final = 0x35
JUMP_ANY_BIT: Final = 0x45
RETURN: Final = 0x06

ALLOW: Final = 0x7FFF_0000
KILL_PROCESS: Final = 0x8000_0000
ERRNO: Final = 0x0005_0000

# Offsets in `struct seccomp_data`; the lower half of an argument comes first (little endian).
NUMBER_AT: Final = 0
ARCH_AT: Final = 4
ARGUMENTS_AT: Final = 16

AUDIT_ARCH: Final = {Machine.X86_64: 0xC000_003E, Machine.AARCH64: 0xC000_00B7}
X32_BIT: Final = 0x4000_0000
NO_CALL: Final = 0xFFFF_FFFF  # syscall(-1), by which programs ask what "no such call" looks like

NAMESPACE_FLAGS: Final = 0x7E02_0000  # NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
PERSONALITIES: Final = (0x0, 0x8, 0x2_0000, 0x2_0008, 0xFFFF_FFFF)  # native, LINUX32, UNAME26, both, "tell me"
TERMINAL_IOCTLS: Final = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
OWNER_BITS: Final = 0o6000  # setuid, setgid
CREATING_FLAGS: Final = 0o20000100  # O_CREAT, __O_TMPFILE
DEVICE_TYPES: Final = (0o020000, 0o060000)  # character, block
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NETLINK_ROUTE: Final = 0
SOCK_TYPE_MASK: Final = 0xF
SOL_SOCKET, SO_LINGER = 1, 13
RAW_TYPES: Final = (3, 10)  # SOCK_RAW, SOCK_PACKET
UNGUARDED_TYPES: Final = (5, 6)  # SOCK_SEQPACKET (SCTP), SOCK_DCCP
UNGUARDED_PROTOCOLS: Final = (33, 132)  # DCCP, SCTP: `metadata_block` has no hook that sees them


def build_filter(profile: SeccompProfile, machine: str) -> bytes:
    """Assemble the filter of `profile` for `machine`.

    Args:
        profile: For whom it is.
        machine: As `platform.machine()` tells it: x86_64, aarch64 or arm64.

    Returns:
        An array of `struct sock_filter`, 8 bytes each: what `sock_fprog.filter` points to
        (`sock_fprog.len` is the length in bytes divided by 8). Install it after
        `PR_SET_NO_NEW_PRIVS`.

    Raises:
        BackendUnavailable: The system call numbers of this machine are not known.
    """
    try:
        known = Machine(machine.replace("arm64", "aarch64"))
    except ValueError:
        raise BackendUnavailable(
            f"seccomp: no filter for machine {machine!r}", hint="use x86_64 or aarch64, or the process backend"
        ) from None
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in _program(profile, known))


def _program(profile: SeccompProfile, machine: Machine) -> Iterator[Instruction]:
    yield (LOAD_WORD, 0, 0, ARCH_AT)
    yield from _unless(JUMP_EQUAL, AUDIT_ARCH[machine], KILL_PROCESS)
    yield (LOAD_WORD, 0, 0, NUMBER_AT)
    if machine is Machine.X86_64:
        yield from _if(JUMP_EQUAL, NO_CALL, [_errno(errno.ENOSYS)])
        yield from _if(JUMP_GREATER_EQUAL, X32_BIT, [_return(KILL_PROCESS)])
    yield from _if(JUMP_GREATER_EQUAL, NEWEST_REVIEWED + 1, [_errno(errno.ENOSYS)])
    for name, rule in _argument_rules(profile).items():
        yield from _when(name, machine, rule)
    for name in _denied(profile):
        yield from _when(name, machine, [_errno(errno.EPERM)])
    for name in UNREADABLE:
        yield from _when(name, machine, [_errno(errno.ENOSYS)])
    yield _return(ALLOW)


def _denied(profile: SeccompProfile) -> Iterable[str]:
    return DENIED if profile is SeccompProfile.ZYGOTE else (*DENIED, *CONFINING)


def _argument_rules(profile: SeccompProfile) -> dict[str, Rule]:
    """Return the calls whose arguments decide, the most frequent first; every path of a rule ends in a return."""
    rules: dict[str, Rule] = {
        "openat": _open_rule(flags_argument=2),
        "open": _open_rule(flags_argument=1),
        "creat": _mode_rule(1),
        "chmod": _mode_rule(1),
        "fchmod": _mode_rule(1),
        "fchmodat": _mode_rule(2),
        "fchmodat2": _mode_rule(2),
        "mknod": _node_rule(1),
        "mknodat": _node_rule(2),
        "ioctl": [_argument(1), *_refuse(TERMINAL_IOCTLS, errno.EPERM), _return(ALLOW)],
        "personality": [_argument(0), *_accept(PERSONALITIES), _errno(errno.EPERM)],
        "socket": _socket_rule(),
        "setsockopt": _socket_option_rule(),
        "socketpair": [_argument(0), *_accept((AF_UNIX,)), _errno(errno.EAFNOSUPPORT)],
    }
    if profile is SeccompProfile.SANDBOX:
        no_namespaces = _if(JUMP_ANY_BIT, NAMESPACE_FLAGS, [_errno(errno.EPERM)])
        rules["clone"] = [_argument(0), *no_namespaces, _return(ALLOW)]
    return rules


def _socket_rule() -> Rule:
    """Families that programs use; the rest answers as if the kernel had been built without it.

    A program that probes (for AF_ALG, AF_VSOCK, …) then goes on without, where EPERM would
    stop it. Netlink is there to list interfaces (`getifaddrs`), nothing else of it.
    """
    internet: Rule = [
        _argument(1),
        (AND, 0, 0, SOCK_TYPE_MASK),
        *_refuse(RAW_TYPES, errno.EPERM),
        *_refuse(UNGUARDED_TYPES, errno.ESOCKTNOSUPPORT),
        _argument(2),
        *_refuse(UNGUARDED_PROTOCOLS, errno.EPROTONOSUPPORT),
        _return(ALLOW),
    ]
    route_only: Rule = [_argument(2), *_accept((NETLINK_ROUTE,)), _errno(errno.EPROTONOSUPPORT)]
    return [
        _argument(0),
        *_accept((AF_UNIX,)),
        *_if(JUMP_EQUAL, AF_INET, internet),
        *_if(JUMP_EQUAL, AF_INET6, internet),
        *_if(JUMP_EQUAL, AF_NETLINK, route_only),
        _errno(errno.EAFNOSUPPORT),
    ]


def _socket_option_rule() -> Rule:
    """Say yes to SO_LINGER and do nothing.

    Whoever closes a lingering socket last waits for its peer; and a sandbox can make that be the
    service, by handing it one over a control socket that it has got hold of. To the program that
    set it, its data is sent all the same, and only `close` does not tell when.
    """
    lingering: Rule = [_argument(2), *_if(JUMP_EQUAL, SO_LINGER, [_errno(0)]), _return(ALLOW)]
    return [_argument(1), *_if(JUMP_EQUAL, SOL_SOCKET, lingering), _return(ALLOW)]


def _mode_rule(mode_argument: int) -> Rule:
    """Refuse to make anything setuid or setgid."""
    return [_argument(mode_argument), *_if(JUMP_ANY_BIT, OWNER_BITS, [_errno(errno.EPERM)]), _return(ALLOW)]


def _open_rule(*, flags_argument: int) -> Rule:
    """The mode counts only if the call may create; else its register holds anything."""
    return [
        _argument(flags_argument),
        *_if(JUMP_ANY_BIT, CREATING_FLAGS, _mode_rule(flags_argument + 1)),
        _return(ALLOW),
    ]


def _node_rule(mode_argument: int) -> Rule:
    return [
        _argument(mode_argument),
        *_if(JUMP_ANY_BIT, OWNER_BITS, [_errno(errno.EPERM)]),
        (AND, 0, 0, 0o170000),
        *_refuse(DEVICE_TYPES, errno.EPERM),
        _return(ALLOW),
    ]


# ---------------------------------------------------------------- the assembler


def _return(verdict: int) -> Instruction:
    return (RETURN, 0, 0, verdict)


def _errno(code: int) -> Instruction:
    return _return(ERRNO | code)


def _argument(index: int) -> Instruction:
    return (LOAD_WORD, 0, 0, ARGUMENTS_AT + 8 * index)


def _if(jump: int, constant: int, then: Rule) -> Rule:
    """Run `then`, which must end in a return, if the comparison holds."""
    return [(jump, 0, len(then), constant), *then]


def _unless(jump: int, constant: int, verdict: int) -> Rule:
    return [(jump, 1, 0, constant), _return(verdict)]


def _refuse(values: Iterable[int], code: int) -> Rule:
    return [instruction for value in values for instruction in _if(JUMP_EQUAL, value, [_errno(code)])]


def _accept(values: Iterable[int]) -> Rule:
    return [instruction for value in values for instruction in _if(JUMP_EQUAL, value, [_return(ALLOW)])]


def _when(name: str, machine: Machine, rule: Rule) -> Rule:
    """Apply `rule` to the call `name`; nothing where this machine never had it."""
    number = number_of(name, machine)
    return [] if number is None else _if(JUMP_EQUAL, number, rule)
