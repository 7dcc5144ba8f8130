"""A relay of bytes that knows no HTTP: what any process in between adds on this machine."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

__all__ = ["main"]


class _Leg(asyncio.Protocol):
    """One side of a connection; what it reads, the other side writes."""

    def __init__(self, upstream_port: int | None) -> None:
        self._upstream_port = upstream_port
        self._waiting: list[bytes] = []
        self.other: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._upstream_port is not None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(self._upstream_port))

    async def _connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        _, leg = await loop.create_connection(lambda: _Leg(None), "127.0.0.1", port)
        leg.other, self.other = self.transport, leg.transport
        self.other.write(b"".join(self._waiting))

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._waiting.append(data)
        else:
            self.other.write(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.other is not None:
            self.other.close()


async def _serve(upstream_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Leg(upstream_port), "127.0.0.1", 0, backlog=1024)
    async with server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Relay to the port given as argument until stdin ends; prints the own port first."""
    uvloop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
