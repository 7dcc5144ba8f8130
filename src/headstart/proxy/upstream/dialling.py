"""Opening a connection to an upstream: directly, or through an HTTP proxy.

An https upstream behind a proxy is reached through a tunnel (CONNECT, RFC 9110 §9.3.6), inside of which
TLS is spoken with the upstream itself. For an http upstream the connection is one to the proxy, and it is
the requests on it that name the upstream (absolute-form, RFC 9112 §3.2.2; `UpstreamTarget` writes them).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from ipaddress import ip_address

from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] - its tuples are bare

from headstart.proxy.headers import Header
from headstart.proxy.routes import Origin
from headstart.proxy.upstream.connection import UpstreamBroke, UpstreamConnection

__all__ = ["Dialler", "ProxyRefused"]

HAPPY_EYEBALLS_S = 0.25


class ProxyRefused(Exception):
    """The proxy on the way to an upstream opened no tunnel.

    Attributes:
        status: What it answered, None if that was no answer.
    """

    def __init__(self, message: str, *, status: int | None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """Knows the way to one upstream.

    Attributes:
        origin: The upstream.
        via: The proxy to go through, None for none.
        via_headers: What that proxy is told (its credentials).
        tls: For https origins.
    """

    origin: Origin
    via: Origin | None = None
    via_headers: tuple[Header, ...] = ()
    tls: ssl.SSLContext | None = None

    async def dial(self) -> UpstreamConnection:
        """Open a connection on which requests can be sent. Cancelling leaves nothing behind.

        Raises:
            OSError: The upstream or the proxy cannot be reached (also ssl.SSLError).
            ProxyRefused: The proxy opens no tunnel.
        """
        if self.via is None:
            return await _connect(self.origin, self.tls)
        connection = await _connect(self.via, None)
        return await self._tunnel(connection) if self.origin.tls else connection

    async def _tunnel(self, proxy: UpstreamConnection) -> UpstreamConnection:
        try:
            await self._ask_for_tunnel(proxy)
            connection = UpstreamConnection()
            transport = await asyncio.get_running_loop().start_tls(
                proxy.transport, connection, _context(self.tls), server_hostname=self.origin.host
            )
        except BaseException:
            proxy.abort()
            raise
        if transport is None:
            raise ConnectionAbortedError("the connection was closed in the TLS handshake")
        connection.connection_made(transport)
        return connection

    async def _ask_for_tunnel(self, proxy: UpstreamConnection) -> None:
        host = f"[{self.origin.host}]" if ":" in self.origin.host else self.origin.host
        authority = f"{host}:{self.origin.port}".encode("idna" if not host.isascii() else "ascii")
        proxy.begin(method="CONNECT", target=authority, host=authority, headers=self.via_headers)
        try:
            status = (await proxy.response_head()).status
        except UpstreamBroke as exc:
            raise ProxyRefused(f"it opens no tunnel to {authority.decode()}: {exc}", status=None) from exc
        if status >= 300:
            raise ProxyRefused(f"it opens no tunnel to {authority.decode()}: it answered {status}", status=status)


async def _connect(to: Origin, tls: ssl.SSLContext | None) -> UpstreamConnection:
    loop = asyncio.get_running_loop()
    context, server_hostname = (_context(tls), to.host) if to.tls else (None, None)
    if _is_address(to.host):
        _, connection = await loop.create_connection(
            UpstreamConnection, to.host, to.port, ssl=context, server_hostname=server_hostname
        )
        return connection
    # uvloop tries addresses one after another, so a dead IPv6 route would cost the whole timeout.
    found = await loop.getaddrinfo(to.host, to.port, type=socket.SOCK_STREAM)
    connected = await start_connection(found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, loop=loop)
    _, connection = await loop.create_connection(
        UpstreamConnection, sock=connected, ssl=context, server_hostname=server_hostname
    )
    return connection


def _context(tls: ssl.SSLContext | None) -> ssl.SSLContext:
    assert tls is not None  # noqa: S101 - who makes a dialler for an https origin gives it one
    return tls


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
