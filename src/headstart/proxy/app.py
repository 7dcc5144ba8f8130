"""The proxy as a raw ASGI app.

`/<prefix>/v1/…` goes to that upstream, `/v1/…` to the one named `default`; with `/s/<id>`
before it, the request belongs to session `<id>`. See docs/reference/http-proxy.md.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote

from starlette.types import Receive, Scope, Send

from headstart.clock import Clock, SystemClock
from headstart.config.model import Upstream
from headstart.core.stream import ModelEvent
from headstart.ids import IdSource, PrincipalId, RandomIds, is_session_name, session_named
from headstart.proxy.exchange import ClientRequest, Exchange
from headstart.proxy.formats import FORMATS
from headstart.proxy.headers import SESSION_HEADER, Header, framing_of, value_of
from headstart.proxy.port import trailers_of
from headstart.proxy.reading import GenerationReading, ModelReader, ReadingLimits
from headstart.proxy.refusals import Refusal
from headstart.proxy.routes import Route, Routes, UpstreamTarget
from headstart.proxy.statistics import ProxyStatistics, Tally, route_label
from headstart.proxy.upstream import ConnectionPool, Dialler
from headstart.runtime.tasks import open_tasks

__all__ = ["ModelProxy", "ProxyLimits", "open_proxy"]

_GENERATIONS_NOT_READ = ("/responses", "/messages", "/completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """Bounds.

    Attributes:
        connections: To each upstream at once; beyond, requests get 503.
        connect_timeout_s: For name lookup, TCP and TLS together.
    """

    connections: int = 4_096
    connect_timeout_s: float = 10.0
    reading: ReadingLimits = field(default_factory=ReadingLimits)


@asynccontextmanager
async def open_proxy(  # noqa: PLR0913 - a composition root passes what the proxy stands on, each by name
    upstreams: Iterable[Upstream],
    *,
    observe: Callable[[ModelEvent], None],
    principal_of: Callable[[Scope], PrincipalId],
    clock: Clock | None = None,
    ids: IdSource | None = None,
    limits: ProxyLimits | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[ModelProxy]:
    """Open a proxy: an ASGI app that works while the block runs.

    Args:
        upstreams: The model servers.
        observe: Gets every model event, in the event loop; must not block or raise.
        principal_of: Whose request it is (a guard in front has checked it).
        clock: Stamps events.
        ids: Names generations.
        limits: Bounds.
        tls: Context for https upstreams instead of the default, which verifies.

    Raises:
        ConfigError: An upstream's prefix or URL cannot be used.
    """
    tally = Tally()
    limits = limits or ProxyLimits()
    clock = clock or SystemClock()
    reader = ModelReader(observe, clock=clock, ids=ids or RandomIds(), tally=tally, limits=limits.reading)
    proxy = ModelProxy(
        Routes(upstreams), reader, principal_of=principal_of, clock=clock, limits=limits, tls=tls, tally=tally
    )
    async with open_tasks() as group:
        group.start_soon(reader.run)
        try:
            yield proxy
        finally:
            proxy.close()
            reader.close()
            group.cancel_scope.cancel()


class ModelProxy:
    """The ASGI app; made by `open_proxy`."""

    def __init__(  # noqa: PLR0913 - see open_proxy
        self,
        routes: Routes,
        reader: ModelReader,
        *,
        principal_of: Callable[[Scope], PrincipalId],
        clock: Clock,
        limits: ProxyLimits,
        tls: ssl.SSLContext | None,
        tally: Tally,
    ) -> None:
        self._routes = routes
        self._reader = reader
        self._principal_of = principal_of
        self._clock = clock
        self._limits = limits
        self._tally = tally
        self._pools = {
            upstream.prefix: ConnectionPool(
                _dialler(upstream, tls),
                limit=limits.connections,
                connect_timeout_s=limits.connect_timeout_s,
            )
            for upstream in routes.upstreams
        }

    def claims(self, path: str) -> bool:
        """Say whether a request for `path` is the proxy's to answer (`/v1…`, `/<prefix>…`, `/s/<id>/…` of these)."""
        return self._routes.claims(path)

    def catch_up(self) -> None:
        """Read what has been passed on up to now, as far as a few milliseconds go.

        For whoever is about to look at what a client did in answer to it: the bytes that asked for a
        tool call have passed before the call can come, but may not have been read.
        """
        self._reader.catch_up()

    def statistics(self) -> ProxyStatistics:
        """Return the counts of this moment."""
        return self._tally.snapshot(queued_bytes=self._reader.queued_bytes)

    def close(self) -> None:
        """Give up all upstream connections."""
        for pool in self._pools.values():
            pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._http(scope, receive, send)
            case "websocket":
                await receive()
                self._tally.requests += 1
                await _UPGRADE_REFUSED.send_to_websocket(send)
            case other:
                raise RuntimeError(f"the proxy serves http, not {other}: open it with open_proxy, around the server")

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._tally.requests += 1
        at_s = self._clock.monotonic_s()
        route = self._route(scope)
        if isinstance(route, Refusal):
            await route.send(send)
            return
        self._tally.active_streams += 1
        try:
            await self._exchange(self._client_request(scope, route), at_s, receive, send)
        finally:
            self._tally.active_streams -= 1

    def _route(self, scope: Scope) -> Route | Refusal:
        if (refusal := _unreadable(scope)) is not None:
            return refusal
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        route = self._routes.resolve(raw_path, scope["query_string"])
        misdirected = isinstance(route, Route) and scope["method"] == "POST" and route.path in ("", "/")
        return _NOT_MCP if misdirected else route

    def _client_request(self, scope: Scope, route: Route) -> ClientRequest:
        headers = list(scope["headers"])
        name = route.session or _session_of(headers)
        principal = self._principal_of(scope)
        return ClientRequest(
            method=scope["method"],
            route=route,
            headers=headers,
            framing=framing_of(headers),
            session=None if name is None else session_named(principal, name),
            principal=principal,
            trailers=trailers_of(scope),
        )

    async def _exchange(self, request: ClientRequest, at_s: float, receive: Receive, send: Send) -> None:
        exchange = Exchange(
            request,
            self._pools[request.route.upstream.prefix],
            reading=self._open_reading(request, at_s),
            clock=self._clock,
            tally=self._tally,
        )
        await exchange.run(receive, send)

    def _open_reading(self, request: ClientRequest, at_s: float) -> GenerationReading | None:
        """Choose who reads; a request that no format knows is counted and passes through."""
        path = request.route.path
        wire_format = next((one for one in FORMATS if one.matches(request.method, path)), None)
        label = route_label(request.method, path)
        if wire_format is not None:
            return self._reader.open(wire_format, route=label, at_s=at_s)
        generates = request.method == "POST" and path.rstrip("/") in _GENERATIONS_NOT_READ
        self._tally.count_unread(label, "format not read yet" if generates else "not a generation")
        return None


def _dialler(upstream: UpstreamTarget, tls: ssl.SSLContext | None) -> Dialler:
    origin = upstream.origin
    context = (tls or ssl.create_default_context()) if origin.tls else None
    tunnel_headers = upstream.proxy_headers if origin.tls else ()  # without a tunnel, each request carries them
    return Dialler(origin=origin, via=upstream.via, via_headers=tunnel_headers, tls=context)


def _session_of(headers: Sequence[Header]) -> str | None:
    """Return the session that the header names; an impossible name is none, since the model must answer anyway."""
    named = value_of(headers, SESSION_HEADER)
    name = unquote(named.decode("latin-1")) if named else ""
    return name if is_session_name(name) else None


def _unreadable(scope: Scope) -> Refusal | None:
    """Say what of a request cannot be passed on as it is meant."""
    headers: Sequence[Header] = scope["headers"]
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if codings not in ([], [b"chunked"]):
        return _CODING_REFUSED
    upgrade = (value_of(headers, b"upgrade") or b"").lower()
    if b"websocket" in upgrade:
        return _UPGRADE_REFUSED
    has_body = codings or value_of(headers, b"content-length") not in (None, b"0")
    return _UPGRADE_WITH_BODY_REFUSED if upgrade and has_body and _names_upgrade(headers) else None


def _names_upgrade(headers: Sequence[Header]) -> bool:
    return any(name == b"connection" and b"upgrade" in value.lower() for name, value in headers)


_NOT_MCP = Refusal(
    status=404,
    code="no_route",
    message="a base URL itself takes no POST",
    hint="MCP is at /mcp and /mcp/<server>, model APIs below the base URL (/v1/chat/completions)",
)
_UPGRADE_REFUSED = Refusal(
    status=426,
    code="no_websocket",
    message="WebSocket connections to model servers are not relayed",
    hint="use the HTTP transport (server-sent events) of the same route",
    headers=((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade")),
)
_UPGRADE_WITH_BODY_REFUSED = Refusal(
    status=426,
    code="no_upgrade",
    message="a body that comes with a request for another protocol cannot be read",
    hint="send it without Upgrade, as plain HTTP/1.1 (curl --http1.1)",
    headers=((b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade, close")),
)
_CODING_REFUSED = Refusal(
    status=501,
    code="transfer_coding",
    message="the only transfer coding that is read is chunked",
    hint="compress the body with Content-Encoding instead of Transfer-Encoding",
    headers=((b"connection", b"close"),),
)
