"""One HTTP/1.1 connection to a model server, read by httptools (llhttp).

Why not a client library: between a model's token and the agent there should be one
task switch, no header table and no decoding; aiohttp's client was measured beside it
(docs/decisions/upstream-connection.md). The protocol is small because the job is: one request at a
time, raw fields in the order they came, body bytes as they are, and an honest account of
how a response ended.

The invariant: a response's body has *ended* only if its framing says so. Everything
else (reset, early close, bytes that are not HTTP) raises `UpstreamBroke`, so that the
caller can break off in the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple, cast

import httptools

from headstart.proxy.headers import Header

__all__ = ["ResponseHead", "UpstreamBroke", "UpstreamConnection"]

PAUSE_READING_BYTES = 256 * 1024
MAX_HELD_BYTES = 256 * 1024
"""Of a head (with the 1xx responses before it), of a chunk's size line, and of trailers."""


class UpstreamBroke(Exception):
    """The connection failed, or the response was not HTTP; says which."""


class ResponseHead(NamedTuple):
    """A response before its body."""

    status: int
    headers: list[Header]


class UpstreamConnection(asyncio.Protocol):
    """A connection that carries one exchange after another.

    Use: `begin`, then `write` and `drain` for the rest of the body and `body_sent`;
    `response_head`, then `read` until it returns b"".
    """

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._closed = False
        self._failure: UpstreamBroke | None = None
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._write_paused = False
        self._read_paused = False
        self.idle_since_s = 0.0
        self._forget_exchange()

    def _forget_exchange(self) -> None:
        self._head: ResponseHead | None = None
        self._headers: list[Header] = []
        self._held_bytes = 0
        self._chunks: list[bytes] = []
        self._buffered_bytes = 0
        self._complete = False
        self._body_sent = False
        self._keep_alive = False
        self._until_close = False
        self._bodyless = False
        self.trailers: list[Header] = []

    # ------------------------------------------------------------ for the exchange

    @property
    def reusable(self) -> bool:
        """Whether another exchange may follow: both messages ended, and both sides keep the connection."""
        return self._complete and self._keep_alive and self._body_sent and not self._closed and not self._chunks

    @property
    def ended(self) -> bool:
        """Whether the response's body has come to its proper end and all of it was read."""
        return self._complete and not self._chunks

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def transport(self) -> asyncio.Transport:
        """What it runs on, for whoever speaks another protocol on it from now on."""
        assert self._transport is not None  # noqa: S101 - it is connected before anybody gets it
        return self._transport

    def begin(self, *, method: str, target: bytes, host: bytes, headers: Iterable[Header], body: bytes = b"") -> None:
        """Send a request's head, with what there is of its body behind it in one write."""
        self._forget_exchange()
        self._bodyless = method == "HEAD"
        parts = [method.encode(), b" ", target, b" HTTP/1.1\r\nhost: ", host, b"\r\n"]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        parts += (b"\r\n", body)
        self.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._closed:
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until the upstream has taken enough; returns also when the connection is lost."""
        if self._write_paused and not self._closed:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def body_sent(self) -> None:
        self._body_sent = True

    async def response_head(self) -> ResponseHead:
        """Wait for the final response's head (1xx responses are passed over).

        Raises:
            UpstreamBroke: It did not come.
        """
        while self._head is None:
            if self._failure is not None:
                raise self._failure
            await self._more_data()
        return self._head

    async def read(self) -> bytes:
        """Return the body bytes that are there, waiting for the first; b"" at the end.

        Raises:
            UpstreamBroke: The body was cut off. Bytes that came before are returned first.
        """
        while not self._chunks:
            if self._complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._more_data()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Give the connection up at once, without waiting for bytes that were not sent."""
        self._lose("the exchange was given up")
        if self._transport is not None:
            self._transport.abort()

    def _more_data(self) -> asyncio.Future[None]:
        """Return what is done when bytes came or the connection is lost; one waiter at a time."""
        self._reader = asyncio.get_running_loop().create_future()
        return self._reader

    # ------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclasses

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._held_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as exc:
            self._break_off(str(exc.__context__))  # one of ours, below
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._break_off(f"the response is not HTTP/1.1 ({exc})")
        if self._held_bytes > MAX_HELD_BYTES:
            self._break_off(f"its head, a chunk's head or its trailers are larger than {MAX_HELD_BYTES} bytes")
        self._wake_reader()

    def eof_received(self) -> None:
        if self._until_close and self._head is not None:
            self._complete = True
        self._lose("the connection was closed before the response ended")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose("the connection was closed before the response ended" if exc is None else f"{exc}")

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake_writer()

    def _break_off(self, why: str) -> None:
        self._lose(why)
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, why: str) -> None:
        if not self._closed:
            self._closed = True
            self._failure = UpstreamBroke(why)
        self._wake_reader()
        self._wake_writer()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _wake_writer(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # ------------------------------------------------------------ httptools callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            raise UpstreamBroke("more came behind a complete response")

    def on_header(self, name: bytes, value: bytes) -> None:
        fields = self._headers if self._head is None else self.trailers
        fields.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._headers = []
            return
        if not 200 <= status <= 599:
            raise UpstreamBroke(f"its status {status} is no answer to this request")
        framing = _framing(self._headers)
        self._head = ResponseHead(status, self._headers)
        self._held_bytes = 0
        self._keep_alive = self._parser.should_keep_alive()
        self._until_close = not self._bodyless and framing is None
        if self._bodyless:
            self._complete = True
            self._keep_alive = False  # the parser waits for a body that a HEAD response does not have

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._held_bytes = 0
        self._buffered_bytes += len(data)
        if self._buffered_bytes > PAUSE_READING_BYTES and not self._read_paused and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if self._head is not None:
            self._complete = True
            self._until_close = False


def _framing(headers: Iterable[Header]) -> bytes | None:
    """Return the field that delimits a response's body; None if only the connection's end does.

    Raises:
        UpstreamBroke: A transfer coding other than chunked, which nobody asked for: its bytes would
            reach the client as something else than they are.
    """
    found = None
    for name, value in headers:
        key = name.lower()
        if key == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise UpstreamBroke(f"its transfer coding {value.decode('latin-1')!r} was not asked for")
        if key in (b"transfer-encoding", b"content-length"):
            found = key
    return found
