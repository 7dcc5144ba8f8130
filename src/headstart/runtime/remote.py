"""Remote MCP servers: one connection per session and server, over streamable HTTP.

A connection is the session's own, because a remote server keeps state by its session id
and its headers carry somebody's credentials. The SDK's transport speaks HTTP (one POST per
request, SSE answers resumed where the server lets them, the GET stream); ids, order,
progress, cancellation and both protocols are the same as over stdio. Only the headers that
the stateless one wants are of here: they repeat what is in the message.

An HTTP 401 or 403 is not an error of the call: the client must see the challenge itself,
or it could never authorise. It is noted where the response comes in and raised by
whatever request met it. The status of any other refusal is noted for its own request, by id,
and goes with that request's error: a 404 to one call says nothing about the call beside it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit, urlunsplit

import anyio
import httpx2
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp.types import CONNECTION_CLOSED, METHOD_NOT_FOUND, jsonrpc_message_adapter

from headstart.clock import Clock
from headstart.config.model import ServerSettings
from headstart.errors import HeadstartError, ServerUnavailable, UnauthorizedUpstream
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.handshake import HandshakeRefused, Lists, read_lists, shake_hands
from headstart.runtime.json_text import decode
from headstart.runtime.outbox import MAX_QUEUED_MESSAGES, LinkClosed, Outgoing, QueueOutbox
from headstart.runtime.rpc import Conversation, Exchange, Owner, Peer
from headstart.runtime.stateless import mirrored_headers

__all__ = ["RemoteConnection", "SessionForgotten"]

CONNECT_TIMEOUT_S = 30.0
BROKEN_ANSWER = "SSE stream "
"""How the SDK's transport begins what it says of an answer that broke off."""
HTTP_ERROR = "Server returned an error response"
"""What it says of a status of 400 or more whose body says nothing."""

_CALL_AGAIN = "check that the server is up, and call again"

_log = logging.getLogger(__name__)


class SessionForgotten(MCPError):
    """The server's answer that it does not know our session's id (any more); it has done nothing of what was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Denial:
    status: int
    challenge: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """What came with a request's error over HTTP; in place of the error's own `data`."""

    status: int
    forgotten: bool
    """The server does not know the session that the request named."""
    data: object


class RemoteConnection:
    """A conversation with a remote server; `live` owns it."""

    def __init__(
        self,
        server: ServerSettings,
        *,
        headers: Mapping[str, str],
        owner: Owner,
        clock: Clock,
        stateless: bool = False,
    ) -> None:
        self._server = server
        self._stateless = stateless
        self._owner = owner
        self._clock = clock
        self._configured = httpx2.Headers(dict(server.headers))
        self._client = httpx2.AsyncClient(
            headers=self._own_headers(headers),
            timeout=httpx2.Timeout(CONNECT_TIMEOUT_S, read=None),
            event_hooks={"response": [self._look_for_denial, self._look_at_status]},
        )
        self._denial: _Denial | None = None
        self._refused: dict[object, httpx2.Response] = {}
        """By the id of the request, until its error is read."""
        self._conversation: Conversation | None = None
        self._settled = anyio.Event()
        self._stop = anyio.Event()
        self._version: str | None = None
        self.failure: HeadstartError | None = None
        self.lists: Lists | None = None
        self.served_writes = False
        """Whether the server may hold state of this session."""

    @property
    def ended(self) -> bool:
        return self._stop.is_set()

    def use_headers(self, headers: Mapping[str, str]) -> None:
        """Send these from now on beside the config's own: a client's credentials are renewed while it lives."""
        self._client.headers = self._own_headers(headers)

    def _own_headers(self, headers: Mapping[str, str]) -> httpx2.Headers:
        """Return the connection's headers; of one name, in whatever case, there is one, and the client's wins."""
        own = httpx2.Headers(self._configured)
        own.update(headers)
        return own

    def stop(self) -> None:
        """End the conversation; the remote session is ended too (DELETE), bounded."""
        self._stop.set()

    async def ready(self) -> Lists:
        """Return the server's lists once the handshake is done.

        Raises:
            UnauthorizedUpstream: The server wants (other) credentials.
            ServerUnavailable: It cannot be reached, or refused.
        """
        await self._settled.wait()
        if self.lists is None:
            raise self.failure or self._unreachable("the connection was closed")
        return self.lists

    async def request(self, method: str, params: JsonObject | None, channel: ClientChannel | None) -> Exchange:
        """Send one request.

        Raises:
            MCPError: The server's own error.
            SessionForgotten: The server has ended the session.
            UnauthorizedUpstream: It wants (other) credentials.
            ServerUnavailable: The connection broke, and has ended; or the answer did, and it goes on.
        """
        await self.ready()
        if self._conversation is None:
            raise self._unreachable("the connection was closed")
        self._denial = None
        try:
            return await self._conversation.request(method, params, channel=channel)
        except MCPError as exc:
            raise self._explained(exc) from None
        except LinkClosed:
            self._stop.set()  # whoever asks next gets a new connection, also while this one is still being closed
            raise self._broken() from None

    async def notify(self, method: str, params: JsonObject | None) -> None:
        if self._conversation is not None:
            try:
                await self._conversation.notify(method, params)
            except LinkClosed:
                _log.debug("%s: %s was not delivered, the connection is closed", self._server.name, method)

    async def read_lists(self) -> Lists | None:
        """Read all lists again; None if the server has ended or refuses."""
        if self._conversation is None or self.lists is None:
            return None
        try:
            return await read_lists(self._conversation, self.lists.initialize)
        except (LinkClosed, HandshakeRefused) as exc:
            _log.info("%s: its changed lists could not be read: %s", self._server.name, exc)
            return None

    # ------------------------------------------------------------ its life

    async def live(self) -> None:
        """Connect, shake hands, and hold the connection until `stop` or its end."""
        try:
            await self._connect_and_hold()
        except* (httpx2.HTTPError, anyio.BrokenResourceError, anyio.ClosedResourceError) as group:
            self.failure = self.failure or self._unreachable(_first(cast("BaseException", group)))
        finally:
            self._conversation = None
            self._stop.set()
            self._settled.set()

    async def _connect_and_hold(self) -> None:
        url = str(self._server.url)
        async with (
            self._client,
            streamable_http_client(url, http_client=self._client, max_sse_event_size=None) as (incoming, outgoing),
            _open_peer(self._server, self._owner, self._clock) as (peer, queue, tasks),
        ):
            tasks.start_soon(self._read, incoming, peer)
            tasks.start_soon(self._write, queue, outgoing)
            if await self._shake_hands(peer):
                self._settled.set()
                await self._stop.wait()
            tasks.cancel_scope.cancel()

    async def _shake_hands(self, peer: Peer) -> bool:
        try:
            with anyio.fail_after(self._server.start_timeout_s):
                self._conversation, self.lists = await shake_hands(peer, stateless=self._stateless)
        except TimeoutError:
            self.failure = self._unreachable(
                f"it did not answer its handshake within {self._server.start_timeout_s:g} s"
            )
        except HandshakeRefused as exc:
            self.failure = self._denied() or self._unreachable(str(exc))
        except LinkClosed:
            self.failure = self._denied() or self._unreachable("the connection closed before the handshake was done")
        return self.lists is not None

    async def _read(self, incoming: object, peer: Peer) -> None:
        async for item in incoming:  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]  the SDK's stream types are private
            if isinstance(item, SessionMessage):
                message = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                self._learn_version(message)
                self._note_refusal(message)
                peer.receive(message)
            else:
                _log.debug("%s sent what cannot be read", self._server.name)
        peer.close()
        self._stop.set()  # the transport gave up: nothing more can be sent

    async def _write(self, queue: MemoryObjectReceiveStream[Outgoing], outgoing: object) -> None:
        async for item in queue:
            message = jsonrpc_message_adapter.validate_python(item.message)
            headers = self._headers(item.message)
            stamped = ClientMessageMetadata(headers=headers) if headers else None
            await outgoing.send(SessionMessage(message, metadata=stamped))  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  the SDK's stream types are private
            if item.on_sent is not None:
                item.on_sent()

    def _headers(self, message: JsonObject) -> dict[str, str]:
        """Return the headers that this message needs beside the connection's own."""
        mirrored = mirrored_headers(message, self._input_schema)
        if mirrored:
            return mirrored
        return {MCP_PROTOCOL_VERSION_HEADER: self._version} if self._version else {}

    def _input_schema(self, tool: str) -> object:
        listed = self.lists.tools if self.lists is not None else ()
        return next((one.get("inputSchema") for one in listed if one.get("name") == tool), None)

    def _learn_version(self, message: JsonObject) -> None:
        """Every message after `initialize` names the version that was agreed on."""
        result = message.get("result")
        if self._version is None and isinstance(result, dict) and "protocolVersion" in result:
            self._version = str(message["result"]["protocolVersion"])

    # ------------------------------------------------------------ what can go wrong

    async def _look_for_denial(self, response: httpx2.Response) -> None:
        if response.status_code in (401, 403):
            challenge = response.headers.get("www-authenticate", "")
            self._denial = _Denial(status=response.status_code, challenge=challenge)

    async def _look_at_status(self, response: httpx2.Response) -> None:
        if response.is_error and response.request.method == "POST":
            asked = cast("JsonObject", decode(response.request.content))  # one message, as the transport writes it
            if "id" in asked:  # nothing answers a notification
                self._refused[asked["id"]] = response

    def _note_refusal(self, message: JsonObject) -> None:
        """Put what HTTP said of a request beside what the error's body says."""
        refused = self._refused.pop(message.get("id"), None)
        error = message.get("error")
        if refused is not None and isinstance(error, dict):
            told = cast("JsonObject", error)
            unknown = refused.status_code == 404 and MCP_SESSION_ID in refused.request.headers
            told["data"] = _Refused(status=refused.status_code, forgotten=unknown, data=told.get("data"))

    def _explained(self, exc: MCPError) -> MCPError | HeadstartError:
        """Return what a request's error is about where the server itself did not say it."""
        refused = exc.data if isinstance(exc.data, _Refused) else None
        if refused is not None:
            exc = MCPError(exc.code, exc.message, refused.data)
            if refused.forgotten and exc.code != METHOD_NOT_FOUND:
                return SessionForgotten(exc.code, exc.message, exc.data)
        denied = self._denied()
        if denied is not None:
            return denied
        if refused is not None and exc.message == HTTP_ERROR:
            return self._unavailable(f"it answered {refused.status}", hint=_CALL_AGAIN)
        if exc.code == CONNECTION_CLOSED and exc.message.startswith(BROKEN_ANSWER):
            return self._unavailable("its answer broke off", hint=_CALL_AGAIN)
        return exc

    def _denied(self) -> UnauthorizedUpstream | None:
        if self._denial is None:
            return None
        return UnauthorizedUpstream(
            f"{self._server.name}: {_shown(self._server.url)} answered {self._denial.status}",
            status=self._denial.status,
            challenge=self._denial.challenge,
        )

    def _unreachable(self, reason: str) -> ServerUnavailable:
        return self._unavailable(
            reason, hint=f"check that the server is up and mcpServers.{self._server.name}.url is right"
        )

    def _broken(self) -> ServerUnavailable:
        return self._unavailable(
            "the connection broke during the call",
            hint=f"{_CALL_AGAIN}: a new session begins there, without what this one held",
        )

    def _unavailable(self, reason: str, *, hint: str) -> ServerUnavailable:
        told = f"{self._server.name}: {_shown(self._server.url)}: {reason}"
        return ServerUnavailable(told, server=self._server.name, hint=hint)


@asynccontextmanager
async def _open_peer(
    server: ServerSettings, owner: Owner, clock: Clock
) -> AsyncGenerator[tuple[Peer, MemoryObjectReceiveStream[Outgoing], TaskGroup]]:
    send, queue = anyio.create_memory_object_stream[Outgoing](MAX_QUEUED_MESSAGES)
    with send, queue:
        async with anyio.create_task_group() as tasks:
            peer = Peer(server=server.name, outbox=QueueOutbox(send), owner=owner, clock=clock, tasks=tasks)
            try:
                yield peer, queue, tasks
            finally:
                peer.close()


def _shown(url: str | None) -> str:
    """Return as much of a URL as people and models may read: user information and query often are credentials.

    >>> _shown("https://me:secret@far.example:8443/mcp?apiKey=secret")
    'https://far.example:8443/mcp'
    """
    parts = urlsplit(url or "")
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _first(exc: BaseException) -> str:
    """Return the text of the first error in a group of groups."""
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    return str(exc) or type(exc).__name__
