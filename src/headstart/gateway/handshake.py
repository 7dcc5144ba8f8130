"""The protocol with a handshake, up to 2025-11-25: `initialize`, `Mcp-Session-Id`, GET and DELETE.

A POST carries one message (a batch in versions that have batches). Requests are answered
on the same POST; notifications and answers to servers' questions get 202. One GET at a
time is the stream for everything else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, cast

import anyio
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from headstart.gateway.channels import Voice, announce_changes
from headstart.gateway.exchange import (
    Http,
    Parts,
    answer_request,
    finish,
    is_request_id,
    refuse_for_now,
    wants_stream,
    welcome,
)
from headstart.gateway.failures import REQUEST_CANCELLED, Answer, refused
from headstart.gateway.methods import Request, merged_initialize
from headstart.gateway.outbox import GetStream
from headstart.gateway.reply import Reply
from headstart.gateway.session import Connection
from headstart.gateway.wire import (
    decode,
    encode,
    header,
    json_object,
    refuse,
    send_json,
)
from headstart.ids import session_named
from headstart.runtime.contract import JsonObject

__all__ = ["Handshake"]

_DEFAULT_VERSION: Final = "2025-03-26"
"""What a client speaks that sends no version header (the specification says so)."""
_BATCHING: Final = frozenset({"2024-11-05", "2025-03-26"})
_BATCH_LIMIT: Final = 100
_NO_REPLAY: Final = (
    "no stream can be resumed here (no event had an id): a call whose client left was cancelled, so send it again; "
    "for what belongs to no request, GET without Last-Event-ID"
)
_ID_IN_USE: Final = refused(INVALID_REQUEST, "a request with this id is open; each needs an id of its own", status=400)
_CANCELLED: Final = refused(REQUEST_CANCELLED, "Request cancelled")


class Handshake:
    """Serves clients of the 2025 protocols."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sessions = parts.sessions
        self._methods = parts.methods
        self._views = parts.views

    async def post(self, http: Http, body: bytes) -> None:
        """Serve one POST."""
        can_json, can_stream = wants_stream(http.scope)
        if not (can_json or can_stream):
            await refuse(http.send, 406, INVALID_REQUEST, "accept application/json, or text/event-stream as well")
            return
        try:
            message = decode(body)
        except ValueError as exc:
            await refuse(http.send, 400, PARSE_ERROR, f"the body is not JSON: {exc}")
            return
        single = json_object(message)
        if single is not None and single.get("method") == "initialize":
            await self._initialize(http, single, can_stream=can_stream)
            return
        connection = await self._connection(http)
        if connection is None:
            return
        if isinstance(message, list) and connection.protocol_version in _BATCHING:
            await self._batch(http, connection, cast("list[object]", message), can_stream=can_stream)
        elif single is not None:
            await self._single(http, connection, single, can_stream=can_stream)
        else:
            await refuse(http.send, 400, INVALID_REQUEST, "the body must be one JSON-RPC message")

    async def get(self, http: Http) -> None:
        """Hold the stream for what belongs to no request; a newer one ends an older one."""
        connection = await self._connection(http)
        if connection is None:
            return
        if not wants_stream(http.scope)[1]:
            await refuse(http.send, 406, INVALID_REQUEST, "accept text/event-stream")
            return
        if header(http.scope, b"last-event-id") is not None:
            await refuse(http.send, 400, INVALID_REQUEST, _NO_REPLAY)
            return
        for outbox in connection.outboxes:
            outbox.close()
        stream = GetStream()
        connection.outboxes[:] = [stream]
        reply = Reply(http.send, can_stream=True, headers=_session_header(connection))
        await reply.ping()  # commits the headers, so that the client knows that it is heard

        async def forward(_: anyio.CancelScope) -> None:
            if connection.stale:
                await announce_changes(connection, self._views)
            async for message in stream.messages():
                await reply.say(message)
            await reply.finish(b"")

        with self._sessions.serving(connection):
            try:
                await self._parts.attendance.attended(http.receive, reply, forward)
            finally:
                stream.close()
                if stream in connection.outboxes:
                    connection.outboxes.remove(stream)

    async def delete(self, http: Http) -> None:
        """End a connection; without its id, the session that the URL names."""
        if http.name is not None and header(http.scope, b"mcp-session-id") is None:
            session = self._sessions.named(http.principal, http.name)
            if session is None:
                await refuse(http.send, 404, INVALID_REQUEST, "no such session here")
                return
            await self._sessions.end(session)
            await send_json(http.send, 200)
            return
        connection = await self._connection(http)
        if connection is not None:
            await self._sessions.disconnect(connection)
            await send_json(http.send, 200)

    # ------------------------------------------------------------ inside

    async def _initialize(self, http: Http, message: JsonObject, *, can_stream: bool) -> None:
        params = json_object(message.get("params"))
        request_id = message.get("id")
        if params is None or not is_request_id(request_id):
            await refuse(http.send, 400, INVALID_PARAMS, "initialize needs an id and params", request_id=request_id)
            return
        asked = params.get("protocolVersion")
        version = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        connection = await self._sessions.connect(
            principal=http.principal,
            name=http.name,
            server=http.server,
            protocol_version=version,
            client_params=params,
        )
        welcome(self._parts, http, connection)
        reply = Reply(http.send, can_stream=can_stream, headers=_session_header(connection))
        request = Request(connection, "initialize", params, Voice(connection, params, reply))

        async def work(_: anyio.CancelScope) -> None:
            answer = await answer_request(request, self._initialized)
            if answer.error_code is not None:
                reply.headers.clear()
                await self._sessions.disconnect(connection)
            await finish(self._parts, http, reply, answer, request_id)

        with self._sessions.serving(connection):
            await self._parts.attendance.attended(http.receive, reply, work)

    async def _initialized(self, request: Request) -> bytes:
        connection = request.connection
        if connection.server is None:
            view = await self._views.of_learned(connection.scope)
            told = merged_initialize(view, complete=not view.missing)
        else:
            told = (await self._methods.view(connection)).initialize()
        rest = {key: value for key, value in told.items() if key != "protocolVersion"}
        return encode({"protocolVersion": connection.protocol_version, **rest})

    async def _connection(self, http: Http) -> Connection | None:
        """Find whose request this is; None after having refused it."""
        connection_id = header(http.scope, b"mcp-session-id")
        if connection_id is not None:
            connection = await self._sessions.find(connection_id, http.principal, http.server)
            if connection is not None and http.name is not None and not _is_named(connection, http.name):
                connection = None
        elif http.name is not None:
            connection = await self._sessions.implicit(
                principal=http.principal,
                name=http.name,
                named=True,
                server=http.server,
                protocol_version=header(http.scope, b"mcp-protocol-version") or _DEFAULT_VERSION,
            )
        else:
            await refuse(http.send, 400, INVALID_REQUEST, "Mcp-Session-Id is missing; begin with initialize")
            return None
        if connection is None:
            await refuse(http.send, 404, INVALID_REQUEST, "no such session here; begin with initialize")
            return None
        welcome(self._parts, http, connection)
        return connection

    async def _single(self, http: Http, connection: Connection, message: JsonObject, *, can_stream: bool) -> None:
        if "method" not in message or "id" not in message:
            accepted = await self._one_way(connection, message)
            await (
                send_json(http.send, 202)
                if accepted
                else refuse(http.send, 400, INVALID_REQUEST, "the body must be one JSON-RPC message")
            )
            return
        if len(connection.in_flight) >= self._parts.requests_at_once:
            await refuse_for_now(self._parts, http, message.get("id"))
            return
        reply = Reply(http.send, can_stream=can_stream, headers=_session_header(connection))

        async def work(scope: anyio.CancelScope) -> None:
            with _in_flight(connection, message["id"], scope) as admitted:
                answer = await self._answer(connection, message, reply) if admitted else _ID_IN_USE
            await finish(self._parts, http, reply, answer, message["id"])

        with self._sessions.serving(connection):
            await self._parts.attendance.attended(http.receive, reply, work)
            if not reply.over:  # cancelled by the client, which still reads
                await reply.ping()  # a stream: the official client takes a late event, but trips over a late body
                await finish(self._parts, http, reply, _CANCELLED, message["id"])

    async def _batch(self, http: Http, connection: Connection, messages: Sequence[object], *, can_stream: bool) -> None:
        objects = [found for found in map(json_object, messages) if found is not None]
        requests = [m for m in objects if "method" in m and "id" in m]
        if len(objects) != len(messages) or not objects or len(objects) > _BATCH_LIMIT:
            told = f"a batch holds 1 to {_BATCH_LIMIT} JSON-RPC messages"
            await refuse(http.send, 400, INVALID_REQUEST, told)
            return
        for message in objects:
            if "method" not in message or "id" not in message:
                await self._one_way(connection, message)
        if not requests:
            await send_json(http.send, 202)
            return
        if len(connection.in_flight) + len(requests) > self._parts.requests_at_once:
            await refuse_for_now(self._parts, http, None)
            return
        reply = Reply(http.send, can_stream=can_stream, headers=_session_header(connection))
        answers: dict[int, bytes] = {}

        async def one(index: int, message: JsonObject, scope: anyio.CancelScope) -> None:
            answers[index] = _CANCELLED.message(message["id"])
            with scope:
                answers[index] = (await self._answer(connection, message, reply)).message(message["id"])

        async def work(_: anyio.CancelScope) -> None:
            with ExitStack() as all_in_flight:  # counted before any runs
                async with anyio.create_task_group() as tasks:
                    for index, message in enumerate(requests):
                        scope = anyio.CancelScope()
                        if all_in_flight.enter_context(_in_flight(connection, message["id"], scope)):
                            tasks.start_soon(one, index, message, scope)
                        else:
                            answers[index] = _ID_IN_USE.message(message["id"])
            await reply.finish(b"[%b]" % b",".join(answers[index] for index in sorted(answers)))

        with self._sessions.serving(connection):
            await self._parts.attendance.attended(http.receive, reply, work)

    async def _answer(self, connection: Connection, message: JsonObject, reply: Reply) -> Answer:
        """Answer one request."""
        request_id, method, params = message["id"], message["method"], message.get("params")
        if not is_request_id(request_id) or not isinstance(method, str):
            return refused(INVALID_REQUEST, "a request needs a method and a string or integer id", status=400)
        if params is not None and not isinstance(params, dict):
            return refused(INVALID_PARAMS, "params must be an object")
        given = cast("JsonObject", params or {})
        request = Request(connection, method, given, Voice(connection, given, reply))
        return await answer_request(request, self._methods.answer)

    async def _one_way(self, connection: Connection, message: JsonObject) -> bool:
        """Take a notification, or the answer to a server's question."""
        method = message.get("method")
        if method is None and ("result" in message or "error" in message):
            question = connection.questions.get(str(message.get("id")))
            if question is not None:
                question.answer(message)
            return True
        if not isinstance(method, str):
            return False
        told = json_object(message.get("params"))
        if method == "notifications/cancelled":
            request_id = (told or {}).get("requestId")
            if is_request_id(request_id) and (scope := connection.in_flight.get(request_id)):
                scope.cancel()
        elif method != "notifications/initialized":
            await self._methods.notified(connection, method, told)
        return True


@contextmanager
def _in_flight(connection: Connection, request_id: object, scope: anyio.CancelScope) -> Generator[bool]:
    """Count a request while it is open; cancelling it cancels `scope`.

    Yields False, and counts nothing, if the client has one open under this id already. Of
    clients that share a connection, all are counted, and the first of an id can be cancelled.
    """
    key = request_id if is_request_id(request_id) else object()
    if key in connection.in_flight:
        if not connection.implicit:
            yield False
            return
        key = object()
    connection.in_flight[key] = scope
    try:
        yield True
    finally:
        del connection.in_flight[key]


def _is_named(connection: Connection, name: str) -> bool:
    return connection.session.id == session_named(connection.session.principal, name)


def _session_header(connection: Connection) -> list[tuple[bytes, bytes]]:
    return [] if connection.implicit else [(b"mcp-session-id", connection.id.encode("ascii"))]
