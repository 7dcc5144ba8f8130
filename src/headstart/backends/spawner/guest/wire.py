"""Messages between the service, the spawner and the inits: JSON datagrams that carry descriptors.

A message is one SOCK_SEQPACKET datagram, so it arrives whole or not at all; descriptors
ride along as SCM_RIGHTS. `Wire` never blocks: what the peer does not take yet waits in a
bounded outbox, and a peer that lets it overflow counts as gone.
"""

from __future__ import annotations

import array
import collections
import json
import os
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

__all__ = ["LARGEST_MESSAGE_BYTES", "Nonsense", "PeerGone", "Wire"]

LARGEST_MESSAGE_BYTES = 192 * 1024
"""What fits a socket buffer of the kernel's default size, with its overhead."""

_OUTBOX_LIMIT = 4096
_MOST_DESCRIPTORS = 64
_MSG_CMSG_CLOEXEC = 0x40000000
_SCM_CREDENTIALS = 2
_CREDENTIALS = struct.Struct("iII")


class PeerGone(Exception):
    """The other end has closed, or reads so slowly that it cannot be told from that."""


class Nonsense(PeerGone):
    """The other end says what it must not: as good as gone, and nothing more is heard of it."""


class Wire:
    """One end of a message channel."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003  the standard library's signature
        self._sock = sock
        self.peer_pid = 0
        """Who sent the latest message, where the kernel was asked to say so (`SO_PASSCRED`)."""
        self._outbox: collections.deque[tuple[dict[str, Any], list[int]]] = collections.deque()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_backlog(self) -> bool:
        """Whether messages wait for the peer; then poll for writability and `flush`."""
        return bool(self._outbox)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send or queue a message; the descriptors that go with it are closed here once it is sent.

        Raises:
            PeerGone: The peer has closed or its backlog is full.
        """
        if len(self._outbox) >= _OUTBOX_LIMIT:
            raise PeerGone("the peer does not read")
        self._outbox.append((message, list(descriptors)))
        self.flush()

    def send_with(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Send a message and descriptors at once; the caller keeps (and closes) its own.

        Raises:
            BlockingIOError: The peer takes nothing now.
            PeerGone: The peer has closed.
        """
        rights = array.array("i", descriptors)
        try:
            self._sock.sendmsg(
                [json.dumps(message).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)],
                socket.MSG_NOSIGNAL,
            )
        except BlockingIOError:
            raise
        except (BrokenPipeError, ConnectionError) as error:
            raise PeerGone(str(error)) from error

    def flush(self) -> None:
        """Send what is queued, as far as the peer takes it."""
        while self._outbox:
            message, descriptors = self._outbox[0]
            try:
                self.send_with(message, descriptors)
            except BlockingIOError:
                return
            except OSError as error:
                raise PeerGone(str(error)) from error
            self._outbox.popleft()
            for descriptor in descriptors:
                os.close(descriptor)

    def receive(self, *, forgiving: bool = False) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its descriptors, or None if there is none now.

        If we may have no more descriptors, those that came are closed and `forgiving` takes the message without.

        Raises:
            PeerGone: The peer has closed, or (`Nonsense`) sends what is no message.
        """
        space = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4) + socket.CMSG_SPACE(_CREDENTIALS.size)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(LARGEST_MESSAGE_BYTES * 2, space, _MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError as error:
            raise PeerGone(str(error)) from error
        descriptors = _descriptors_in(ancillary)
        self.peer_pid = _sender_in(ancillary) or self.peer_pid
        came_cut = not data or flags & socket.MSG_TRUNC
        if came_cut or flags & socket.MSG_CTRUNC:
            while descriptors:
                os.close(descriptors.pop())
        if came_cut or (flags & socket.MSG_CTRUNC and not forgiving):
            raise PeerGone("end of file" if not data else "a message came cut")
        try:
            return _decoded(data), descriptors
        except Nonsense:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def wait(self) -> tuple[dict[str, Any], list[int]]:
        """Wait for a message, without bound.

        Raises:
            PeerGone: The peer has closed.
        """
        while True:
            received = self.receive()
            if received is not None:
                return received
            select.select([self._sock], [], [])

    def close(self) -> None:
        self._sock.close()


def _sender_in(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0])
    return 0


def _descriptors_in(ancillary: Sequence[tuple[int, int, bytes]]) -> list[int]:
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return list(descriptors)


def _decoded(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`, whatever a hostile peer may have sent instead."""
    try:
        message: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Nonsense("what it sends is no JSON") from error
    if not isinstance(message, dict):
        raise Nonsense("what it sends is no JSON object")
    return cast("dict[str, Any]", message)
