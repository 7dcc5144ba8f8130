"""The service's end of a message channel, inside the event loop."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio

from headstart.backends.spawner.guest.wire import LARGEST_MESSAGE_BYTES, Nonsense, PeerGone, Wire
from headstart.errors import BackendError

__all__ = ["Link", "Nonsense", "PeerGone"]

_SEND_TIMEOUT_S = 10.0


class Link:
    """Sends one message at a time and receives in one task; never blocks the loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)  # noqa: FBT003  the standard library's signature
        self._sock = sock
        self._wire = Wire(sock)
        self._sending = anyio.Lock()

    @classmethod
    def pair(cls) -> tuple[Link, socket.socket]:
        """Return our end and the other, to be handed over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        return cls(ours), theirs

    async def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message; it goes whole or not at all, also when cancelled.

        Raises:
            PeerGone: The peer has closed, or has read nothing for 10 s.
            BackendError: The message is too large.
        """
        async with self._sending:
            try:
                with anyio.fail_after(_SEND_TIMEOUT_S):
                    await self._send(message, descriptors)
            except TimeoutError as error:
                raise PeerGone("the peer does not read") from error
            except OSError as error:
                if self._sock.fileno() < 0:
                    raise PeerGone("closed here") from error
                raise BackendError(
                    f"cannot send {message['op']!r} to a sandbox: {error}",
                    hint=f"arguments and environment together may take {LARGEST_MESSAGE_BYTES // 1024} KiB",
                ) from error

    async def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        while True:
            try:
                self._wire.send_with(message, descriptors)
            except BlockingIOError:
                await anyio.wait_writable(self._sock)
            else:
                return

    async def receive(self) -> dict[str, Any]:
        """Return the next message; descriptors that came with it are closed.

        Raises:
            PeerGone: The peer has closed or (`Nonsense`) sends what is no message, or we have closed.
        """
        message, descriptors = await self.receive_with()
        for descriptor in descriptors:  # nobody has reason to send any
            os.close(descriptor)
        return message

    async def receive_with(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and the descriptors that came with it, which the caller closes.

        Raises:
            PeerGone: As `receive`.
        """
        await anyio.lowlevel.checkpoint()  # a peer that floods us must not keep the loop to itself
        while True:
            received = self._receive_now()
            if received is not None:
                return received
            try:
                await anyio.wait_readable(self._sock)
            except anyio.ClosedResourceError as error:
                raise PeerGone("closed here") from error

    def _receive_now(self) -> tuple[dict[str, Any], list[int]] | None:
        if self._sock.fileno() < 0:
            raise PeerGone("closed here")
        return self._wire.receive(forgiving=True)

    @property
    def peer_pid(self) -> int:
        """Who sent the latest message, as this process's PID namespace numbers it; 0 before the first."""
        return self._wire.peer_pid

    def stop_sending(self) -> None:
        """Show the peer an end of file, and go on receiving. Idempotent."""
        if self._sock.fileno() >= 0:
            with suppress(OSError):  # it has gone first
                self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close; whoever receives gets `PeerGone`. Idempotent."""
        if self._sock.fileno() >= 0:
            anyio.notify_closing(self._sock)
            self._sock.close()
