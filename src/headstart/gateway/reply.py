"""The answer to one POST: plain JSON if nothing is said before it, else an event stream.

Deciding late is not only faster. The official clients bound the size of one server-sent
event (1 MiB) but not of a JSON body, and only a plain answer can still carry an HTTP
status of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from headstart.gateway.wire import SSE_HEADERS, Send, send_body, send_json, sse_frame

__all__ = ["Reply"]

_PING = b": ping\r\n\r\n"


class Reply:
    """Writes one response, whichever form it takes.

    Attributes:
        can_stream: The client accepts event streams; without, everything before the
            result is dropped.
        headers: Sent with the response, whichever form it takes.
    """

    def __init__(self, send: Send, *, can_stream: bool, headers: list[tuple[bytes, bytes]]) -> None:
        self.can_stream = can_stream
        self._send = send
        self.headers = headers
        self._streaming = False
        self._finished = False
        self._turn = anyio.Lock(fast_acquire=True)

    @property
    def open(self) -> bool:
        """Something can still be said on it."""
        return self.can_stream and not self._finished

    async def say(self, message: bytes) -> bool:
        """Send a message ahead of the result; False if this reply cannot carry it."""
        if not self.open:
            return False
        await self._write(sse_frame(message))
        return True

    async def ping(self) -> None:
        """Keep a long silence from looking like a dead connection."""
        if self.open:
            await self._write(_PING)

    async def finish(self, message: bytes, *, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Send the result and close. The status counts only if nothing was streamed before."""
        self._finished = True
        async with self._turn:
            if self._streaming:
                await send_body(self._send, sse_frame(message) if message else b"")
            else:
                await send_json(self._send, status, message, headers=[*self.headers, *headers])

    async def _write(self, frame: bytes) -> None:
        async with self._turn:
            if not self._streaming:
                self._streaming = True
                lines = [*SSE_HEADERS, *self.headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": lines})
            await send_body(self._send, frame, last=False)
