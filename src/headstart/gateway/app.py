"""The gateway as an ASGI app.

Routes: `/mcp`, `/mcp/<server>`, `/s/<id>/mcp`, `/s/<id>/mcp/<server>`, and the metadata of
remote servers under `/.well-known/oauth-protected-resource`. The version header decides
the era, as in the official SDK: a version without a handshake is served statelessly.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import anyio
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from headstart.clock import Clock, SystemClock
from headstart.gateway.exchange import Attendance, Http, Parts
from headstart.gateway.handshake import Handshake
from headstart.gateway.methods import Methods
from headstart.gateway.modern import Modern
from headstart.gateway.parked import ParkedCalls
from headstart.gateway.sessions import ForgetfulMemory, SessionLimits, Sessions, TooManySessions
from headstart.gateway.sign_in import WELL_KNOWN, SignIn
from headstart.gateway.views import Views
from headstart.gateway.wire import BodyTooLarge, ClientLeft, Receive, Scope, Send, header, read_body, refuse, send_json
from headstart.ids import (
    LOCAL_PRINCIPAL,
    PRINCIPAL_SCOPE_KEY,
    SESSION_NAME_RULE,
    IdSource,
    PrincipalId,
    RandomIds,
    ResourceId,
    is_session_name,
)
from headstart.runtime.contract import SessionMemory, ToolRuntime
from headstart.runtime.tasks import open_tasks

__all__ = ["Gateway", "GatewayOptions", "open_gateway"]

_ROUTE: Final = re.compile(r"(?:/s/(?P<session>[^/]+))?/mcp(?:/(?P<server>[^/]+))?/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What an operator may want otherwise.

    Attributes:
        body_limit_bytes: The largest request body.
        requests_at_once: Open requests per connection.
        sessions: When they end, and how many there may be.
    """

    body_limit_bytes: int = 64 * 1024 * 1024
    requests_at_once: int = 128
    sessions: SessionLimits = field(default_factory=SessionLimits)


class Gateway:
    """Serves MCP clients. Made by `open_gateway`."""

    def __init__(
        self,
        *,
        runtime: ToolRuntime,
        sessions: Sessions,
        handshake: Handshake,
        modern: Modern,
        sign_in: SignIn,
        options: GatewayOptions,
    ) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._handshake = handshake
        self._modern = modern
        self._sign_in = sign_in
        self._options = options
        self._known: dict[PrincipalId, tuple[ResourceId, ...]] = {}

    @staticmethod
    def serves(path: str) -> bool:
        """Tell whether a path is the gateway's."""
        return _ROUTE.fullmatch(path.removeprefix(WELL_KNOWN)) is not None

    @property
    def sessions(self) -> Sessions:
        return self._sessions

    def drain(self) -> None:
        """End the streams that stay open by nature, so that a server that shuts down need not wait for them."""
        self._sessions.end_streams()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        try:
            if scope["path"].startswith(WELL_KNOWN):
                await self._metadata(scope, send)
                return
            http = await self._routed(scope, receive, send)
            if http is not None:
                await self._serve(http)
        except BodyTooLarge:
            limit_mb = self._options.body_limit_bytes // (1024 * 1024)
            await refuse(send, 413, INVALID_REQUEST, f"the body is larger than {limit_mb} MB")
        except TooManySessions:
            told = "too many sessions are open, all of them in use; end one with DELETE, or raise session_cap"
            await refuse(send, 503, INTERNAL_ERROR, told, headers=[(b"retry-after", b"5")])
        except ClientLeft:
            return

    async def _metadata(self, scope: Scope, send: Send) -> None:
        path = scope["path"].removeprefix(WELL_KNOWN)
        route = _ROUTE.fullmatch(path)
        if route is None or route["server"] is None or scope["method"] != "GET":
            await refuse(send, 404, INVALID_REQUEST, f"only GET {WELL_KNOWN}/mcp/<server> is here")
            return
        await self._sign_in.metadata(scope, send, ResourceId(unquote(route["server"])), path)

    async def _routed(self, scope: Scope, receive: Receive, send: Send) -> Http | None:
        route = _ROUTE.fullmatch(scope["path"])
        principal = scope.get(PRINCIPAL_SCOPE_KEY, LOCAL_PRINCIPAL)
        if route is None:
            await refuse(send, 404, INVALID_REQUEST, "no such route; MCP is at /mcp and /mcp/<server>")
            return None
        named = route["session"] or header(scope, b"x-headstart-session")
        name = unquote(named) if named else None
        if name is not None and not is_session_name(name):
            await refuse(send, 400, INVALID_REQUEST, SESSION_NAME_RULE)
            return None
        server = ResourceId(unquote(route["server"])) if route["server"] else None
        if server is not None and server not in (known := self._servers_of(principal)):
            told = f"no server {server!r} in the config; there are: {', '.join(known) or 'none'}"
            await refuse(send, 404, INVALID_REQUEST, told)
            return None
        return Http(scope, receive, send, principal, server, name)

    def _servers_of(self, principal: PrincipalId) -> tuple[ResourceId, ...]:
        """Return what is configured; asked once per principal, for a config lives as long as the service."""
        known = self._known.get(principal)
        if known is None:
            known = self._known[principal] = tuple(entry.name for entry in self._runtime.servers(principal))
        return known

    async def _serve(self, http: Http) -> None:
        method = http.scope["method"]
        version = header(http.scope, b"mcp-protocol-version")
        if method == "POST":
            media = (header(http.scope, b"content-type") or "").split(";", 1)[0].strip().lower()
            if media != "application/json":
                await refuse(http.send, 415, INVALID_REQUEST, "the body must be application/json")
                return
            body = await read_body(http.scope, http.receive, self._options.body_limit_bytes)
            if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
                await self._handshake.post(http, body)
            else:
                await self._modern.post(http, body)
        elif version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await send_json(http.send, 405, headers=[(b"allow", b"POST")])
        elif method == "GET":
            await self._handshake.get(http)
        elif method == "DELETE":
            await self._handshake.delete(http)
        else:
            await send_json(http.send, 405, headers=[(b"allow", b"GET, POST, DELETE")])


@asynccontextmanager
async def open_gateway(
    runtime: ToolRuntime,
    *,
    options: GatewayOptions = GatewayOptions(),
    memory: SessionMemory | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    remotes: Mapping[ResourceId, str] | None = None,
) -> AsyncGenerator[Gateway]:
    """Open a gateway; leaving ends its streams and forgets its sessions, but not their clients.

    Args:
        runtime: Where the tools are.
        options: Limits.
        memory: Where clients are remembered; without, a restart strands them.
        clock: For idle times.
        ids: Makes `Mcp-Session-Id`s.
        remotes: The URLs of remote servers, for signing in to them.
    """
    sessions = Sessions(
        runtime=runtime,
        memory=memory or ForgetfulMemory(),
        clock=clock or SystemClock(),
        ids=ids or RandomIds(),
        limits=options.sessions,
    )
    views = Views(runtime)
    methods = Methods(runtime, views)
    sign_in = SignIn(remotes or {})
    parts = Parts(
        sessions=sessions,
        methods=methods,
        views=views,
        sign_in=sign_in,
        attendance=Attendance(),
        requests_at_once=options.requests_at_once,
    )
    handshake = Handshake(parts)
    async with open_tasks() as tasks:
        tasks.start_soon(parts.attendance.watch_clients)
        tasks.start_soon(parts.attendance.break_silences)
        tasks.start_soon(_sweep, sessions, min(30.0, options.sessions.idle_s / 4))
        modern = Modern(parts, ParkedCalls(tasks))
        try:
            yield Gateway(
                runtime=runtime, sessions=sessions, handshake=handshake, modern=modern, sign_in=sign_in, options=options
            )
        finally:
            sessions.close_all()
            tasks.cancel_scope.cancel()


async def _sweep(sessions: Sessions, every_s: float) -> None:
    while True:
        await anyio.sleep(every_s)
        await sessions.sweep()
