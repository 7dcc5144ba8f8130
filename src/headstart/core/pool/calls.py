"""Which sessions are open, and which calls they have."""

from __future__ import annotations

from dataclasses import dataclass, field

from headstart.core.events import CallArrived, SessionOpened
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["Call", "CallBook", "OpenSession"]


@dataclass(slots=True, kw_only=True)
class OpenSession:
    """A session that is open.

    Attributes:
        lost: Servers whose state it lost and was not told about yet.
        calls: Its calls that wait or run.
    """

    id: SessionId
    principal: PrincipalId
    resources: dict[ResourceId, None] = field(default_factory=dict[ResourceId, None])
    lost: set[ResourceId] = field(default_factory=set[ResourceId])
    calls: dict[CallId, None] = field(default_factory=dict[CallId, None])


@dataclass(slots=True, kw_only=True)
class Call:
    """A call that waits (`granted` is False) or runs.

    Attributes:
        sandbox: Which it waits for or runs in; None for a remote or built-in server's.
    """

    id: CallId
    session: SessionId
    resource: ResourceId
    read_only: bool
    arrived_s: float
    sandbox: SandboxId | None = None
    granted: bool = False


class CallBook:
    """The open sessions and their calls; bounded by what is open."""

    def __init__(self) -> None:
        self._sessions: dict[SessionId, OpenSession] = {}
        self._counts: dict[PrincipalId, int] = {}
        self._calls: dict[CallId, Call] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def open_calls(self) -> int:
        """How many calls wait or run."""
        return len(self._calls)

    def session(self, session: SessionId) -> OpenSession | None:
        """Return an open session."""
        return self._sessions.get(session)

    def sessions_of(self, principal: PrincipalId) -> int:
        """Count a principal's open sessions."""
        return self._counts.get(principal, 0)

    def call(self, call: CallId) -> Call | None:
        """Return a call that waits or runs."""
        return self._calls.get(call)

    def open(self, event: SessionOpened) -> OpenSession:
        """Open a session, or widen one that is open."""
        session = self._sessions.get(event.session)
        if session is None:
            session = OpenSession(id=event.session, principal=event.principal)
            self._sessions[event.session] = session
            self._counts[event.principal] = self.sessions_of(event.principal) + 1
        session.resources.update(dict.fromkeys(event.resources))
        session.lost.update(event.lost)
        return session

    def close(self, session: SessionId) -> OpenSession | None:
        """Take an open session out; its calls stay until they are removed."""
        closed = self._sessions.pop(session, None)
        if closed is not None:
            self._counts[closed.principal] -= 1
            if not self._counts[closed.principal]:
                del self._counts[closed.principal]
        return closed

    def add(self, event: CallArrived) -> Call:
        """Take in a call of an open session."""
        call = Call(
            id=event.call,
            session=event.session,
            resource=event.resource,
            read_only=event.read_only,
            arrived_s=event.at_s,
        )
        self._calls[call.id] = call
        self._sessions[call.session].calls[call.id] = None
        return call

    def remove(self, call: Call) -> None:
        """Let go of a call."""
        self._calls.pop(call.id, None)
        session = self._sessions.get(call.session)
        if session is not None:
            session.calls.pop(call.id, None)

    def check(self) -> None:
        """Assert that sessions and calls agree.

        Raises:
            AssertionError: They do not.
        """
        listed = {call for session in self._sessions.values() for call in session.calls}
        if listed != set(self._calls):
            raise AssertionError(f"sessions list the calls {listed}, the book has {set(self._calls)}")
        if sum(self._counts.values()) != len(self._sessions):
            raise AssertionError(f"{len(self._sessions)} sessions are open, the counts say {self._counts}")
