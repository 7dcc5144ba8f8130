"""The host's end of a guest's control socket: whole messages, awaited, bounded in time."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Self

import anyio

from headstart.backends.zygote.guest import wire
from headstart.errors import BackendError

__all__ = ["Control"]


class Control:
    """A SOCK_SEQPACKET socket to one guest. Owns the socket.

    Args:
        name: Whom it leads to, for messages ("the zygote of time").
    """

    def __init__(self, sock: socket.socket, *, name: str) -> None:
        sock.settimeout(0)
        self._sock = sock
        self._name = name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._sock.close()

    async def send(self, message: wire.Message, fds: Sequence[int] = ()) -> None:
        """Send one message; cancelled, it was sent whole or not at all.

        Raises:
            BackendError: The guest is gone, or the message is too long for it.
        """
        while True:
            try:
                return wire.send(self._sock, message, fds)
            except BlockingIOError:
                await anyio.wait_writable(self._sock)
            except (OSError, wire.WireError) as error:
                raise BackendError(f"{self._name} cannot be reached: {error}") from error

    async def receive(self, *, timeout_s: float) -> dict[str, Any]:
        """Take the next message (descriptors that come with it are closed).

        Raises:
            BackendError: The guest failed (its own words are in the message), is gone, or
                said nothing for `timeout_s` seconds.
        """
        message = await self._next(timeout_s)
        if message is None:
            raise BackendError(f"{self._name} ended before it answered")
        if message.get("op") == "failed":
            raise BackendError(f"{self._name}: {message.get('error')}")
        return message

    async def _next(self, timeout_s: float) -> dict[str, Any] | None:
        with anyio.move_on_after(timeout_s):
            while True:
                try:
                    received = wire.receive(self._sock)
                except BlockingIOError:
                    await anyio.wait_readable(self._sock)
                    continue
                except ConnectionResetError:
                    return None
                except (OSError, wire.WireError) as error:
                    raise BackendError(f"{self._name} cannot be understood: {error}") from error
                if received is None:
                    return None
                message, fds = received
                with ExitStack() as stack:
                    for fd in fds:
                        stack.callback(os.close, fd)
                return message
        raise BackendError(f"{self._name} did not answer within {timeout_s:g} s")
