"""The live sessions: who they are, where they listen, and what is theirs alone."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator

import anyio
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError

from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import Catalogue, ClientChannel, JsonObject, SessionScope

__all__ = ["Session", "Sessions"]

MAX_UNSENT = 256
FORWARD_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


class Session:
    """One live session.

    Attributes:
        scope: Who it is; the newest headers.
        own_lists: Lists that a server of this session changed while it ran, by server.
    """

    def __init__(self, scope: SessionScope, tasks: TaskGroup) -> None:
        self.scope = scope
        self.own_lists: dict[ResourceId, Catalogue] = {}
        self.listener: ClientChannel | None = None
        self._tasks = tasks
        self._unsent: deque[tuple[ResourceId, str, JsonObject | None]] = deque()
        self._sending = False
        self._reach: set[ResourceId] = set()

    @property
    def id(self) -> SessionId:
        return self.scope.session

    def widen(self, servers: Iterable[ResourceId]) -> bool:
        """Add servers to what the session reaches; return whether that is news."""
        news = set(servers) - self._reach
        self._reach |= news
        return bool(news)

    def tell(self, server: ResourceId, method: str, params: JsonObject | None) -> None:
        """Forward a notification to where the session listens; never blocks.

        It is dropped if nobody listens or the client takes too slowly what is there already.
        """
        if self.listener is None or len(self._unsent) >= MAX_UNSENT:
            return
        self._unsent.append((server, method, params))
        if not self._sending:
            self._sending = True
            self._tasks.start_soon(self._send_all, name=f"listener of {self.id}")

    async def _send_all(self) -> None:
        """Send what there is and end: an idle session has no task."""
        try:
            while self._unsent and self.listener is not None:
                server, method, params = self._unsent.popleft()
                await self._send(self.listener, server, method, params)
        finally:
            self._sending = False

    async def _send(self, listener: ClientChannel, server: ResourceId, method: str, params: JsonObject | None) -> None:
        try:
            with anyio.fail_after(FORWARD_TIMEOUT_S):
                await listener.notify(method, params, server=server)
        except (TimeoutError, MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError) as exc:
            _log.debug("session %s did not take %s of %s: %r", self.id, method, server, exc)


class Sessions:
    """All live sessions, by id."""

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._sessions: dict[SessionId, Session] = {}
        self._early_listeners: dict[SessionId, ClientChannel] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(tuple(self._sessions.values()))

    def get(self, session: SessionId) -> Session | None:
        return self._sessions.get(session)

    def open(self, scope: SessionScope) -> tuple[Session, bool]:
        """Return the session, and whether it is new."""
        session = self._sessions.get(scope.session)
        if session is not None:
            session.scope = scope
            return session, False
        session = self._sessions[scope.session] = Session(scope, self._tasks)
        session.listener = self._early_listeners.pop(scope.session, None)
        return session, True

    def close(self, session: SessionId) -> Session | None:
        self._early_listeners.pop(session, None)
        return self._sessions.pop(session, None)

    def listen(self, session: SessionId, channel: ClientChannel | None) -> None:
        """Set where a session listens; it may do so before its first request."""
        known = self._sessions.get(session)
        if known is not None:
            known.listener = channel
        elif channel is None:
            self._early_listeners.pop(session, None)
        else:
            self._early_listeners[session] = channel

    def of_principal(self, principal: PrincipalId) -> Iterator[Session]:
        return (session for session in self if session.scope.principal == principal)
