"""Keep sandboxes that share the host's network away from cloud metadata, and from our own port.

On a cloud machine, one plain HTTP request to a link-local address yields the machine's
own credentials. A sandbox with network `host` must not be able to make it; nor may it talk
to Headstart itself, which on loopback takes every caller for its one user. Where packets
could be filtered (a firewall) the rule would be the host's and for everybody; so the block
sits where the kernel knows *who* connects: four tiny eBPF programs on a cgroup v2
directory, one per kind of call (TCP connect and unconnected UDP send, IPv4 and IPv6).
Whoever is in that cgroup or below gets EPERM at `connect` and `sendto`; nobody else notices.

The programs stay attached as long as the cgroup exists, whatever becomes of Headstart, and
go with it. Other programs on the same cgroup (systemd's) keep working: they are stacked.

Not blocked: port 53. Some clouds serve plain DNS, and nothing else there, at the very
address of their metadata, and a sandbox that cannot resolve names has no network.
Not seen by these hooks: raw sockets, and protocols other than TCP, UDP and ping. The
seccomp filter has to refuse them, and does.

Rejected: routing rules and firewall marks (change the host for everybody and outlive us),
a network namespace of its own with address translation (a daemon, or root and a firewall),
Landlock (knows ports, not addresses).
"""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from enum import IntEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, Literal

from headstart.backends.local.syscall_numbers import Machine, number_of
from headstart.errors import BackendUnavailable

__all__ = ["BLOCKED_V4", "BLOCKED_V6", "CURE", "Hook", "attach", "build_program", "unified_root", "why_unavailable"]

BLOCKED_V4: Final = (
    IPv4Network("169.254.0.0/16"),  # link-local: AWS, Google, Azure, Oracle, Hetzner, …; ECS, EKS, Scaleway, Tencent
    IPv4Network("100.100.100.200/32"),  # Alibaba
    IPv4Network("192.0.0.192/32"),  # Oracle, classic
    IPv4Network("168.63.129.16/32"),  # Azure's wire server
)

_EMBEDDED: Final = ("::ffff:0:0", "64:ff9b::")  # IPv4 inside IPv6: mapped, and behind NAT64

BLOCKED_V6: Final = (
    IPv6Network("fd00:ec2::/32"),  # AWS: instance ::254, EKS ::23
    IPv6Network("fd20:ce::254/128"),  # Google
    IPv6Network("fd00:c1::a9fe:a9fe/128"),  # Oracle
    IPv6Network("fd00:42::42/128"),  # Scaleway
    IPv6Network("fe80::a9fe:a9fe/128"),  # OpenStack
    *(
        IPv6Network((int(IPv6Network(f"{prefix}/96").network_address) | int(v4.network_address), 96 + v4.prefixlen))
        for prefix in _EMBEDDED
        for v4 in BLOCKED_V4
    ),
)

_LOOPBACK_V4: Final = (IPv4Network("127.0.0.0/8"), IPv4Network("0.0.0.0/32"))
_LOOPBACK_V6: Final = (
    IPv6Network("::/127"),  # :: and ::1
    IPv6Network("::ffff:127.0.0.0/104"),
    IPv6Network("::ffff:0.0.0.0/128"),
)


class Hook(IntEnum):
    """The calls that are looked at (`enum bpf_attach_type`)."""

    CONNECT_V4 = 10
    CONNECT_V6 = 11
    SEND_V4 = 14
    SEND_V6 = 15


# <linux/bpf.h>, as far as it is used.
_PROG_LOAD: Final = 5
_PROG_ATTACH: Final = 8
_TYPE_CGROUP_SOCK_ADDR: Final = 18
_ALLOW_MULTI: Final = 2
_LOAD_WORD, _MOVE, _MOVE_REGISTER32, _AND32, _JUMP_NOT_EQUAL32, _EXIT = 0x61, 0xB7, 0xBC, 0x54, 0x56, 0x95
# Offsets in `struct bpf_sock_addr`.
_IP4_AT, _IP6_AT, _PORT_AT = 4, 8, 24
_DNS_PORT: Final = 53
_CONTEXT, _LOADED, _MASKED = 1, 2, 3  # registers; 0 is the verdict


def build_program(hook: Hook, *, own_ports: Collection[int] = ()) -> bytes:
    """Assemble the program of one hook: `struct bpf_insn` after `struct bpf_insn`, 8 bytes each."""
    is_v4 = hook in {Hook.CONNECT_V4, Hook.SEND_V4}
    allow, deny = _verdict(1), _verdict(0)
    program: list[bytes] = []
    for port in own_ports:
        here = [instruction for network in _LOOPBACK_V4 if is_v4 for instruction in _match(network, then=deny)]
        here += [instruction for network in _LOOPBACK_V6 if not is_v4 for instruction in _match(network, then=deny)]
        program += _word_differs(_PORT_AT, 0xFFFF_FFFF, socket.htons(port), skip=len(here)) + here
    program += _word_differs(_PORT_AT, 0xFFFF_FFFF, socket.htons(_DNS_PORT), skip=len(allow)) + allow
    for network in BLOCKED_V4 if is_v4 else BLOCKED_V6:
        program += _match(network, then=deny)
    return b"".join(program + allow)


def attach(cgroup_dir: Path, *, own_ports: Collection[int] = ()) -> None:
    """Block metadata addresses for every process in (or below) a cgroup v2 directory.

    Lasts until the directory is removed. Attaching twice is harmless, but costs each
    connection a second look.

    Args:
        cgroup_dir: The directory, in a cgroup v2 hierarchy.
        own_ports: Ports on which this machine's loopback addresses are refused too.

    Raises:
        BackendUnavailable: This kernel or these privileges don't allow it; the message says which.
    """
    with ExitStack() as stack:
        try:
            cgroup = os.open(cgroup_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, cgroup)
            for hook in Hook:
                program = _load(hook, own_ports)
                stack.callback(os.close, program)
                _bpf(_PROG_ATTACH, struct.pack("=IIIII", cgroup, program, hook, _ALLOW_MULTI, 0))
        except OSError as error:
            raise BackendUnavailable(
                f"cloud metadata addresses cannot be blocked at {cgroup_dir}: {_explain(error)}", hint=CURE
            ) from error


def unified_root() -> Path | None:
    """Return where cgroup v2 is mounted (beside v1 it is in a corner of its own), or None."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] == "cgroup2":
            return Path(fields[4])
    return None


def why_unavailable() -> str | None:
    """Tell why `attach` could not work here, or None. Loads the programs, attaches nothing."""
    root = unified_root()
    if root is None:
        return "no cgroup v2 is mounted"
    if not os.access(root, os.W_OK):
        return f"{root} is not writable by this user"
    try:
        for hook in Hook:
            os.close(_load(hook, ()))
    except (OSError, BackendUnavailable) as error:
        return _explain(error) if isinstance(error, OSError) else str(error)
    return None


CURE: Final = "run as root on a kernel with CONFIG_CGROUP_BPF and a mounted cgroup v2, or give the server network none"


def _explain(error: OSError) -> str:
    match error.errno:
        case 1:
            return "the kernel refuses bpf(2) to this user (CAP_BPF and CAP_NET_ADMIN are needed)"
        case 38:
            return "the kernel has no bpf(2)"
        case 22 | 9:
            return "the kernel has no cgroup hooks for connect, or this is no cgroup v2 directory"
        case _:
            return error.strerror or str(error)


# ---------------------------------------------------------------- the assembler


def _instruction(code: int, *, to: int = 0, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhI", code, source << 4 | to, offset, value)


def _verdict(value: Literal[0, 1]) -> list[bytes]:
    return [_instruction(_MOVE, value=value), _instruction(_EXIT)]


def _word_differs(at: int, mask: int, expected: int, *, skip: int) -> list[bytes]:
    """Compare one word of the context under a mask; jump over `skip` instructions if it differs."""
    return [
        _instruction(_LOAD_WORD, to=_LOADED, source=_CONTEXT, offset=at),
        _instruction(_MOVE_REGISTER32, to=_MASKED, source=_LOADED),
        _instruction(_AND32, to=_MASKED, value=mask),
        _instruction(_JUMP_NOT_EQUAL32, to=_MASKED, offset=skip, value=expected),
    ]


def _match(network: IPv4Network | IPv6Network, *, then: list[bytes]) -> list[bytes]:
    """Run `then`, which ends the program, if the address is in `network`."""
    code = list(then)
    for at, mask, expected in reversed(list(_words(network))):
        code = _word_differs(at, mask, expected, skip=len(code)) + code
    return code


def _words(network: IPv4Network | IPv6Network) -> Iterator[tuple[int, int, int]]:
    """Yield offset, mask and value of each word that matters, as the machine loads them."""
    start = _IP4_AT if network.version == 4 else _IP6_AT
    address, netmask = network.network_address.packed, network.netmask.packed
    for index in range(0, len(address), 4):
        mask = int.from_bytes(netmask[index : index + 4], sys.byteorder)
        if mask:
            yield start + index, mask, int.from_bytes(address[index : index + 4], sys.byteorder)


# ---------------------------------------------------------------- the kernel


def _load(hook: Hook, own_ports: Collection[int]) -> int:
    """Load one program and return its file descriptor."""
    code = ctypes.create_string_buffer(build_program(hook, own_ports=own_ports))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    return _bpf(
        _PROG_LOAD,
        struct.pack(
            "=IIQQIIQII16sII",
            _TYPE_CGROUP_SOCK_ADDR,
            (len(code) - 1) // 8,
            ctypes.addressof(code),
            ctypes.addressof(licence),
            0,
            0,
            0,
            0,
            0,
            b"headstart_meta",
            0,
            hook,
        ),
    )


def _bpf(command: int, attributes: bytes) -> int:
    try:
        number = number_of("bpf", Machine(platform.machine()))
    except ValueError:
        raise BackendUnavailable(f"bpf: no system call number for machine {platform.machine()!r}") from None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = libc.syscall(ctypes.c_long(number or 0), command, ctypes.byref(buffer), len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)
