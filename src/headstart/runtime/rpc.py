"""One end of a JSON-RPC conversation with an MCP server: ids, cancellation, progress, order.

The peer knows nothing of transports. A transport hands it what arrived (`receive`, which
never blocks) and sends what it is given (`Outbox`). Payloads stay raw JSON objects: what a
server sent is what a client gets.

Order is the subtle part. A server may write progress, then a log line, then the result;
the client must see them in this order, and a slow client must not stop the reader that
serves the others. So everything that belongs to an open request goes into *its* queue, and
the task that waits for the answer is the one that forwards what came before it. Two such
queues never share a fate. They are bounded: past `MAX_ARRIVALS` further notifications are
dropped and counted, never the answer.

A stdio server cannot say which request a notification or a request of its own belongs to
(only progress carries a token). It goes to the newest open request, or, with none open, to
the owner of the conversation. The stateless protocol's subscriptions are the exception: what
they tell carries the id of the request that subscribed, which stays open and gets nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import anyio
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from headstart.clock import Clock
from headstart.ids import ResourceId
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.outbox import LinkClosed, Outbox, Outgoing

__all__ = ["Conversation", "Exchange", "Nobody", "Owner", "Peer", "told_error"]

MAX_ARRIVALS = 1_000
MAX_SERVER_REQUESTS = 64
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603

_ID_DIGITS = 18
"""Our ids count up from 1; Python refuses to read a number of some thousands of digits."""
_NEVER_CANCELLED = frozenset({"initialize", "server/discover"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request that was answered.

    Attributes:
        sent_s: When the request had been written.
        answered_s: When the answer had been read.
        result_bytes: The answer's size on the wire, 0 where the transport does not tell.
    """

    result: JsonObject
    sent_s: float
    answered_s: float
    result_bytes: int = 0


class Owner(Protocol):
    """Whoever holds the conversation: asked where to send what belongs to no request."""

    def notified(self, method: str, params: JsonObject | None) -> None:
        """Take a notification that came outside of any request, or concerns more than one."""
        ...

    def fallback_channel(self) -> ClientChannel | None:
        """Return where the server's own requests go while no request is open."""
        ...


class Conversation(Protocol):
    """What a server can be asked and told once it is introduced, whichever protocol it speaks."""

    async def request(
        self, method: str, params: JsonObject | None, *, channel: ClientChannel | None = None
    ) -> Exchange:
        """Send a request and return its answer; see `Peer.request`."""
        ...

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification; see `Peer.notify`."""
        ...


class Nobody:
    """The owner of a conversation that no client takes part in."""

    def notified(self, method: str, params: JsonObject | None) -> None:
        _log.debug("a server that nobody talks to said %s %s", method, params)

    def fallback_channel(self) -> ClientChannel | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    params: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notice:
    method: str
    params: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    result: JsonObject
    size_bytes: int


_Arrival = _Progress | _Notice | _Answer | Exception


@dataclass(slots=True, kw_only=True)
class _Pending:
    """A request that is open: what has arrived for it and who waits.

    Attributes:
        subscribes: It stays open to be told what it subscribed to.
    """

    channel: ClientChannel | None
    subscribes: bool = False
    token: object = None
    arrivals: deque[_Arrival] = field(default_factory=deque[_Arrival])
    arrived: asyncio.Future[None] | None = None
    sent_s: float = 0.0
    answered_s: float = 0.0

    def put(self, arrival: _Arrival) -> None:
        self.arrivals.append(arrival)
        if self.arrived is not None and not self.arrived.done():
            self.arrived.set_result(None)

    async def wait(self) -> None:
        """Wait until something more arrives."""
        self.arrived = asyncio.get_running_loop().create_future()
        await self.arrived


class Peer:
    """Our end of the conversation.

    Attributes:
        owner: Whoever holds the conversation.
        tasks: Where what the conversation does beside its requests runs; ends with it.
        dropped_notifications: How many were given up because a client took them too slowly.
    """

    def __init__(self, *, server: ResourceId, outbox: Outbox, owner: Owner, clock: Clock, tasks: TaskGroup) -> None:
        self._server = server
        self._outbox = outbox
        self.owner = owner
        self._clock = clock
        self.tasks = tasks
        self._ids = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._serving: dict[str | int, anyio.CancelScope] = {}
        self._closed = False
        self.dropped_notifications = 0

    @property
    def open_requests(self) -> int:
        return len(self._pending)

    async def request(
        self,
        method: str,
        params: JsonObject | None,
        *,
        channel: ClientChannel | None = None,
        subscribes: bool = False,
    ) -> Exchange:
        """Send a request and return its answer; what arrives before it goes to `channel`, in order.

        With `subscribes`, only what names this request as its subscription does.

        Cancelling sends `notifications/cancelled` and forgets the request.

        Raises:
            MCPError: The server's JSON-RPC error, as it sent it.
            LinkClosed: The conversation ended first.
        """
        if self._closed:
            raise LinkClosed
        request_id = next(self._ids)
        pending = _Pending(channel=channel, subscribes=subscribes)
        self._pending[request_id] = pending
        message: JsonObject = {"jsonrpc": "2.0", "id": request_id, "method": method}
        if params is not None:
            message["params"] = _with_own_token(params, request_id, pending)
        queued = False
        try:
            await self._outbox.send(Outgoing(message=message, on_sent=lambda: self._mark_sent(pending)))
            queued = True
            return await self._outcome(pending)
        except anyio.get_cancelled_exc_class():
            if queued and method not in _NEVER_CANCELLED:
                self._tell_cancelled(request_id)
            raise
        finally:
            del self._pending[request_id]

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Send a notification.

        Raises:
            LinkClosed: The conversation is over.
        """
        if self._closed:
            raise LinkClosed
        await self._outbox.send(Outgoing(message=_message(method, params)))

    def receive(self, message: object, *, size_bytes: int = 0) -> bool:
        """Take one parsed message; return False if it is no JSON-RPC message."""
        if isinstance(message, list):
            taken = [self._receive_one(one) for one in cast("list[object]", message)]  # all, whatever the first is
            return all(taken)
        return self._receive_one(message, size_bytes)

    def close(self) -> None:
        """End the conversation: every open request fails with `LinkClosed`. Idempotent."""
        self._closed = True
        for pending in self._pending.values():
            pending.put(LinkClosed())

    def _receive_one(self, message: object, size_bytes: int = 0) -> bool:
        """Take what is no batch (a batch holds none)."""
        if not isinstance(message, dict):
            return False
        fields = cast("JsonObject", message)
        method = fields.get("method")
        if isinstance(method, str):
            return self._receive_call(fields, method)
        if "result" in fields or "error" in fields:
            return self._receive_answer(fields, size_bytes)
        return False

    # ------------------------------------------------------------ what we asked

    def _mark_sent(self, pending: _Pending) -> None:
        pending.sent_s = self._clock.monotonic_s()

    async def _outcome(self, pending: _Pending) -> Exchange:
        while True:
            while pending.arrivals:
                arrival = pending.arrivals.popleft()
                match arrival:
                    case _Answer():
                        return Exchange(
                            result=arrival.result,
                            sent_s=pending.sent_s or pending.answered_s,
                            answered_s=pending.answered_s,
                            result_bytes=arrival.size_bytes,
                        )
                    case Exception():
                        raise arrival
                    case _Progress(params=params):
                        if pending.channel is not None:
                            await pending.channel.progress(params)
                    case _Notice(method=method, params=params):
                        if pending.channel is not None:
                            await pending.channel.notify(method, params, server=self._server)
            await pending.wait()

    def _tell_cancelled(self, request_id: int) -> None:
        told = _message("notifications/cancelled", {"requestId": request_id, "reason": "the client gave it up"})
        if not self._closed and not self._outbox.send_nowait(Outgoing(message=told)):
            _log.debug("request %d was cancelled, but its server reads nothing", request_id)

    def _receive_answer(self, fields: JsonObject, size_bytes: int) -> bool:
        pending = self._pending.get(_own_id(fields.get("id")))
        if pending is None:
            return True  # the late answer to a request that was cancelled
        pending.answered_s = self._clock.monotonic_s()
        if "error" in fields:
            pending.put(told_error(fields["error"], teller="server"))
        elif isinstance(fields["result"], dict):
            pending.put(_Answer(result=cast("JsonObject", fields["result"]), size_bytes=size_bytes))
        else:
            pending.put(MCPError(INTERNAL_ERROR, "the server's result is not a JSON object", None))
        return True

    # ------------------------------------------------------------ what the server says of its own accord

    def _receive_call(self, fields: JsonObject, method: str) -> bool:
        params = fields.get("params")
        if params is not None and not isinstance(params, dict):
            return False
        params = cast("JsonObject | None", params)
        request_id = fields.get("id")
        if isinstance(request_id, str | int) and not isinstance(request_id, bool):
            self._serve(request_id, method, params)
        elif method == "notifications/cancelled":
            self._cancel_served((params or {}).get("requestId"))
        elif method == "notifications/progress":
            self._progress(params or {})
        else:
            self._notice(method, params)
        return True

    def _cancel_served(self, request_id: object) -> None:
        scope = self._serving.get(request_id) if isinstance(request_id, str | int) else None
        if scope is not None:
            scope.cancel()

    def _progress(self, params: JsonObject) -> None:
        pending = self._pending.get(_own_id(params.get("progressToken")))
        if pending is not None and pending.token is not None:
            self._queue(pending, _Progress(params={**params, "progressToken": pending.token}))

    def _notice(self, method: str, params: JsonObject | None) -> None:
        subscription = self._subscription(params)
        if subscription is not None:
            self._queue(subscription, _Notice(method=method, params=params))
            return
        newest = self._newest_open()
        if newest is None or method.endswith("list_changed"):
            self.owner.notified(method, params)
        else:
            self._queue(newest, _Notice(method=method, params=params))

    def _subscription(self, params: JsonObject | None) -> _Pending | None:
        meta = None if params is None else params.get("_meta")
        named = cast("JsonObject", meta).get(SUBSCRIPTION_ID_META_KEY) if isinstance(meta, dict) else None
        pending = None if named is None else self._pending.get(_own_id(named))
        return pending if pending is not None and pending.subscribes else None

    def _newest_open(self) -> _Pending | None:
        return next((p for p in reversed(self._pending.values()) if p.channel is not None and not p.subscribes), None)

    def _queue(self, pending: _Pending, arrival: _Progress | _Notice) -> None:
        if len(pending.arrivals) >= MAX_ARRIVALS:
            self.dropped_notifications += 1
            return
        pending.put(arrival)

    # ------------------------------------------------------------ what the server asks

    def _serve(self, request_id: str | int, method: str, params: JsonObject | None) -> None:
        if method == "ping":
            self._answer({"jsonrpc": "2.0", "id": request_id, "result": {}})
        elif request_id in self._serving:
            self._answer(_refusal(request_id, INVALID_REQUEST, "a request with this id is open"))
        elif len(self._serving) >= MAX_SERVER_REQUESTS:
            self._answer(_refusal(request_id, INTERNAL_ERROR, "too many requests of this server are open"))
        else:
            scope = anyio.CancelScope()
            self._serving[request_id] = scope
            self.tasks.start_soon(self._serve_one, request_id, method, params, scope)

    async def _serve_one(
        self, request_id: str | int, method: str, params: JsonObject | None, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                answer = await self._ask_client(request_id, method, params)
                await self._outbox.send(Outgoing(message=answer))
        except LinkClosed:
            pass
        finally:
            del self._serving[request_id]

    async def _ask_client(self, request_id: str | int, method: str, params: JsonObject | None) -> JsonObject:
        newest = self._newest_open()
        channel = newest.channel if newest is not None else self.owner.fallback_channel()
        if channel is None:
            if method == "roots/list":
                return {"jsonrpc": "2.0", "id": request_id, "result": {"roots": []}}
            return _refusal(request_id, METHOD_NOT_FOUND, f"no client is connected that could answer {method}")
        try:
            result = await channel.request(method, params, server=self._server)
        except MCPError as refused:
            return _refusal(request_id, refused.code, refused.message, refused.data)
        except Exception:  # noqa: BLE001  supervises: what one question met must not end the link and the sandbox
            _log.exception("%s of %s could not be asked", method, self._server)
            return _refusal(request_id, INTERNAL_ERROR, f"{method} could not be asked")
        return {"jsonrpc": "2.0", "id": request_id, "result": result}

    def _answer(self, message: JsonObject) -> None:
        if not self._outbox.send_nowait(Outgoing(message=message)):
            _log.debug("an answer was dropped: the server reads nothing")


def _message(method: str, params: JsonObject | None) -> JsonObject:
    message: JsonObject = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return message


def _with_own_token(params: JsonObject, request_id: int, pending: _Pending) -> JsonObject:
    """Put our id in place of the client's progress token: two clients may use the same one."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or "progressToken" not in meta:
        return params
    pending.token = cast("JsonObject", meta)["progressToken"]
    return {**params, "_meta": {**cast("JsonObject", meta), "progressToken": request_id}}


def _own_id(value: object) -> int:
    """Return the id of ours that a server echoed (some echo a number as a string), else -1."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= _ID_DIGITS and value.isascii() and value.isdigit():
        return int(value)
    return -1


def told_error(error: object, *, teller: str) -> MCPError:
    """Make an exception of an `error` member, whatever the other side (`teller`) put there."""
    fields: dict[str, Any] = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    code = fields.get("code")
    message = fields.get("message")
    return MCPError(
        code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR,
        message if isinstance(message, str) else f"the {teller} gave no message",
        fields.get("data"),
    )


def _refusal(request_id: object, code: int, message: str, data: object = None) -> JsonObject:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}
