"""Connections to one upstream: reused while warm, bounded in number, closed when idle.

Idle connections are dropped after four seconds, sooner than common model servers drop
theirs (uvicorn: five): a request that meets a closing connection would fail, and a
generation may not be sent twice.
"""

from __future__ import annotations

import asyncio
from collections import deque

from headstart.proxy.upstream.connection import UpstreamConnection
from headstart.proxy.upstream.dialling import Dialler

__all__ = ["ConnectionPool", "PoolFull"]

IDLE_S = 4.0


class PoolFull(Exception):
    """As many connections as allowed are in use."""


class ConnectionPool:
    """The connections to one upstream.

    Args:
        dialler: How to open them.
        limit: Connections at once; beyond, `acquire` raises.
        connect_timeout_s: Bound on name lookup, TCP, a proxy's tunnel and TLS together.
    """

    def __init__(self, dialler: Dialler, *, limit: int, connect_timeout_s: float) -> None:
        self._dialler = dialler
        self._limit = limit
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[UpstreamConnection] = deque()
        self._busy: set[UpstreamConnection] = set()
        self._connecting = 0
        self._sweep: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        origin = self._dialler.origin
        return f"<ConnectionPool {origin.host}:{origin.port} busy={len(self._busy)} idle={len(self._idle)}>"

    async def acquire(self) -> UpstreamConnection:
        """Return a connection for one exchange; the caller hands it back with `release`.

        Cancelling leaves nothing behind.

        Raises:
            PoolFull: The limit is reached.
            OSError: The upstream cannot be reached (also ssl.SSLError, TimeoutError).
            ProxyRefused: The proxy on the way to it opens no tunnel.
        """
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                self._busy.add(connection)
                return connection
        if len(self._busy) + self._connecting >= self._limit:
            raise PoolFull(f"{self._limit} connections to {self._dialler.origin.host} are in use")
        return await self._connect()

    def release(self, connection: UpstreamConnection) -> None:
        """Take a connection back: kept if it is clean, else given up."""
        self._busy.discard(connection)
        if not connection.reusable:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since_s = loop.time()
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_S, self._close_idle)

    def close(self) -> None:
        """Give up all connections, busy ones too."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in (*self._idle, *self._busy):
            connection.abort()
        self._idle.clear()
        self._busy.clear()

    async def _connect(self) -> UpstreamConnection:
        self._connecting += 1
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                connection = await self._dialler.dial()
        finally:
            self._connecting -= 1
        self._busy.add(connection)
        return connection

    def _close_idle(self) -> None:
        """Close what nobody used for a while; the oldest are on the left."""
        loop = asyncio.get_running_loop()
        self._sweep = None
        while self._idle and (self._idle[0].closed or loop.time() - self._idle[0].idle_since_s >= IDLE_S):
            self._idle.popleft().abort()
        if self._idle:
            self._sweep = loop.call_at(self._idle[0].idle_since_s + IDLE_S, self._close_idle)
