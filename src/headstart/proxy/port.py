"""The clients' side of the port: uvicorn's HTTP protocol, with what it leaves open closed.

uvicorn bounds neither the size of a request's head nor the time that it takes, and puts the
trailers of a chunked request among the fields of its head, where they could name another host
or session than the one that was checked. It sends no trailers at all, and ASGI has no message
for those of a request. Here heads and trailers are bounded, and trailers are kept apart and go
both ways, through an extension in the scope (`ClientTrailers`).

Nothing of this is on the way of a body's bytes, but for one addition per piece that is received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from headstart.proxy.headers import Header, field_lines

__all__ = ["HEAD_WITHIN_S", "MAX_HEAD_BYTES", "ClientTrailers", "PortProtocol", "trailers_of"]

MAX_HEAD_BYTES = 256 * 1024
"""Of a request's head, and of the trailers behind its body."""
HEAD_WITHIN_S = 60.0
"""From its first byte (a connection's first head: from the connection's beginning)."""

LINGER_S = 1.0

_EXTENSION = "headstart.trailers"


class ClientTrailers:
    """The trailers of one request and of its response.

    Attributes:
        of_request: Names in lower case; whole once the request's last body message has been received.
    """

    __slots__ = ("_cycle", "of_request")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self.of_request: list[Header] = []
        self._cycle = cycle

    async def send(self, fields: Iterable[Header]) -> None:
        """End the response with `fields` behind its body (without them where it is not chunked)."""
        cycle = self._cycle
        if cycle.chunked_encoding and cycle.scope["method"] != "HEAD" and not cycle.disconnected:
            cycle.transport.write(b"0\r\n" + field_lines(fields) + b"\r\n")
            cycle.chunked_encoding = False  # the last chunk is written: what is left for uvicorn is an empty body
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})


def trailers_of(scope: Scope) -> ClientTrailers | None:
    """Return a request's trailers; None if the server that it came through does not tell them."""
    return cast("ClientTrailers | None", scope.get("extensions", {}).get(_EXTENSION))


class PortProtocol(HttpToolsProtocol):
    """One client's connection; for `uvicorn.Config(http=…)`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False
        self._held_bytes = 0
        """What came since the last head ended or the last piece of a body."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._trailers: ClientTrailers | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] - as in uvicorn
        super().connection_made(transport)
        self._bound_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unbound_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._held_bytes += len(data)
        super().data_received(data)
        if self._held_bytes > MAX_HEAD_BYTES:
            self._refuse(431, f"its fields are larger than {MAX_HEAD_BYTES} bytes")
        elif self._in_head and self._head_timer is None:
            self._bound_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            super().on_header(name, value)
        elif self._trailers is not None:
            self._trailers.of_request.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._held_bytes = 0
        self._unbound_head()
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # else it is an upgrade, which is not ours
            self._trailers = ClientTrailers(self.cycle)
            cast("Scope", self.scope)["extensions"] = {_EXTENSION: self._trailers}

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)

    def _bound_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self._head_overdue)

    def _unbound_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_overdue(self) -> None:
        if self._answering():
            self._bound_head()  # the part of a next request does not end the response to this one
        elif self._in_head:
            self._refuse(408, f"its head did not come within {HEAD_WITHIN_S} s")
        else:
            self.transport.close()

    def _answering(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _refuse(self, status: int, why: str) -> None:
        """Answer a request that does not end, unless another is being answered, and close."""
        self._unbound_head()
        self._refused = True
        if self._answering() or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        told = f"The request cannot be read: {why}.\n".encode()
        fields = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(told)
        self.transport.write(STATUS_LINE[status] + fields + told)
        self.transport.write_eof()
        # Closing now, with bytes unread, would reset the connection before the answer is read.
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)
