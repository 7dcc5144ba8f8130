"""A conversation with a server of the stateless protocol, 2026-07-28.

There is no handshake: every request says in its `_meta` who asks and what that client can
do. A server cannot ask anything while a request is open; it answers with the questions
(`input_required`), and the request is sent again with the answers. What a server tells
unasked comes on a subscription of ours.

Above, nobody needs to know. Methods that this protocol no longer has are answered here
(`ping`, `logging/setLevel`: the level goes along with each request) or become what took
their place (`resources/subscribe`), and results are shown without the protocol's own marks,
which the gateway adds for clients that speak it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)

from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.json_text import encode
from headstart.runtime.rpc import Exchange, Peer
from headstart.runtime.subscription import Subscription
from headstart.version import VERSION

__all__ = ["CLIENT_CAPABILITIES", "CLIENT_INFO", "StatelessConversation", "enveloped", "mirrored_headers"]

CLIENT_INFO: Final[JsonObject] = {"name": "headstart", "title": "Headstart", "version": VERSION}
CLIENT_CAPABILITIES: Final[JsonObject] = {
    "roots": {"listChanged": True},
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
}
"""All that a client may be able to do, where it is not known yet which client it will be."""

MAX_ROUNDS: Final = 10
"""How often a server may ask about one request; as the official SDKs have it."""
MAX_QUESTIONS: Final = 64
"""How many questions it may ask at once."""
MAX_ASKED_BYTES: Final = 16 * 1024 * 1024
"""How large they may be together, with the state that comes along: room for images, no more."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_INTERNAL_ERROR: Final = -32603


class StatelessConversation:
    """A `Conversation` over a peer that speaks `version`."""

    def __init__(self, peer: Peer, *, version: str, capabilities: JsonObject) -> None:
        self._peer = peer
        self._version = version
        self._subscription = Subscription(peer, self._stamped, capabilities)

    async def request(
        self, method: str, params: JsonObject | None, *, channel: ClientChannel | None = None
    ) -> Exchange:
        """Send a request, answer what the server asks about it, and return what came of it.

        Raises:
            MCPError: The server's own error, or the client's refusal to answer.
            LinkClosed: The conversation ended first.
        """
        match method:
            case "ping" | "logging/setLevel":
                return _at_once()
            case "resources/subscribe" | "resources/unsubscribe":
                uri = str((params or {}).get("uri"))
                await (self._subscription.watch if method == "resources/subscribe" else self._subscription.leave)(uri)
                return _at_once()
            case _:
                return await self._asked(method, params or {}, channel)

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Do nothing: this protocol has no notifications of clients."""

    def listen(self) -> None:
        """Subscribe to the lists that the server may change."""
        self._subscription.begin()

    # ------------------------------------------------------------ inside

    async def _asked(self, method: str, params: JsonObject, channel: ClientChannel | None) -> Exchange:
        exchange = await self._send(method, params, channel)
        sent_s, pause_s = exchange.sent_s, _FIRST_PAUSE_S
        for _ in range(MAX_ROUNDS):
            result = exchange.result
            if result.get("resultType") != "input_required":
                return dataclasses.replace(exchange, result=_unmarked(result), sent_s=sent_s)
            again = {name: value for name, value in params.items() if name not in ("inputResponses", "requestState")}
            questions = _questions(result)
            if questions:
                again["inputResponses"] = await _answers(questions, channel)
            else:  # it only wants to be asked again
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            if "requestState" in result:
                again["requestState"] = result["requestState"]
            exchange = await self._send(method, again, channel)
        raise MCPError(_INTERNAL_ERROR, f"the server asked for more input {MAX_ROUNDS} times", None)

    async def _send(self, method: str, params: JsonObject, channel: ClientChannel | None) -> Exchange:
        return await self._peer.request(method, self._stamped(params, channel), channel=channel)

    def _stamped(self, params: JsonObject, channel: ClientChannel | None) -> JsonObject:
        return enveloped(params, self._version, channel)


def enveloped(params: JsonObject, version: str, channel: ClientChannel | None) -> JsonObject:
    """Say in a request's `_meta` who asks, and what its client can do and wants to hear."""
    meta: JsonObject = {
        **_object(params.get("_meta")),
        PROTOCOL_VERSION_META_KEY: version,
        CLIENT_INFO_META_KEY: CLIENT_INFO,
        CLIENT_CAPABILITIES_META_KEY: CLIENT_CAPABILITIES if channel is None else dict(channel.capabilities),
    }
    if channel is not None and channel.log_level:
        meta[LOG_LEVEL_META_KEY] = channel.log_level
    return {**params, "_meta": meta}


def mirrored_headers(message: JsonObject, input_schema: Callable[[str], object]) -> dict[str, str]:
    """Return the headers that repeat over HTTP what a stateless request says; none for any other message."""
    params = _object(message.get("params"))
    version = _object(params.get("_meta")).get(PROTOCOL_VERSION_META_KEY)
    if not isinstance(version, str):
        return {}
    method = str(message.get("method"))
    headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
    name = params.get(NAME_BEARING_METHODS.get(method, ""))
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = encode_header_value(name)
        if method == "tools/call":
            headers |= _argument_headers(input_schema(name), params.get("arguments"))
    return headers


def _argument_headers(schema: object, arguments: object) -> dict[str, str]:
    if not isinstance(arguments, dict) or find_invalid_x_mcp_header(schema) is not None:
        return {}
    return mcp_param_headers(x_mcp_header_map(schema), cast("JsonObject", arguments))


def _questions(result: JsonObject) -> JsonObject:
    """Return what the server asks, so little that it floods no client.

    Raises:
        MCPError: It asks too much at once.
    """
    questions = _object(result.get("inputRequests"))
    if len(questions) > MAX_QUESTIONS:
        told = f"the server asked {len(questions)} questions at once; at most {MAX_QUESTIONS} are passed on"
        raise MCPError(_INTERNAL_ERROR, told, None)
    size_bytes = len(encode(result))
    if size_bytes > MAX_ASKED_BYTES:
        mib, at_most = size_bytes / 1024**2, MAX_ASKED_BYTES // 1024**2
        told = f"the server asked for input in a message of {mib:.1f} MiB; at most {at_most} MiB are passed on"
        raise MCPError(_INTERNAL_ERROR, told, None)
    return questions


async def _answers(questions: JsonObject, channel: ClientChannel | None) -> JsonObject:
    """Ask the client everything at once.

    Raises:
        MCPError: It refused one, or there is no client.
    """
    answers: JsonObject = {}
    refusals: list[MCPError] = []
    async with anyio.create_task_group() as tasks:

        async def ask(key: str, question: JsonObject) -> None:
            try:
                answers[key] = await _answer(question, channel)
            except MCPError as refused:
                refusals.append(refused)
                tasks.cancel_scope.cancel()

        for key, question in questions.items():
            tasks.start_soon(ask, key, _object(question))
    if refusals:
        raise refusals[0]
    return answers


async def _answer(question: JsonObject, channel: ClientChannel | None) -> JsonObject:
    method, params = str(question.get("method")), question.get("params")
    if channel is None:
        raise MCPError(_INTERNAL_ERROR, f"no client is connected that could answer {method}", None)
    return await channel.request(method, cast("JsonObject", params) if isinstance(params, dict) else None)


def _unmarked(result: JsonObject) -> JsonObject:
    """Leave out what only says that this is a result of the stateless protocol, and whose."""
    plain = {name: value for name, value in result.items() if name != "resultType" or value != "complete"}
    meta = _object(plain.get("_meta"))
    if SERVER_INFO_META_KEY not in meta:
        return plain
    kept = {name: value for name, value in meta.items() if name != SERVER_INFO_META_KEY}
    if kept:
        plain["_meta"] = kept
    else:
        del plain["_meta"]
    return plain


def _at_once() -> Exchange:
    return Exchange(result={}, sent_s=0.0, answered_s=0.0)


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}
