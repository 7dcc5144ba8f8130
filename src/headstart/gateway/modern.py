"""The stateless protocol, 2026-07-28: every POST carries who the client is.

There is no handshake, no `Mcp-Session-Id` and no GET stream. A client that names no
session gets one per credential. Closing a request's response cancels it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, cast

import anyio
from mcp import MCPError
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
    validate_mcp_param_headers,
)
from mcp_types import HEADER_MISMATCH, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR
from mcp_types.methods import INPUT_REQUIRED_METHODS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from headstart.errors import HeadstartError
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
from headstart.gateway.failures import Answer, refused, succeeded
from headstart.gateway.methods import Request, merged_initialize, modern_result
from headstart.gateway.outbox import ListenStream
from headstart.gateway.parked import ParkedCall, ParkedCalls
from headstart.gateway.reply import Reply
from headstart.gateway.session import Connection
from headstart.gateway.wire import decode, encode, header, json_object, notification_message, refuse, send_json
from headstart.runtime.contract import JsonObject

__all__ = ["Modern"]

_GONE: Final = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods that this revision no longer has."""
_ASKABLE: Final = frozenset({"sampling", "elicitation", "roots"})
_FRESH: Final[JsonObject] = {"ttlMs": 0, "cacheScope": "private"}
_KEYS = itertools.count(1)


class Modern:
    """Serves clients of the stateless protocol."""

    def __init__(self, parts: Parts, parked: ParkedCalls) -> None:
        self._parts = parts
        self._sessions = parts.sessions
        self._methods = parts.methods
        self._views = parts.views
        self._parked = parked

    async def post(self, http: Http, body: bytes) -> None:
        """Serve one POST."""
        can_json, can_stream = wants_stream(http.scope)
        if not can_json:
            await refuse(http.send, 406, INVALID_REQUEST, "accept application/json and text/event-stream")
            return
        try:
            decoded = decode(body)
        except ValueError:
            await refuse(http.send, 400, PARSE_ERROR, "Parse error")
            return
        message = json_object(decoded)
        if message is None:
            await refuse(http.send, 400, INVALID_REQUEST, "Body must be a single JSON-RPC request or notification")
            return
        checked = _checked(http, message)
        if isinstance(checked, InboundLadderRejection):
            status = ERROR_CODE_HTTP_STATUS.get(checked.code, 400)
            told = message.get("id")
            await refuse(http.send, status, checked.code, checked.message, request_id=told, data=checked.data)
        elif checked is None:
            await send_json(http.send, 202)
        else:
            await self._request(http, message, checked, can_stream=can_stream)

    # ------------------------------------------------------------ inside

    async def _request(self, http: Http, message: JsonObject, route: InboundModernRoute, *, can_stream: bool) -> None:
        connection = await self._connection(http, route.protocol_version)
        if len(connection.in_flight) >= self._parts.requests_at_once:
            await refuse_for_now(self._parts, http, message["id"])
            return
        reply = Reply(http.send, can_stream=can_stream, headers=[])
        capabilities = json_object(cast("object", route.client_capabilities)) or {}
        voice = Voice(connection, message["params"], reply, capabilities=capabilities)
        request = Request(connection, message["method"], message["params"], voice)

        async def work(scope: anyio.CancelScope) -> None:
            key = f"#{next(_KEYS)}"  # clients of one credential may use the same ids
            connection.in_flight[key] = scope
            try:
                answer = await self._answered(http, request, message["id"])
            finally:
                del connection.in_flight[key]
            if answer.error_code is not None and answer.status == 200:
                answer = replace(answer, status=ERROR_CODE_HTTP_STATUS.get(answer.error_code, 200))
            await finish(self._parts, http, reply, answer, message["id"])

        with self._sessions.serving(connection):
            await self._parts.attendance.attended(http.receive, reply, work)

    async def _answered(self, http: Http, request: Request, request_id: object) -> Answer:
        match request.method:
            case "server/discover":
                return await answer_request(request, self._discover)
            case "subscriptions/listen":
                return await answer_request(request, partial(self._listen, request_id))
            case method if method in _GONE:
                return refused(METHOD_NOT_FOUND, "Method not found", method)
            case _:
                mismatch = _mirrored_wrongly(http, request)
                if mismatch is not None:
                    return refused(mismatch.code, mismatch.message, mismatch.data)
        call = self._parked.find(request.params.get("requestState"), request.connection)
        askable = request.method in INPUT_REQUIRED_METHODS and not _ASKABLE.isdisjoint(request.voice.capabilities)
        if call is None and not askable:
            return await answer_request(request, self._methods.answer)
        return await self._with_questions(call, request)

    async def _with_questions(self, call: ParkedCall | None, request: Request) -> Answer:
        """Run a call that may ask, or go on with one, until it has ended or asks."""
        if call is None:
            call = self._begun(request)
        else:
            call.comes_back(request.voice, request.params.get("inputResponses"))
        try:
            outcome = await call.outcome()
        except anyio.get_cancelled_exc_class():
            call.scope.cancel()
            raise
        if isinstance(outcome, Answer):
            return outcome
        asked = {"resultType": "input_required", "inputRequests": dict(outcome), "requestState": call.state}
        return succeeded(encode(modern_result(request.connection, asked)))

    def _begun(self, request: Request) -> ParkedCall:
        call = ParkedCall(request.connection, request.voice)
        request.voice.ask = call.ask

        async def work() -> Answer:
            return await answer_request(request, self._methods.answer)

        self._parked.start(call, work)
        return call

    async def _discover(self, request: Request) -> bytes:
        connection = request.connection
        if connection.server is None:
            view = await self._views.of_learned(connection.scope)
            told = merged_initialize(view, complete=not view.missing)
        else:
            told = (await self._methods.view(connection)).initialize()
        kept = {key: told[key] for key in ("capabilities", "instructions") if key in told}
        result = {"supportedVersions": list(MODERN_PROTOCOL_VERSIONS), **kept, **_FRESH}
        return encode(modern_result(connection, result))

    async def _listen(self, request_id: object, request: Request) -> bytes:
        """Hold a stream of the notifications that were asked for until the client leaves."""
        stream = ListenStream(request_id, json_object(request.params.get("notifications")) or {})
        connection, reply = request.connection, request.voice.reply
        if not reply.open:
            raise MCPError(INVALID_REQUEST, "subscriptions/listen needs a client that accepts text/event-stream")
        connection.outboxes.append(stream)
        try:
            uris = frozenset([uri for uri in stream.uris if await self._watch(request, uri, "resources/subscribe")])
            params = {"notifications": stream.honored(uris), "_meta": stream.meta}
            await reply.say(notification_message("notifications/subscriptions/acknowledged", params))
            if connection.stale:
                await announce_changes(connection, self._views)
            async for message in stream.messages():
                await reply.say(message)
        finally:
            stream.close()
            connection.outboxes.remove(stream)
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                for uri in stream.uris:
                    if not any(
                        outbox.wants("notifications/resources/updated", {"uri": uri}) for outbox in connection.outboxes
                    ):
                        await self._watch(request, uri, "resources/unsubscribe")
        return encode({"resultType": "complete", "_meta": stream.meta})

    async def _watch(self, request: Request, uri: str, method: str) -> bool:
        """Subscribe at the resource's server, or leave; False if it will not."""
        asked = Request(request.connection, method, {"uri": uri}, request.voice)
        try:
            await self._methods.answer(asked)
        except (MCPError, HeadstartError):
            return False
        return True

    async def _connection(self, http: Http, version: str) -> Connection:
        authorization = header(http.scope, b"authorization") or ""
        name = http.name or header(http.scope, b"mcp-session-id")
        connection = await self._sessions.implicit(
            principal=http.principal,
            name=name or _name_of(authorization),
            named=name is not None,
            server=http.server,
            protocol_version=version,
        )
        welcome(self._parts, http, connection)
        return connection


def _checked(http: Http, message: JsonObject) -> InboundModernRoute | InboundLadderRejection | None:
    """Check a message as the SDK's server does; None for a notification (accepted, nobody waits)."""
    if "id" not in message:
        version = header(http.scope, b"mcp-protocol-version") or ""
        return unsupported_protocol_version_rejection(version)
    if not is_request_id(message["id"]) or not isinstance(message.get("method"), str):
        return InboundLadderRejection(code=INVALID_REQUEST, message="Body must be a JSON-RPC request or notification")
    raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in http.scope["headers"]]
    duplicated = find_duplicated_routing_header(raw)
    if duplicated is not None:
        return InboundLadderRejection(code=HEADER_MISMATCH, message=f"{duplicated} header appears more than once")
    return classify_inbound_request(message, headers=_headers(http))


def _mirrored_wrongly(http: Http, request: Request) -> InboundLadderRejection | None:
    """Find a call whose `Mcp-Param-*` headers say other than its arguments (over stdio there are none)."""
    view = request.connection.view
    if request.method != "tools/call" or view is None or header(http.scope, b"x-headstart-stdio") is not None:
        return None
    schema = view.header_schema(str(request.params.get("name")))
    if schema is None:
        return None
    return validate_mcp_param_headers(schema, json_object(request.params.get("arguments")) or {}, _headers(http))


def _headers(http: Http) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in http.scope["headers"]}


def _name_of(authorization: str) -> str:
    """Name the session of a client that names none: one per credential."""
    if not authorization:
        return "stateless"
    return f"stateless-{hashlib.blake2b(authorization.encode(), digest_size=8).hexdigest()}"
