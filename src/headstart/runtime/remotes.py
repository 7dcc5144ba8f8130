"""The remote connections of all sessions: opened at first use, reopened when they broke."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anyio.abc import TaskGroup

from headstart.clock import Clock
from headstart.errors import SandboxLost, ServerUnavailable
from headstart.ids import ResourceId, SessionId
from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.runtime.remote import RemoteConnection, SessionForgotten
from headstart.runtime.rpc import Exchange
from headstart.runtime.servers import ConfiguredServers

__all__ = ["Asked", "RemoteHome", "Remotes"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client asks a server for."""

    method: str
    params: JsonObject | None


class RemoteHome:
    """The owner of one remote conversation: the session that it belongs to."""

    def __init__(
        self,
        server: ResourceId,
        *,
        tell: Callable[[ResourceId, str, JsonObject | None], None],
        listener: Callable[[], ClientChannel | None],
        lists_changed: Callable[[str], None],
    ) -> None:
        self._server = server
        self._tell = tell
        self._listener = listener
        self._lists_changed = lists_changed

    def notified(self, method: str, params: JsonObject | None) -> None:
        if method.endswith("list_changed"):
            self._lists_changed(method)
        else:
            self._tell(self._server, method, params)

    def fallback_channel(self) -> ClientChannel | None:
        return self._listener()


class Remotes:
    """Connections by session and server.

    One that ended by itself stays, if it had state, until that has been told (a call that
    it broke under tells it).

    `stateless` tells whether a server spoke the stateless protocol when it was last met.
    """

    def __init__(
        self,
        *,
        servers: ConfiguredServers,
        home: Callable[[SessionId, ResourceId], RemoteHome],
        stateless: Callable[[ResourceId, SessionScope], bool],
        clock: Clock,
        tasks: TaskGroup,
    ) -> None:
        self._servers = servers
        self._home = home
        self._stateless = stateless
        self._clock = clock
        self._tasks = tasks
        self._connections: dict[tuple[SessionId, ResourceId], RemoteConnection] = {}

    def __len__(self) -> int:
        return sum(not connection.ended for connection in self._connections.values())

    def get(self, session: SessionId, server: ResourceId) -> RemoteConnection | None:
        connection = self._connections.get((session, server))
        return None if connection is None or connection.ended else connection

    def open(self, scope: SessionScope, server: ResourceId) -> RemoteConnection:
        """Return the session's connection, beginning one if there is none that lives."""
        connection = self.get(scope.session, server)
        headers = _forwarded(scope.passthrough_headers)
        if connection is not None:
            connection.use_headers(headers)
            return connection
        connection = RemoteConnection(
            self._servers.get(server),
            headers=headers,
            owner=self._home(scope.session, server),
            clock=self._clock,
            stateless=self._stateless(server, scope),
        )
        self._connections[scope.session, server] = connection
        self._tasks.start_soon(self._run, (scope.session, server), connection, name=f"remote {server}")
        return connection

    async def request(
        self,
        scope: SessionScope,
        server: ResourceId,
        asked: Asked,
        channel: ClientChannel,
        *,
        writes: bool,
    ) -> Exchange:
        """Send a request; a session that the server has forgotten is begun again, if nothing went with it.

        Raises:
            SandboxLost: The session there is over, and it had state of ours; told once.
        """
        self._tell_lost(scope.session, server)
        connection = self.open(scope, server)
        had_state = connection.served_writes
        try:
            return await _ask(connection, asked, channel, writes=writes)
        except SessionForgotten as exc:
            connection.served_writes = False
            connection.stop()
            if had_state:
                raise _lost(server, "the remote server has ended this session") from exc
        return await _ask(self.open(scope, server), asked, channel, writes=writes)

    def _tell_lost(self, session: SessionId, server: ResourceId) -> None:
        connection = self._connections.get((session, server))
        if connection is not None and connection.ended and connection.served_writes:
            connection.served_writes = False
            raise _lost(server, "the connection to the remote server broke")

    def close(self, session: SessionId) -> None:
        """End all connections of a session."""
        for where in [where for where in self._connections if where[0] == session]:
            self._connections.pop(where).stop()

    def close_all(self) -> None:
        for connection in list(self._connections.values()):
            connection.stop()

    async def _run(self, where: tuple[SessionId, ResourceId], connection: RemoteConnection) -> None:
        try:
            await connection.live()
        finally:
            if self._connections.get(where) is connection and not connection.served_writes:
                del self._connections[where]


async def _ask(connection: RemoteConnection, asked: Asked, channel: ClientChannel, *, writes: bool) -> Exchange:
    await connection.ready()
    connection.served_writes |= writes
    try:
        return await connection.request(asked.method, asked.params, channel)
    except ServerUnavailable:
        if connection.ended:
            connection.served_writes = False  # this tells it
        raise


def _lost(server: ResourceId, why: str) -> SandboxLost:
    return SandboxLost(
        f"{server}: {why}, and its state is gone", server=server, hint="the next call begins a new session there"
    )


def _forwarded(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
