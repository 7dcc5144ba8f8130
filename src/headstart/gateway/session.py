"""Sessions and the connections that belong to them.

A *connection* is one MCP client as the protocol knows it: a 2025 handshake with its
`Mcp-Session-Id`, or everything that a stateless client posts to one route. A *session*
owns sandboxes; it has one connection or several. Both are plain state without tasks, so
an abandoned one costs its few objects until the sweep finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

from headstart.gateway.view import Target, View
from headstart.gateway.wire import json_object
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import JsonObject, SessionScope

__all__ = ["PATIENCE_S", "Connection", "Outbox", "Question", "Session"]

PATIENCE_S: Final = 600.0
"""How long a server waits for a client's answer: a person may have to give it."""
_LEARNED_URIS = 1_000


class Outbox(Protocol):
    """A stream on which a client hears what belongs to none of its requests."""

    def wants(self, method: str, params: Mapping[str, Any] | None) -> bool:
        """Tell whether this notification may be sent on it."""
        ...

    def offer(self, method: str, params: JsonObject | None) -> bool:
        """Queue a notification; False if the client is too far behind and it is dropped."""
        ...

    def ask(self, message: bytes) -> bool:
        """Queue a request to the client; False if this stream cannot carry it."""
        ...

    def close(self) -> None:
        """End the stream."""
        ...


class Question:
    """A request from a server to the client that waits for its answer, `PATIENCE_S` at most."""

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._answer: JsonObject = _unanswered(REQUEST_TIMEOUT, f"the client did not answer within {PATIENCE_S:g} s")

    def answer(self, message: JsonObject) -> None:
        """Take the client's response object (with `result` or `error`)."""
        self._answer = message
        self._answered.set()

    def give_up(self) -> None:
        """Nobody is left who could answer."""
        self.answer(_unanswered(CONNECTION_CLOSED, "the client left before it answered"))

    async def wait(self) -> JsonObject:
        """Return the client's response object, or an error in its place."""
        with anyio.move_on_after(PATIENCE_S):
            await self._answered.wait()
        return self._answer


def _unanswered(code: int, message: str) -> JsonObject:
    return {"error": {"code": code, "message": message}}


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """One MCP client.

    Attributes:
        id: Its `Mcp-Session-Id`; for a client that has none, a name within its session.
        server: The one server that it talks to, or None for the merged view.
        client_params: The `params` of its `initialize`; empty for a stateless client, which
            says who it is with each request.
        view: What it sees; None until it first looks.
        stale: Its lists have changed, and it could not be told yet.
        in_flight: Its open requests by its ids, so that it can cancel them, or by keys of ours.
        questions: Requests of servers that it has not answered yet, by our id.
        outboxes: Its open streams.
        log_level: What it set with `logging/setLevel`.
        levels_sent: The servers that have been told so since their sandbox began.
        learned_uris: Where resources came from that only results mentioned.
    """

    id: str
    session: Session
    server: ResourceId | None
    scope: SessionScope
    protocol_version: str
    client_params: JsonObject
    modern: bool = False
    view: View | None = None
    stale: bool = False
    log_level: str | None = None
    in_flight: dict[object, anyio.CancelScope] = field(default_factory=dict[object, anyio.CancelScope])
    questions: dict[str, Question] = field(default_factory=dict[str, Question])
    outboxes: list[Outbox] = field(default_factory=list[Outbox])
    levels_sent: set[ResourceId] = field(default_factory=set[ResourceId])
    learned_uris: dict[str, Target] = field(default_factory=dict[str, Target])

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client says it can do."""
        return json_object(self.client_params.get("capabilities")) or {}

    @property
    def implicit(self) -> bool:
        """It has no `Mcp-Session-Id`: several clients may be behind it, and use the same ids."""
        return self.id.startswith("@")

    def learn_uri(self, uri: str, target: Target) -> None:
        """Remember where a resource came from; the oldest of too many is forgotten."""
        if uri in self.learned_uris:
            return
        if len(self.learned_uris) >= _LEARNED_URIS:
            del self.learned_uris[next(iter(self.learned_uris))]
        self.learned_uris[uri] = target

    def end(self) -> None:
        """Cancel what is open, give up what was asked, and close the streams."""
        for scope in self.in_flight.values():
            scope.cancel()
        for question in self.questions.values():
            question.give_up()
        for outbox in self.outboxes:
            outbox.close()


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """What owns sandboxes.

    Attributes:
        named: Its client chose the name (URL, header); else it lives and ends with its
            one connection.
        open_requests: Requests and streams being served.
        used_s: When the last of them ended, or began, on the monotonic clock.
    """

    id: SessionId
    principal: PrincipalId
    named: bool
    used_s: float
    open_requests: int = 0
    connections: dict[str, Connection] = field(default_factory=dict[str, Connection])

    @property
    def idle(self) -> bool:
        return self.open_requests == 0

    def servers(self) -> tuple[ResourceId, ...]:
        """What its connections can reach together; empty means all."""
        reached = [connection.server for connection in self.connections.values()]
        if None in reached:
            return ()
        return tuple(dict.fromkeys(server for server in reached if server is not None))
