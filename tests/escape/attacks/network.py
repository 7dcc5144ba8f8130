"""Attacks by sockets."""

from __future__ import annotations

from .attack import DENIED, Attack

__all__ = ["NETWORK"]

NETWORK = [
    Attack(
        id="the host's loopback",
        script="s = socket.socket(); s.settimeout(3); attempt(lambda: s.connect(('127.0.0.1', FACTS['port'])))",
        reasons=frozenset({"ECONNREFUSED"}),
    ),
    Attack(
        id="the host's interfaces",
        script="others = [n for _, n in socket.if_nameindex() if n != 'lo']; tell(f'GOT {others}' if others else 'NONE')",
        control="tell(f'GOT {socket.if_nameindex()}')",
        reasons=frozenset({"NONE"}),
    ),
    Attack(
        id="an abstract socket of the host",
        script="s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect('\\0' + FACTS['abstract']))",
        reasons=frozenset({"ECONNREFUSED"}),
    ),
    Attack(
        id="an abstract socket of the host, on its network",
        script="s = socket.socket(socket.AF_UNIX); attempt(lambda: s.connect('\\0' + FACTS['abstract']))",
        network="host",
        reasons=DENIED,
        weaker="abstract",
    ),
    Attack(
        id="raw packets",
        script="attempt(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))",
        reasons=frozenset({"EAFNOSUPPORT"}),
    ),
    Attack(
        id="raw packets on the host's network",
        script="attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
        network="host",
        reasons=DENIED,
    ),
    Attack(
        id="the host's interfaces, changed",
        script=(
            "import fcntl, struct\ns = socket.socket()\n"
            "attempt(lambda: fcntl.ioctl(s, 0x8914, struct.pack('16sH14x', b'lo', 0x49)))"
        ),
        network="host",
        reasons=DENIED,
    ),
]
