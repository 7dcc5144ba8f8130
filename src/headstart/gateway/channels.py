"""The way from servers back to a client.

What a server says during a request goes out on that request's reply; what belongs to no
request goes to the client's open streams. Names and URIs are turned into those of the
client's view on the way. A notification nobody can receive is dropped; a request nobody
can receive is refused at once, so that no server waits for an answer that cannot come.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from mcp import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import INVALID_REQUEST, LOG_LEVEL_META_KEY, METHOD_NOT_FOUND

from headstart.errors import HeadstartError
from headstart.gateway.reply import Reply
from headstart.gateway.session import Connection, Question, Session
from headstart.gateway.view import LIST_CHANGED
from headstart.gateway.views import Views
from headstart.gateway.wire import json_object, notification_message, request_message
from headstart.ids import ResourceId
from headstart.runtime.contract import JsonObject
from headstart.runtime.rpc import told_error

__all__ = ["RequestChannel", "SessionChannel", "Voice", "announce_changes", "capability_for"]

_logger = logging.getLogger(__name__)

_LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_CAPABILITY: Final = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
_QUESTION_IDS = itertools.count(1)

Ask = Callable[[str, "JsonObject | None"], Awaitable[JsonObject]]
"""Asks the client something and returns its answer."""


def capability_for(method: str) -> str | None:
    """Return the capability that a client must declare for a server's request, or None."""
    return _CAPABILITY.get(method)


class Voice:
    """What one request of a client can hear and answer; all its channels share it.

    Attributes:
        reply: Where to speak now. It changes when a stateless client returns to a call
            that asked it something.
        ask: Set for a stateless client: asks it by ending its request for the time being.
        capabilities: What this client can be asked.
    """

    __slots__ = ("ask", "capabilities", "connection", "log_level", "progress_token", "reply")

    def __init__(
        self,
        connection: Connection,
        params: Mapping[str, Any],
        reply: Reply,
        *,
        capabilities: Mapping[str, Any] | None = None,
        ask: Ask | None = None,
    ) -> None:
        self.connection = connection
        self.reply = reply
        self.ask = ask
        self.capabilities = connection.capabilities if capabilities is None else capabilities
        self.progress_token = progress_token_from_params(params)
        self.log_level = _log_level(connection, params)

    async def progress(self, params: JsonObject) -> None:
        """Send progress on, under the client's own token; a client without one gets none."""
        token = self.progress_token
        if token is not None:
            await self.reply.say(notification_message("notifications/progress", {**params, "progressToken": token}))


class RequestChannel:
    """The `ClientChannel` of one request that a client has open at one server."""

    __slots__ = ("_server", "_views", "_voice")

    def __init__(self, voice: Voice, server: ResourceId | None, views: Views) -> None:
        self._voice = voice
        self._server = server
        self._views = views

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client can do; extensions have methods of their own, which the merged view cannot route."""
        told = self._voice.capabilities
        if self._voice.connection.server is not None:
            return told
        return {name: value for name, value in told.items() if name != "extensions"}

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages that are sent on."""
        return self._voice.log_level

    async def progress(self, params: JsonObject) -> None:
        """Send progress on, under the client's own token."""
        await self._voice.progress(params)

    async def notify(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> None:
        """Send a notification on the reply, or to the open streams where it belongs there."""
        connection = self._voice.connection
        if method == "notifications/message":
            if _loud_enough(params, self._voice.log_level):
                await self._voice.reply.say(notification_message(method, params))
            return
        if method in LIST_CHANGED or method == "notifications/resources/updated" or connection.modern:
            await SessionChannel(connection.session, self._views).notify(method, params, server=server or self._server)
            return
        await self._voice.reply.say(notification_message(method, params))

    async def request(
        self,
        method: str,
        params: JsonObject | None,
        *,
        server: ResourceId | None = None,  # noqa: ARG002  the request tells already
    ) -> JsonObject:
        """Ask the client on the reply's stream and wait for its answer.

        Cancelling tells the client that the answer is no longer wanted.

        Raises:
            MCPError: The client refused, cannot, has no stream open, leaves, or does not
                answer within `PATIENCE_S`.
        """
        _require_capability(self._voice.capabilities, method)
        if self._voice.ask is not None:
            return await self._voice.ask(method, params)
        connection, reply = self._voice.connection, self._voice.reply
        question_id, question = _open_question(connection)
        reply.questions[question_id] = question
        try:
            if not await reply.say(request_message(question_id, method, params)):
                raise _no_stream(method)
            return _answer_of(await question.wait())
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await reply.say(_withdrawal(question_id))
            raise
        finally:
            connection.questions.pop(question_id, None)
            del reply.questions[question_id]


class SessionChannel:
    """The `ClientChannel` for what belongs to no request: all open streams of a session."""

    def __init__(self, session: Session, views: Views) -> None:
        self._session = session
        self._views = views

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the session's clients can do together."""
        return {name: value for each in self._session.connections.values() for name, value in each.capabilities.items()}

    @property
    def log_level(self) -> str | None:
        """None: each connection's own level is looked at where a message goes out."""
        return None

    async def progress(self, params: JsonObject) -> None:
        """Drop it: progress without a request has no token of the client's."""

    async def notify(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> None:
        """Offer a notification to every connection that sees the server."""
        for connection in list(self._session.connections.values()):
            if connection.server is not None and server is not None and connection.server != server:
                continue
            if method in LIST_CHANGED:
                connection.stale = True
                await announce_changes(connection, self._views)
            elif method != "notifications/message" or _loud_enough(params, _log_level(connection, None)):
                _offer(connection, method, _shown(connection, method, params, server))

    async def request(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> JsonObject:
        """Ask the first connection that can answer and has a stream open.

        Raises:
            MCPError: None can, or the client refused.
        """
        for connection in list(self._session.connections.values()):
            if connection.server is not None and server is not None and connection.server != server:
                continue
            capability = capability_for(method)
            if capability is not None and capability not in connection.capabilities:
                continue
            question_id, question = _open_question(connection)
            try:
                if any(outbox.ask(request_message(question_id, method, params)) for outbox in connection.outboxes):
                    return _answer_of(await question.wait())
            finally:
                connection.questions.pop(question_id, None)
        raise _no_stream(method)


async def announce_changes(connection: Connection, views: Views) -> None:
    """Tell a client which of its lists have changed, and show it the new ones from now on.

    A client that cannot be told keeps its lists as they are (they are stable within a
    conversation) and is told as soon as it opens a stream. One that changes into the
    same bytes is told nothing.
    """
    old = connection.view
    if old is None:
        connection.stale = False
        return
    listening = [outbox for outbox in connection.outboxes if any(outbox.wants(m, None) for m in LIST_CHANGED)]
    if not listening:
        return
    try:
        new = await views.of(connection.server, connection.scope)
    except HeadstartError as exc:
        _logger.info("session %s keeps its lists: %s", connection.session.id, exc)
        return
    changed = old.changed_lists(new)
    connection.view = new
    connection.stale = False
    for method, lists in LIST_CHANGED.items():
        if changed.intersection(lists):
            _offer(connection, method, None)


def _offer(connection: Connection, method: str, params: JsonObject | None) -> None:
    """Offer to the first stream that takes it (handshake clients must not hear it twice)."""
    for outbox in connection.outboxes:
        if outbox.wants(method, params) and outbox.offer(method, params) and not connection.modern:
            return


def _shown(
    connection: Connection, method: str, params: JsonObject | None, server: ResourceId | None
) -> JsonObject | None:
    """Turn a resource's own URI into what the client's view calls it."""
    if method != "notifications/resources/updated" or params is None or server is None or connection.view is None:
        return params
    uri = params.get("uri")
    return {**params, "uri": connection.view.shown_uri(server, uri)} if isinstance(uri, str) else params


def _log_level(connection: Connection, params: Mapping[str, Any] | None) -> str | None:
    """Return the lowest level to be sent: None for all, "" for nothing."""
    if not connection.modern:
        return connection.log_level
    wanted = (json_object((params or {}).get("_meta")) or {}).get(LOG_LEVEL_META_KEY)
    return wanted if wanted in _LOG_LEVELS else ""


def _loud_enough(params: Mapping[str, Any] | None, lowest: str | None) -> bool:
    if lowest is None:
        return True
    level = (params or {}).get("level")
    if lowest == "" or level not in _LOG_LEVELS:
        return lowest != ""
    return _LOG_LEVELS.index(level) >= _LOG_LEVELS.index(lowest)


def _require_capability(capabilities: Mapping[str, Any], method: str) -> None:
    capability = capability_for(method)
    if capability is not None and capability not in capabilities:
        raise MCPError(METHOD_NOT_FOUND, f"this client has no {capability} capability")


def _open_question(connection: Connection) -> tuple[str, Question]:
    question_id = f"headstart-{next(_QUESTION_IDS)}"
    question = Question()
    connection.questions[question_id] = question
    return question_id, question


def _withdrawal(question_id: str) -> bytes:
    return notification_message("notifications/cancelled", {"requestId": question_id, "reason": "no longer needed"})


def _no_stream(method: str) -> MCPError:
    return MCPError(INVALID_REQUEST, f"the client has no stream open that could carry {method}")


def _answer_of(message: JsonObject) -> JsonObject:
    error = message.get("error")
    if error is not None:
        raise told_error(error, teller="client")
    return json_object(message.get("result")) or {}
