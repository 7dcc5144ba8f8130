"""Who is connected: finds, revives, bounds and ends sessions.

A session ends when its connection is deleted, when nobody used it for the idle time, or
when it is the one unused longest while the cap is reached. A session that its client
named lingers after its last connection was deleted: some agents open and delete a
connection per call, and must find their sandboxes again. A client that outlives a restart
of the service is remembered by its `Mcp-Session-Id` and goes on where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from headstart.clock import Clock
from headstart.gateway.session import Connection, Session
from headstart.ids import IdSource, PrincipalId, ResourceId, SessionId, session_named
from headstart.runtime.contract import (
    ClientChannel,
    JsonObject,
    RememberedClient,
    SessionMemory,
    SessionScope,
    ToolRuntime,
)

__all__ = ["ForgetfulMemory", "SessionLimits", "Sessions", "TooManySessions"]

_logger = logging.getLogger(__name__)
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """When sessions end, and how many there may be.

    Attributes:
        idle_s: Without any request or stream.
        linger_s: A named session without connections.
        cap: Sessions at once; the one unused longest makes room.
    """

    idle_s: float = 1_800.0
    linger_s: float = 300.0
    cap: int = 1_000


class TooManySessions(Exception):
    """The cap is reached and every session is in use."""


class ForgetfulMemory:
    """A `SessionMemory` that lives as long as the process."""

    def __init__(self) -> None:
        self.clients: dict[str, RememberedClient] = {}

    def save(self, client: RememberedClient) -> None:
        self.clients[client.id] = client

    def load(self, client_id: str) -> RememberedClient | None:
        return self.clients.get(client_id)

    def forget(self, client_id: str) -> None:
        self.clients.pop(client_id, None)

    def forget_unseen(self, before_wall_s: float) -> None:
        for client in [c for c in self.clients.values() if c.seen_wall_s < before_wall_s]:
            del self.clients[client.id]


class Sessions:
    """The registry of live sessions."""

    def __init__(
        self,
        *,
        runtime: ToolRuntime,
        memory: SessionMemory,
        clock: Clock,
        ids: IdSource,
        limits: SessionLimits,
    ) -> None:
        self._runtime = runtime
        self._memory = memory
        self._clock = clock
        self._ids = ids
        self._limits = limits
        self._sessions: dict[SessionId, Session] = {}
        self._connections: dict[str, Connection] = {}
        self._saved_s: dict[str, float] = {}
        self._channel_of: dict[SessionId, ClientChannel] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def live(self) -> list[Session]:
        """Return all sessions, in the order they began."""
        return list(self._sessions.values())

    def named(self, principal: PrincipalId, name: str) -> Session | None:
        """Return a session by the name that its client gave it."""
        return self._sessions.get(session_named(principal, name))

    async def find(self, connection_id: str, principal: PrincipalId, server: ResourceId | None) -> Connection | None:
        """Return a handshake connection, reviving a remembered one; None if it is not this client's.

        Raises:
            TooManySessions: There is no room to revive it and nothing idle to end.
        """
        connection = self._connections.get(connection_id)
        if connection is None:
            return await self._revive(connection_id, principal, server)
        mine = connection.session.principal == principal and connection.server == server
        return connection if mine else None

    async def connect(
        self,
        *,
        principal: PrincipalId,
        name: str | None,
        server: ResourceId | None,
        protocol_version: str,
        client_params: JsonObject,
    ) -> Connection:
        """Begin a handshake connection, in the named session or in one of its own.

        Raises:
            TooManySessions: There is no room and nothing idle to end.
        """
        connection_id = self._ids.new("mcp")
        session_id = session_named(principal, name or connection_id)
        session = await self._session(session_id, principal, named=name is not None)
        connection = self._join(session, connection_id, server, protocol_version, client_params)
        self._connections[connection_id] = connection
        self._save(connection)
        return connection

    async def implicit(
        self,
        *,
        principal: PrincipalId,
        name: str,
        named: bool,
        server: ResourceId | None,
        protocol_version: str,
    ) -> Connection:
        """Return the connection of a client that has no `Mcp-Session-Id`, one per session and route."""
        session = await self._session(session_named(principal, name), principal, named=named)
        local_id = f"@{protocol_version}/{server or ''}"
        connection = session.connections.get(local_id)
        return connection or self._join(session, local_id, server, protocol_version, {})

    def carry_headers(self, connection: Connection, headers: Mapping[str, str]) -> None:
        """Take the newest headers that a remote server is to get from this client."""
        if connection.scope.passthrough_headers == headers:
            return
        connection.scope = replace(
            connection.scope, passthrough_headers=dict(headers), credentials=_digest(headers) if headers else ""
        )
        self._runtime.open_session(connection.scope)

    @contextmanager
    def serving(self, connection: Connection) -> Generator[None]:
        """Keep a connection's session from being idle while a request of it is served."""
        session = connection.session
        session.open_requests += 1
        try:
            yield
        finally:
            session.open_requests -= 1
            session.used_s = self._clock.monotonic_s()
            if connection.id in self._connections and self._save_is_due(connection.id):
                self._save(connection)

    async def disconnect(self, connection: Connection) -> None:
        """End a connection, and its session unless that has others or a name to come back to."""
        self._drop(connection)
        self._memory.forget(connection.id)
        if not connection.session.connections and not connection.session.named:
            await self._close(connection.session, reason="its client ended it")

    async def end(self, session: Session) -> None:
        """End a session with all its connections."""
        await self._close(session, reason="its client ended it")

    async def sweep(self) -> None:
        """End every session that was unused for its time, and forget their clients."""
        now_s = self._clock.monotonic_s()
        for session in self.live():
            patience_s = self._limits.idle_s if session.connections else min(self._limits.idle_s, self._limits.linger_s)
            if session.idle and now_s - session.used_s >= patience_s:
                await self._close(session, reason="nobody used it")
        for connection in self._connections.values():
            if not connection.session.idle and self._save_is_due(connection.id):
                self._save(connection)
        self._memory.forget_unseen(self._clock.wall_s() - max(self._limits.idle_s, 2 * _SAVE_EVERY_S))

    def end_streams(self) -> None:
        """End all streams that clients hold open for what belongs to no request; requests go on."""
        for session in self._sessions.values():
            for connection in session.connections.values():
                for outbox in connection.outboxes:
                    outbox.close()

    def close_all(self) -> None:
        """End all sessions but remember their clients: the service is stopping."""
        for session in list(self._sessions.values()):
            self._forget_session(session, forget_clients=False)

    def listen_with(self, session: SessionId, channel: ClientChannel) -> None:
        """Tell the runtime where to send what belongs to none of the session's requests."""
        self._channel_of[session] = channel
        self._runtime.listen(session, channel)

    def listening(self, session: SessionId) -> bool:
        return session in self._channel_of

    # ------------------------------------------------------------ inside

    async def _session(self, session_id: SessionId, principal: PrincipalId, *, named: bool) -> Session:
        session = self._sessions.get(session_id)
        if session is not None:
            return session
        await self._make_room()
        return self._sessions.setdefault(
            session_id,
            Session(id=session_id, principal=principal, named=named, used_s=self._clock.monotonic_s()),
        )

    async def _make_room(self) -> None:
        while len(self._sessions) >= self._limits.cap:
            oldest = min(
                (session for session in self._sessions.values() if session.idle),
                key=lambda session: session.used_s,
                default=None,
            )
            if oldest is None:
                raise TooManySessions
            await self._close(oldest, reason="the cap on sessions was reached")

    def _join(
        self,
        session: Session,
        connection_id: str,
        server: ResourceId | None,
        protocol_version: str,
        client_params: JsonObject,
    ) -> Connection:
        sibling = next((c for c in session.connections.values() if c.server == server and _sees_all(c)), None)
        connection = Connection(
            id=connection_id,
            session=session,
            server=server,
            scope=SessionScope(session=session.id, principal=session.principal),
            protocol_version=protocol_version,
            client_params=client_params,
            modern=protocol_version in MODERN_PROTOCOL_VERSIONS,
            view=None if sibling is None else sibling.view,
        )
        session.connections[connection_id] = connection
        reached = session.servers()
        for each in session.connections.values():
            each.scope = replace(each.scope, servers=reached)
        self._runtime.open_session(connection.scope)
        return connection

    async def _revive(self, connection_id: str, principal: PrincipalId, server: ResourceId | None) -> Connection | None:
        known = self._memory.load(connection_id)
        if known is None or known.principal != principal or known.server != server:
            return None
        named = known.session != session_named(principal, connection_id)
        session = await self._session(known.session, principal, named=named)
        connection = self._connections.get(connection_id)  # another request of this client may have come meanwhile
        if connection is None:
            connection = self._join(session, connection_id, server, known.protocol_version, known.client_params)
            self._connections[connection_id] = connection
        return connection

    def _save_is_due(self, connection_id: str) -> bool:
        return self._clock.monotonic_s() - self._saved_s.get(connection_id, 0.0) >= _SAVE_EVERY_S

    def _save(self, connection: Connection) -> None:
        self._saved_s[connection.id] = self._clock.monotonic_s()
        self._memory.save(
            RememberedClient(
                id=connection.id,
                session=connection.session.id,
                principal=connection.session.principal,
                server=connection.server,
                protocol_version=connection.protocol_version,
                client_params=connection.client_params,
                seen_wall_s=self._clock.wall_s(),
            )
        )

    def _drop(self, connection: Connection) -> None:
        connection.end()
        connection.session.connections.pop(connection.id, None)
        self._connections.pop(connection.id, None)
        self._saved_s.pop(connection.id, None)

    def _forget_session(self, session: Session, *, forget_clients: bool) -> None:
        self._sessions.pop(session.id, None)
        for connection in list(session.connections.values()):
            self._drop(connection)
            if forget_clients:
                self._memory.forget(connection.id)
        if self._channel_of.pop(session.id, None) is not None:
            self._runtime.listen(session.id, None)

    async def _close(self, session: Session, *, reason: str) -> None:
        if session.id not in self._sessions:
            return
        self._forget_session(session, forget_clients=True)
        _logger.debug("session %s ended: %s", session.id, reason)
        with anyio.CancelScope(shield=True), anyio.move_on_after(30) as bound:
            await self._runtime.close_session(session.id, reason=reason)
        if bound.cancelled_caught:
            _logger.warning("session %s: its sandboxes did not stop within 30 s", session.id)


def _sees_all(connection: Connection) -> bool:
    """Tell whether a conversation's other connection may as well see what this one sees."""
    return connection.view is not None and not connection.view.missing


def _digest(headers: Mapping[str, str]) -> str:
    text = "\x1e".join(f"{name}\x1f{value}" for name, value in sorted(headers.items()))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
