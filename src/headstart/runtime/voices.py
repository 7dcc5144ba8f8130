"""What servers say outside of any request, and which sessions hear it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from anyio.abc import TaskGroup

from headstart.ids import ResourceId, SessionId
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.fleet import LiveSandbox
from headstart.runtime.handshake import as_catalogue
from headstart.runtime.remote import RemoteConnection
from headstart.runtime.remotes import RemoteHome
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Sessions

__all__ = ["Voices"]

FindConnection = Callable[[SessionId, ResourceId], RemoteConnection | None]


class Voices:
    """Forwards notifications, and reads lists again that a running server has changed.

    `connections` finds a session's remote connection.
    """

    def __init__(
        self, *, sessions: Sessions, servers: ConfiguredServers, connections: FindConnection, tasks: TaskGroup
    ) -> None:
        self._sessions = sessions
        self._servers = servers
        self._connections = connections
        self._tasks = tasks
        self._reading: dict[object, bool] = {}
        """Conversations whose lists are being read again, and whether they have changed meanwhile."""

    def tell(self, session: SessionId, server: ResourceId, method: str, params: JsonObject | None) -> None:
        """Forward a notification to where a session listens; never blocks."""
        known = self._sessions.get(session)
        if known is not None:
            known.tell(server, method, params)

    def listener(self, session: SessionId) -> ClientChannel | None:
        """Return where a session listens."""
        known = self._sessions.get(session)
        return None if known is None else known.listener

    def lists_changed(self, live: LiveSandbox, method: str) -> None:
        """A sandbox's server says that it has changed a list."""
        self._read_once(live.id, lambda: self._read_again(live, method))

    def remote_home(self, session: SessionId, server: ResourceId) -> RemoteHome:
        """Return the owner of a session's conversation with a remote server."""
        return RemoteHome(
            server,
            tell=lambda name, method, params: self.tell(session, name, method, params),
            listener=lambda: self.listener(session),
            lists_changed=lambda method: self._remote_lists_changed(session, server, method),
        )

    def _remote_lists_changed(self, session: SessionId, server: ResourceId, method: str) -> None:
        self._read_once((session, server), lambda: self._read_remote_again(session, server, method))

    def _read_once(self, conversation: object, read: Callable[[], Awaitable[None]]) -> None:
        """Read again, one reading at a time: a server may say that it has changed as often as it likes."""
        if conversation in self._reading:
            self._reading[conversation] = True
            return
        self._reading[conversation] = True
        self._tasks.start_soon(self._read_until_settled, conversation, read)

    async def _read_until_settled(self, conversation: object, read: Callable[[], Awaitable[None]]) -> None:
        try:
            while self._reading[conversation]:
                self._reading[conversation] = False
                await read()
        finally:
            del self._reading[conversation]

    async def _read_again(self, live: LiveSandbox, method: str) -> None:
        lists = await live.supervised.read_lists()
        if lists is None:
            return
        live.own_lists = as_catalogue(live.server, self._servers.spec(live.server).digest, lists)
        for name in tuple(live.sessions):
            session = self._sessions.get(name)
            if session is not None:
                live.use(session)
                session.tell(live.server, method, None)

    async def _read_remote_again(self, name: SessionId, server: ResourceId, method: str) -> None:
        connection, session = self._connections(name, server), self._sessions.get(name)
        if connection is None or session is None:
            return
        lists = await connection.read_lists()
        if lists is not None:
            session.own_lists[server] = as_catalogue(server, self._servers.key(server, session.scope), lists)
            session.tell(server, method, None)
