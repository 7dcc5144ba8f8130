"""One message per SOCK_SEQPACKET packet: JSON, with file descriptors beside it.

A packet has a size limit (the socket's send buffer), and a list of two thousand module
names may pass it; a long body travels in a memfd instead, as the first descriptor.
Works on blocking sockets (guests) and on non-blocking ones (the host), where
`BlockingIOError` means: try again when the socket is ready; nothing was sent or taken.
"""

from __future__ import annotations

import array
import json
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

INLINE_LIMIT_BYTES = 60_000
BODY_LIMIT_BYTES = 16 * 1024 * 1024
FD_LIMIT = 32

if TYPE_CHECKING:
    Message = dict[str, Any]
else:
    Message = dict  # Python 3.8 cannot subscript it


class WireError(Exception):
    """A packet that cannot be sent or is not one of ours."""


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message with its descriptors (which stay open here).

    Raises:
        WireError: It is too long, or carries too many descriptors.
        OSError: The other end is gone (`BlockingIOError`: not now).
    """
    body = json.dumps(message).encode()
    if len(body) > BODY_LIMIT_BYTES or len(fds) >= FD_LIMIT:
        raise WireError(f"{len(body)} bytes and {len(fds)} descriptors are more than one message can carry")
    if len(body) <= INLINE_LIMIT_BYTES:
        _send_packet(sock, b"i" + body, fds)
        return
    memory = os.memfd_create("headstart-message")
    try:
        with os.fdopen(os.dup(memory), "wb") as file:
            file.write(body)
        _send_packet(sock, b"m%d" % len(body), [memory, *fds])
    finally:
        os.close(memory)


def _send_packet(sock: socket.socket, packet: bytes, fds: Sequence[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([packet], ancillary, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Take one message and its descriptors (now the caller's); None when the other end has closed.

    Raises:
        WireError: It is not one of ours.
        OSError: As `socket.recvmsg`.
    """
    space = socket.CMSG_SPACE(FD_LIMIT * array.array("i").itemsize)
    packet, ancillary, flags, _ = sock.recvmsg(INLINE_LIMIT_BYTES + 1, space, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    received = fds.tolist()
    if not packet:
        for fd in received:
            os.close(fd)
        return None
    try:
        return _decode(packet, received, cut=bool(flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC))), received
    except BaseException:
        for fd in received:
            os.close(fd)
        raise


def _decode(packet: bytes, fds: list[int], *, cut: bool) -> Message:
    if cut:
        raise WireError("a packet arrived cut")
    try:
        message = json.loads(_body(packet, fds))
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("not a JSON object")
    return message  # pyright: ignore[reportUnknownVariableType] - checked by whoever reads the keys


def _body(packet: bytes, fds: list[int]) -> bytes:
    if packet[:1] != b"m":
        return packet[1:]
    if not fds:
        raise WireError("a long message came without its body")
    memory = fds.pop(0)
    try:
        return os.pread(memory, min(int(packet[1:]), BODY_LIMIT_BYTES), 0)
    except (OSError, OverflowError) as error:
        raise WireError(f"a long message's body cannot be read: {error}") from error
    finally:
        os.close(memory)
