"""One HTTP exchange with a client: what both protocol eras do alike.

When a client leaves, its work is cancelled (nobody can receive the result, there is no
replay). When the work stays silent for long, the client hears a comment line, so that
nothing between them takes the connection for dead. Both are seen to by tasks that serve all
requests, because most are over before a task or a timer of their own would be worth making:
a client is watched once its request has been open for `LOOK_EVERY_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio
from mcp_types import INVALID_REQUEST

from headstart.gateway.channels import SessionChannel
from headstart.gateway.failures import Answer, failed, succeeded
from headstart.gateway.methods import Methods, Request
from headstart.gateway.reply import Reply
from headstart.gateway.session import Connection
from headstart.gateway.sessions import Sessions
from headstart.gateway.sign_in import WELL_KNOWN, SignIn, own_challenge, own_url
from headstart.gateway.views import Views
from headstart.gateway.wire import Receive, Scope, Send, header, refuse
from headstart.ids import PrincipalId, ResourceId

__all__ = [
    "Attendance",
    "Http",
    "Parts",
    "answer_request",
    "finish",
    "is_request_id",
    "refuse_for_now",
    "wants_stream",
    "welcome",
]

_logger = logging.getLogger(__name__)

SILENCE_S: Final = 25.0
"""A reply that is silent for once or twice as long turns into a stream of comment lines; not
earlier, because clients take larger results as plain JSON than as an event."""

LOOK_EVERY_S: Final = 0.025
"""How long a request is open before its client is watched, at least; twice that at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What serving a client of either era takes.

    Attributes:
        requests_at_once: Open requests per connection; more are told to wait.
    """

    sessions: Sessions
    methods: Methods
    views: Views
    sign_in: SignIn
    attendance: Attendance
    requests_at_once: int


@dataclass(frozen=True, slots=True)
class Http:
    """One HTTP request, routed.

    Attributes:
        server: The one server that the route names, or None for the merged view.
        name: The session that the URL or the header names, or None.
    """

    scope: Scope
    receive: Receive
    send: Send
    principal: PrincipalId
    server: ResourceId | None
    name: str | None


def wants_stream(scope: Scope) -> tuple[bool, bool]:
    """Return whether the client accepts JSON, and whether it accepts event streams."""
    accept = header(scope, b"accept")
    if not accept:
        return True, True
    types = {part.split(";", 1)[0].strip().lower() for part in accept.split(",")}
    anything = "*/*" in types
    return (
        anything or not types.isdisjoint({"application/json", "application/*"}),
        anything or not types.isdisjoint({"text/event-stream", "text/*"}),
    )


@dataclass(slots=True, eq=False)
class _Visit:
    """A client that waits for its reply."""

    receive: Receive
    reply: Reply
    work: anyio.CancelScope
    watch: asyncio.Task[None] | None = None

    async def wait_until_it_leaves(self) -> None:
        try:
            while (await self.receive())["type"] != "http.disconnect":
                pass
        except Exception:  # supervises: one broken connection must not end the watch on all others
            _logger.exception("a client's connection failed while it waited")
        self.reply.leave()
        self.work.cancel()


class Attendance:
    """Watches the clients of all open replies, while `watch_clients` and `break_silences` run."""

    def __init__(self) -> None:
        self._visits: dict[_Visit, None] = {}
        self._new: list[_Visit] = []
        """Those that came since the last look."""
        self._somebody_new = asyncio.Event()

    async def attended(
        self, receive: Receive, reply: Reply, work: Callable[[anyio.CancelScope], Awaitable[None]]
    ) -> None:
        """Run `work` until it ends, the client leaves, or the scope that it is given is cancelled."""
        with anyio.CancelScope() as scope:
            visit = _Visit(receive, reply, scope)
            self._visits[visit] = None
            self._new.append(visit)
            self._somebody_new.set()
            try:
                await work(scope)
            finally:
                del self._visits[visit]
                if visit.watch is not None:
                    visit.watch.cancel()

    async def watch_clients(self, every_s: float = LOOK_EVERY_S) -> None:
        """Notice, for ever, when a client leaves whose request is older than one or two rounds."""
        seen: list[_Visit] = []
        async with asyncio.TaskGroup() as watches:
            while True:
                if not seen:
                    await self._somebody_new.wait()
                await asyncio.sleep(every_s)
                for visit in seen:
                    if visit in self._visits:
                        visit.watch = watches.create_task(visit.wait_until_it_leaves())
                seen, self._new = self._new, []
                self._somebody_new.clear()

    async def break_silences(self, every_s: float = SILENCE_S) -> None:
        """Send a comment line, for ever, on each reply that said nothing since the last round."""
        while True:
            await anyio.sleep(every_s)
            async with anyio.create_task_group() as tasks:
                tasks.cancel_scope.deadline = anyio.current_time() + every_s  # a client that does not read waits alone
                for visit in self._visits:
                    if visit.reply.silent():
                        tasks.start_soon(visit.reply.ping)


async def answer_request(request: Request, work: Callable[[Request], Awaitable[bytes]]) -> Answer:
    """Do a request's work; every failure becomes what the client is told."""
    try:
        return succeeded(await work(request))
    except Exception as exc:  # noqa: BLE001  the boundary of one client's request
        return failed(
            request.method,
            exc,
            server=request.server,
            modern=request.connection.modern,
            challenge=request.connection.server is not None,
            unnamed=request.connection.modern and not request.connection.session.named,
        )


def welcome(parts: Parts, http: Http, connection: Connection) -> None:
    """Take along what this request carries, and let the runtime speak to its session."""
    if connection.server is not None:
        authorization = header(http.scope, b"authorization")
        parts.sessions.carry_headers(connection, {"Authorization": authorization} if authorization else {})
    session = connection.session
    if not parts.sessions.listening(session.id):
        parts.sessions.listen_with(session.id, SessionChannel(session, parts.views))


async def finish(parts: Parts, http: Http, reply: Reply, answer: Answer, request_id: object) -> None:
    """Send an answer; a remote server's challenge points to our copy of its metadata."""
    headers: list[tuple[bytes, bytes]] = []
    if answer.challenge and http.server is not None:
        parts.sign_in.note(http.server, answer.challenge)
        told = own_challenge(answer.challenge, own_url(http.scope, WELL_KNOWN + http.scope["path"]))
        headers.append((b"www-authenticate", told.encode("latin-1", "replace")))
    await reply.finish(answer.message(request_id), status=answer.status, headers=headers)


async def refuse_for_now(parts: Parts, http: Http, request_id: object) -> None:
    """Tell a client with too many open requests to wait for one to end."""
    told = f"this session has {parts.requests_at_once} requests open already; wait for one to end"
    await refuse(http.send, 429, INVALID_REQUEST, told, request_id=request_id, headers=[(b"retry-after", b"1")])


def is_request_id(value: object) -> bool:
    """Tell whether a JSON value can be a JSON-RPC id (a bool would alias 0 or 1)."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)
