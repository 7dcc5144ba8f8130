"""What the gateway, the proxy and the control API may ask of the runtime.

The runtime speaks MCP by method name and raw JSON objects: what a server sent is what a
client gets, unknown fields and their order included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headstart.core.stream import ModelEvent
from headstart.ids import PrincipalId, ResourceId, SessionId

__all__ = [
    "BuiltIn",
    "Catalogue",
    "ClientChannel",
    "JsonObject",
    "LearnProgress",
    "RememberedClient",
    "ServerEntry",
    "SessionMemory",
    "SessionScope",
    "ToolRuntime",
]

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All that an MCP server tells about itself, as it told it.

    Attributes:
        initialize: Its `initialize` result (capabilities, serverInfo, instructions).
        digest: Of launch spec, credentials' scope and the lists' bytes.
    """

    server: ResourceId
    digest: str
    initialize: JsonObject
    tools: Sequence[JsonObject] = ()
    resources: Sequence[JsonObject] = ()
    resource_templates: Sequence[JsonObject] = ()
    prompts: Sequence[JsonObject] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEntry:
    """A configured server, as the gateway lists it.

    Attributes:
        problem: Why it is not learned, if it was tried; "" otherwise.
    """

    name: ResourceId
    remote: bool
    learned: bool
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionScope:
    """Who a tool client is.

    Attributes:
        session: Its id (URL, header, Mcp-Session-Id or credential, in this order).
        servers: What it can reach; empty means all.
        credentials: Digest of the credentials that came along, "" for none. Never the
            credentials themselves.
        passthrough_headers: Headers for remote servers (Authorization), kept in memory only.
    """

    session: SessionId
    principal: PrincipalId
    servers: tuple[ResourceId, ...] = ()
    credentials: str = ""
    passthrough_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedClient:
    """A tool client's connection, as far as it must outlive a restart of the service.

    Attributes:
        id: Its `Mcp-Session-Id`.
        server: The one server that it talks to, or None for the merged view.
        client_params: The `params` of its `initialize` request.
        seen_wall_s: When it was last heard of, seconds since the Unix epoch.
    """

    id: str
    session: SessionId
    principal: PrincipalId
    server: ResourceId | None
    protocol_version: str
    client_params: JsonObject
    seen_wall_s: float


class SessionMemory(Protocol):
    """Where tool clients are remembered. Fast enough to be called on the event loop."""

    def save(self, client: RememberedClient) -> None:
        """Remember a client; the newest word on an id wins."""
        ...

    def load(self, client_id: str) -> RememberedClient | None: ...

    def forget(self, client_id: str) -> None:
        """Forget one client; harmless if it is not known."""
        ...

    def forget_unseen(self, before_wall_s: float) -> None:
        """Forget all clients that were last heard of before this time."""
        ...


class LearnProgress(Protocol):
    """Told how far the learning of unknown servers is."""

    async def __call__(self, *, done: int, total: int, message: str) -> None: ...


class ClientChannel(Protocol):
    """The way back to a tool client while one of its requests is open.

    `server` says who speaks; it is needed on the channel given to `listen`, where no
    request of the client's tells.
    """

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the client says it can be asked, and which extensions it knows."""
        ...

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages that it wants; None: it did not say, "": none at all."""
        ...

    async def progress(self, params: JsonObject) -> None:
        """Forward `notifications/progress` for this request (with the client's own token)."""
        ...

    async def notify(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> None:
        """Forward any other notification."""
        ...

    async def request(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> JsonObject:
        """Forward a server's own request (sampling, elicitation, roots).

        Raises:
            MCPError: The client refused or cannot.
        """
        ...


class BuiltIn(Protocol):
    """An MCP server that is part of the service, as the runtime sees it.

    Its tools' hints are taken at their word.
    """

    @property
    def catalogue(self) -> Catalogue:
        """What it offers; the same to everybody, and as long as it runs."""
        ...

    async def request(self, session: SessionId, method: str, params: JsonObject | None) -> JsonObject:
        """Answer one request of a session. If cancelled, what it began is interrupted.

        Raises:
            MCPError: It is wrong, or nothing that this server has.
            SandboxLost: What held state of this session is gone; told once.
            HeadstartError: It cannot be served.
        """
        ...

    def take_up(self, session: SessionId) -> bool:
        """Go on with what a new session had here before the service was started; return whether there is any."""
        ...

    def close(self, session: SessionId) -> None:
        """Begin to end what a session has here; idempotent."""
        ...


class ToolRuntime(Protocol):
    """The runtime as seen from above. All methods are for the service's own event loop."""

    def servers(self, principal: PrincipalId) -> Sequence[ServerEntry]:
        """The configured servers in config order."""
        ...

    async def catalogue(
        self, server: ResourceId, scope: SessionScope, *, progress: LearnProgress | None = None
    ) -> Catalogue:
        """Return a server's lists; at once if they are known, else learn them first.

        Single-flight per server and credentials' scope, and bounded; cancelling one
        waiter leaves the learning to the others.

        Raises:
            CatalogueUnavailable: They could not be learned; the message says why.
            UnauthorizedUpstream: A remote server answered 401 (the challenge is in it).
        """
        ...

    def open_session(self, scope: SessionScope) -> None:
        """Make the session known (idempotent; the newest headers win)."""
        ...

    async def close_session(self, session: SessionId, *, reason: str) -> None:
        """End a session and stop its sandboxes; idempotent."""
        ...

    async def request(
        self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None, channel: ClientChannel
    ) -> JsonObject:
        """Send one MCP request to the session's own sandbox of `server`, starting it if need be.

        Returns:
            The result object as the server sent it.

        Cancelling sends `notifications/cancelled` to the server and gives the call up.

        Raises:
            MCPError: The server answered with a JSON-RPC error, which is passed on as is.
            ServerUnavailable: It could not be started, died, or backs off.
            SandboxLost: It had state of this session and is gone; told once, then a new one starts.
            BudgetExceeded: No memory for it.
        """
        ...

    async def notify(self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None) -> None:
        """Pass a client's notification to the session's sandbox, if there is one."""
        ...

    def listen(self, session: SessionId, channel: ClientChannel | None) -> None:
        """Where to send what servers say outside of any request (list_changed, updates, logs)."""
        ...

    def observe(self, event: ModelEvent) -> None:
        """Take what a model was seen to say. Never blocks, never raises."""
        ...
