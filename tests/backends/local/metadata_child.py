"""Try to reach metadata services that we run ourselves, in a network namespace of our own.

Stand-alone: `python metadata_child.py CGROUP_DIR|none`. The addresses are put on this
namespace's loopback, with a listener behind them, so that whatever connects would have got
through. Prints one JSON object: how each attempt ended.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import pathlib
import socket
import struct
import sys
from collections.abc import Callable

V4 = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16")
V6 = ("fd00:ec2::254", "fd20:ce::254")
HARMLESS = ("127.0.0.1", "10.1.2.3", "::1", "fd00:1::1")
HTTP, DNS = 80, 53


def private_network() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
    with socket.socket() as four, socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six:
        fcntl.ioctl(four, 0x8914, struct.pack("16sH14x", b"lo", 0x49))  # SIOCSIFFLAGS: up, loopback, running
        addresses = [address for address in (*V4, *HARMLESS) if "." in address and address != "127.0.0.1"]
        for index, address in enumerate(addresses):
            name = f"lo:{index}".encode()
            fcntl.ioctl(four, 0x8916, struct.pack("16sHH4s8x", name, socket.AF_INET, 0, socket.inet_aton(address)))
        for address in (*V6, "fd00:1::1"):
            packed = socket.inet_pton(socket.AF_INET6, address)
            fcntl.ioctl(six, 0x8916, struct.pack("=16sIi", packed, 128, 1))  # SIOCSIFADDR, lo is 1


def listen() -> list[socket.socket]:
    servers: list[socket.socket] = []
    for port in (HTTP, DNS):
        server = socket.socket(socket.AF_INET6)
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("::", port))
        server.listen(128)
        servers.append(server)
    return servers


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "reached"


def connect(family: int, address: str, port: int = HTTP, protocol: int = 0) -> str:
    with socket.socket(family, socket.SOCK_STREAM, protocol) as client:
        client.settimeout(5)
        return outcome(lambda: client.connect((address, port)))


def send(family: int, address: str) -> str:
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        return outcome(lambda: client.sendto(b"x", (address, HTTP)))


def fast_open(address: str) -> str:
    with socket.socket() as client:
        client.settimeout(5)
        return outcome(lambda: client.sendto(b"x", socket.MSG_FASTOPEN, (address, HTTP)))


def attempts() -> dict[str, str]:
    told: dict[str, str] = {}
    for address in (*V4, *HARMLESS, *V6):
        family = socket.AF_INET if "." in address else socket.AF_INET6
        told[f"tcp {address}"] = connect(family, address)
        told[f"udp {address}"] = send(family, address)
        if family == socket.AF_INET:
            told[f"mapped tcp {address}"] = connect(socket.AF_INET6, f"::ffff:{address}")
            told[f"mapped udp {address}"] = send(socket.AF_INET6, f"::ffff:{address}")
            told[f"fastopen {address}"] = fast_open(address)
            told[f"mptcp {address}"] = outcome_of_mptcp(address)
    told["dns 169.254.169.254"] = connect(socket.AF_INET, "169.254.169.254", DNS)
    return told


def outcome_of_mptcp(address: str) -> str:
    try:
        return connect(socket.AF_INET, address, protocol=262)
    except OSError:
        return "no mptcp here"


if __name__ == "__main__":
    if sys.argv[1] != "none":
        pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
    private_network()
    keep = listen()
    sys.stdout.write(json.dumps(attempts()))
