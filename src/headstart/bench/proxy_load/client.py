"""The load generator: streams over kept connections, timed chunk by chunk.

Takes one JSON command per line on stdin and answers each with one JSON line::

    {"port": 8080, "streams": 100, "rounds": 1, "chunks": 500, "interval_ms": 10, "fresh": false}

For every stream it returns `ttft_ms` (request written → first chunk read) and
`transit_ms`, per chunk: written by the upstream → read here.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

__all__ = ["main"]

_SENT = re.compile(rb'"sent_ns":(\d+)')
_END = b"0\r\n\r\n"
_STREAM_WITHIN_S = 60.0


def _request(chunks: int, interval_ms: float) -> bytes:
    """A request of the size that agents send: a few messages and 20 tools, about 9 kB."""
    tools = [
        {"type": "function", "function": {"name": f"server{n}__read_{n}_0", "description": "Reads a record. " * 12}}
        for n in range(20)
    ]
    messages = [{"role": "system", "content": "You are careful. " * 120}, {"role": "user", "content": "Compare them."}]
    body = json.dumps({"model": "bench", "stream": True, "messages": messages, "tools": tools}).encode()
    head = (
        f"POST /v1/chat/completions?chunks={chunks}&interval_ms={interval_ms} HTTP/1.1\r\nhost: bench\r\n"
        f"content-type: application/json\r\nauthorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class _Timings:
    began_ns: int = 0
    ttft_ms: float = 0.0
    transit_ms: list[float] = field(default_factory=list[float])


class _Client(asyncio.Protocol):
    """One connection; one stream at a time."""

    def __init__(self) -> None:
        self._tail = b""
        self.timings = _Timings()
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's are not its subclasses

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(exc or ConnectionResetError("closed in the middle of a stream"))

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        found = _SENT.findall(data)
        if found:
            timings = self.timings
            if not timings.transit_ms:
                timings.ttft_ms = (now_ns - timings.began_ns) / 1e6
            timings.transit_ms.extend((now_ns - int(sent)) / 1e6 for sent in found)
        self._tail = (self._tail + data)[-len(_END) :]
        if self._tail == _END and self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def stream(self, request: bytes) -> _Timings:
        self.timings, self._tail = _Timings(), b""
        self._done = asyncio.get_running_loop().create_future()
        self.timings.began_ns = time.monotonic_ns()
        self.transport.write(request)
        async with asyncio.timeout(_STREAM_WITHIN_S):
            await self._done
        return self.timings


class _Load:
    """Keeps connections per port, as an agent's HTTP client does."""

    def __init__(self) -> None:
        self._kept: dict[int, list[_Client]] = {}

    async def run(self, command: dict[str, Any]) -> list[dict[str, Any]]:
        request = _request(command["chunks"], command["interval_ms"])
        port, fresh = command["port"], command.get("fresh", False)
        spread_s = command["interval_ms"] / 1e3 / command["streams"]  # real streams don't tick together
        timings: list[_Timings] = []
        for _ in range(command.get("rounds", 1)):
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._one(port, request, fresh=fresh, delay_s=place * spread_s))
                    for place in range(command["streams"])
                ]
            timings += [task.result() for task in tasks]
        return [{"ttft_ms": one.ttft_ms, "transit_ms": one.transit_ms} for one in timings]

    async def _one(self, port: int, request: bytes, *, fresh: bool, delay_s: float) -> _Timings:
        if delay_s:
            await asyncio.sleep(delay_s)
        kept = self._kept.setdefault(port, [])
        while kept and kept[-1].transport.is_closing():
            kept.pop()  # idle for too long, says the server
        client = kept.pop() if kept and not fresh else await self._connect(port)
        timings = await client.stream(request)
        if fresh:
            client.transport.close()
        else:
            kept.append(client)
        return timings

    @staticmethod
    async def _connect(port: int) -> _Client:
        _, client = await asyncio.get_running_loop().create_connection(_Client, "127.0.0.1", port)
        return client


async def _serve() -> None:
    load, loop = _Load(), asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await load.run(json.loads(line))), flush=True)


def main() -> None:
    """Run the commands that come on stdin until it ends."""
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
