"""A `ToolRuntime` without sandboxes: servers are Python functions.

For tests of what stands above the runtime. It keeps what it was asked, in order, and
lets a test hold calls open, change catalogues and speak as a server.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from headstart.core.stream import ModelEvent
from headstart.errors import CatalogueUnavailable, HeadstartError
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import (
    Catalogue,
    ClientChannel,
    JsonObject,
    LearnProgress,
    ServerEntry,
    SessionScope,
)

__all__ = ["Asked", "FakeRuntime", "FakeServer", "Handler", "Told", "catalogue_of", "text_result"]

Handler = Callable[[SessionScope, JsonObject, ClientChannel], Awaitable[JsonObject]]
"""Answers one request: scope, params, channel to result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that reached the runtime."""

    scope: SessionScope
    server: ResourceId
    method: str
    params: JsonObject | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A client's notification that reached the runtime."""

    scope: SessionScope
    server: ResourceId
    method: str
    params: JsonObject | None


def text_result(text: str) -> JsonObject:
    """Make a tool result with one text block."""
    return {"content": [{"type": "text", "text": text}], "isError": False}


def catalogue_of(
    server: str,
    *,
    tools: Sequence[JsonObject | str] = (),
    resources: Sequence[JsonObject] = (),
    resource_templates: Sequence[JsonObject] = (),
    prompts: Sequence[JsonObject] = (),
    **initialize: Any,
) -> Catalogue:
    """Make a catalogue; a tool given by name alone takes any object."""
    listed = [t if isinstance(t, dict) else {"name": t, "inputSchema": {"type": "object"}} for t in tools]
    has = {"tools": listed, "resources": resources or resource_templates, "prompts": prompts}
    told: JsonObject = {
        "protocolVersion": "2025-11-25",
        "capabilities": {name: {"listChanged": True} for name, items in has.items() if items},
        "serverInfo": {"name": f"{server}-server", "version": "1.0"},
        **initialize,
    }
    text = json.dumps([told, listed, list(resources), list(resource_templates), list(prompts)])
    return Catalogue(
        server=ResourceId(server),
        digest=hashlib.blake2b(text.encode(), digest_size=8).hexdigest(),
        initialize=told,
        tools=listed,
        resources=list(resources),
        resource_templates=list(resource_templates),
        prompts=list(prompts),
    )


@dataclass(slots=True, kw_only=True)
class FakeServer:
    """A server of the fake runtime.

    Attributes:
        tools: What each tool does; a tool without an entry here echoes its arguments.
        methods: What other methods do.
        learning: If given, learning waits for it.
        refuses: If given, catalogue requests raise it.
    """

    catalogue: Catalogue
    tools: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    methods: Mapping[str, Handler] = field(default_factory=dict[str, Handler])
    remote: bool = False
    learned: bool = True
    learning: anyio.Event | None = None
    refuses: HeadstartError | None = None

    async def answer(self, scope: SessionScope, method: str, params: JsonObject, channel: ClientChannel) -> JsonObject:
        if method == "tools/call":
            name = str(params.get("name"))
            if (tool := self.tools.get(name)) is not None:
                return await tool(scope, params, channel)
            if all(listed.get("name") != name for listed in self.catalogue.tools):
                raise MCPError(INVALID_PARAMS, f"Unknown tool: {name}")
            return text_result(json.dumps(params.get("arguments")))
        if (handler := self.methods.get(method)) is not None:
            return await handler(scope, params, channel)
        raise MCPError(METHOD_NOT_FOUND, "Method not found", method)


class FakeRuntime:
    """Implements `ToolRuntime`.

    Attributes:
        asked: Every request, in order of arrival.
        told: Every client notification.
        cancelled: The requests that were cancelled.
        opened: Every scope that a session was opened with.
        closed: Ended sessions with their reasons.
        channels: The current channel of each session that listens.
    """

    def __init__(self, servers: Sequence[FakeServer]) -> None:
        self._servers = {server.catalogue.server: server for server in servers}
        self.asked: list[Asked] = []
        self.told: list[Told] = []
        self.cancelled: list[Asked] = []
        self.opened: list[SessionScope] = []
        self.closed: list[tuple[SessionId, str]] = []
        self.channels: dict[SessionId, ClientChannel] = {}
        self.observed: list[ModelEvent] = []
        self._happened = anyio.Event()

    def __getitem__(self, name: str) -> FakeServer:
        return self._servers[ResourceId(name)]

    async def until(self, condition: Callable[[], bool], *, within_s: float = 5.0) -> None:
        """Wait until something that the runtime was asked or told makes `condition` true.

        Raises:
            TimeoutError: It did not.
        """
        with anyio.fail_after(within_s):
            while not condition():
                await self._happened.wait()

    async def change(self, server: str, catalogue: Catalogue, *, kinds: Sequence[str] = ("tools",)) -> None:
        """Give a server other lists and say so to every listening session."""
        self[server].catalogue = catalogue
        self[server].learned = True
        for channel in list(self.channels.values()):
            for kind in kinds:
                await channel.notify(f"notifications/{kind}/list_changed", None, server=ResourceId(server))

    # ------------------------------------------------------------ ToolRuntime

    def servers(self, principal: PrincipalId) -> Sequence[ServerEntry]:  # noqa: ARG002  the same for everybody
        return [ServerEntry(name=name, remote=s.remote, learned=s.learned) for name, s in self._servers.items()]

    async def catalogue(
        self,
        server: ResourceId,
        scope: SessionScope,  # noqa: ARG002  the same for everybody
        *,
        progress: LearnProgress | None = None,
    ) -> Catalogue:
        fake = self._servers.get(server)
        if fake is None:
            raise CatalogueUnavailable(f"no server {server!r}")
        if fake.learning is not None:
            await fake.learning.wait()
            if progress is not None:
                await progress(done=1, total=1, message=f"learned {server}")
        if fake.refuses is not None:
            raise fake.refuses
        fake.learned = True
        return fake.catalogue

    def open_session(self, scope: SessionScope) -> None:
        self.opened.append(scope)
        self._stir()

    async def close_session(self, session: SessionId, *, reason: str) -> None:
        self.closed.append((session, reason))
        self._stir()

    async def request(
        self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None, channel: ClientChannel
    ) -> JsonObject:
        asked = Asked(scope=replace(scope), server=server, method=method, params=params)
        self.asked.append(asked)
        self._stir()
        try:
            return await self._servers[server].answer(scope, method, params or {}, channel)
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(asked)
            self._stir()
            raise

    async def notify(self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None) -> None:
        self.told.append(Told(scope=scope, server=server, method=method, params=params))
        self._stir()

    def listen(self, session: SessionId, channel: ClientChannel | None) -> None:
        if channel is None:
            self.channels.pop(session, None)
        else:
            self.channels[session] = channel
        self._stir()

    def observe(self, event: ModelEvent) -> None:
        self.observed.append(event)
        self._stir()

    def _stir(self) -> None:
        happened, self._happened = self._happened, anyio.Event()
        happened.set()
