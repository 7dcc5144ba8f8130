"""A model server that costs next to nothing and says when it sent each chunk.

Every chunk carries `sent_ns`, read from the clock that all processes of a machine share,
in the instant before it is written. A request's query chooses `chunks` and
`interval_ms`; the schedule is absolute, so a busy machine makes chunks late but not few.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, cast
from urllib.parse import parse_qs

import httptools
import uvloop

__all__ = ["main"]

_WORDS = [
    "Let",
    "me",
    "look",
    "at",
    "the",
    "open",
    "issues",
    "first",
    ",",
    "then",
    "read",
    "the",
    "spreadsheet",
    "and",
    "compare",
    "its",
    "totals",
    "with",
    "the",
    "database",
    "before",
    "I",
    "write",
    "the",
    "summary",
    "of",
    "this",
    "quarter",
    "for",
    "the",
    "team",
    "and",
    "send",
    "it",
    "to",
    "the",
    "reviewers",
    ".",
]
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class _Stream(asyncio.Protocol):
    """Answers one request after another on one connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._query: dict[str, list[str]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclasses

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._query = parse_qs(url.partition(b"?")[2].decode())

    def on_message_complete(self) -> None:
        self._chunks = int(self._query.get("chunks", ["5"])[0])
        self._interval_s = float(self._query.get("interval_ms", ["0"])[0]) / 1e3
        self._sent = 0
        self._began_s = self._loop.time()
        self._transport.write(_HEAD)
        self._send_due()

    def _send_due(self) -> None:
        while self._sent < self._chunks:
            due_s = self._began_s + self._sent * self._interval_s
            if due_s > self._loop.time() + 0.0005:
                self._timer = self._loop.call_at(due_s, self._send_due)
                return
            self._transport.write(_chunk(self._sent))
            self._sent += 1
        self._transport.write(_END)


def _chunk(number: int) -> bytes:
    delta: dict[str, Any] = {"content": _WORDS[number % len(_WORDS)] + " "}
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": None}
    chunk = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": "bench",
        "sent_ns": time.monotonic_ns(),
        "choices": [choice],
    }
    event = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(event), event)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Stream, "127.0.0.1", 0, backlog=1024)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)  # until the bench closes it


def main() -> None:
    """Serve until stdin ends; prints the port first."""
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
