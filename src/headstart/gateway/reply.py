"""The answer to one POST: plain JSON if nothing is said before it, else an event stream.

Deciding late is not only faster. The official clients bound the size of one server-sent
event (1 MiB) but not of a JSON body, and only a plain answer can still carry an HTTP
status of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from headstart.gateway.session import Question
from headstart.gateway.wire import SSE_HEADERS, Send, send_body, send_json, sse_frame

__all__ = ["Reply"]

_PING = b": ping\r\n\r\n"


class Reply:
    """Writes one response, whichever form it takes.

    Attributes:
        can_stream: The client accepts event streams; without, everything before the
            result is dropped.
        headers: Sent with the response, whichever form it takes.
        questions: What servers have asked on it, by our id; given up when the client leaves.
    """

    def __init__(self, send: Send, *, can_stream: bool, headers: list[tuple[bytes, bytes]]) -> None:
        self.can_stream = can_stream
        self.headers = headers
        self.questions: dict[str, Question] = {}
        self._send = send
        self._turn: anyio.Lock | None = None  # made with the stream; a plain answer needs none
        self._finished = False
        self._left = False
        self._spoken = True

    @property
    def open(self) -> bool:
        """Something can still be said on it."""
        return self.can_stream and not self.over

    @property
    def over(self) -> bool:
        """It is finished, or nobody is there to hear it."""
        return self._finished or self._left

    def leave(self) -> None:
        """Note that the client has gone."""
        self._left = True
        for question in self.questions.values():
            question.give_up()

    def silent(self) -> bool:
        """Tell whether nothing was said since this was last asked."""
        silent, self._spoken = not self._spoken, False
        return silent

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
        if self._turn is None:
            await send_json(self._send, status, message, headers=[*self.headers, *headers])
            return
        async with self._turn:
            await send_body(self._send, sse_frame(message) if message else b"")

    async def _write(self, frame: bytes) -> None:
        self._spoken = True
        first = self._turn is None
        if self._turn is None:
            self._turn = anyio.Lock(fast_acquire=True)
        async with self._turn:
            if first:
                lines = [*SSE_HEADERS, *self.headers]
                await self._send({"type": "http.response.start", "status": 200, "headers": lines})
            await send_body(self._send, frame, last=False)
