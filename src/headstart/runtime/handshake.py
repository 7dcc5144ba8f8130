"""The first exchange with an MCP server: who speaks which protocol, then all of its lists.

Two protocols are alive: one that begins with `initialize`, and the stateless 2026-07-28,
where `server/discover` tells what `initialize` did. Many servers speak both, old ones only
the first, some only the second. `initialize` is tried first: a server that has it can hold
state and ask its client in the middle of a call, and servers built on the first SDKs die on
the other's probe. Only who refuses it is asked to be discovered; where that is known from
before (`stateless`), the order is turned round, and whichever is refused, the other one counts.

All client features (roots, sampling, elicitation) are declared, because a sandbox is
prepared before anybody knows which client will use it; what the client cannot do is refused
when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types import SERVER_INFO_META_KEY, UNSUPPORTED_PROTOCOL_VERSION
from mcp.types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from headstart.ids import ResourceId
from headstart.runtime.contract import Catalogue, JsonObject
from headstart.runtime.outbox import LinkClosed
from headstart.runtime.rpc import Conversation, Peer
from headstart.runtime.stateless import CLIENT_CAPABILITIES, CLIENT_INFO, StatelessConversation, enveloped

__all__ = [
    "HandshakeRefused",
    "Introduced",
    "Lists",
    "as_catalogue",
    "introduce",
    "is_stateless",
    "read_lists",
    "shake_hands",
]

MAX_PAGES = 200
METHOD_NOT_FOUND = -32601
DISCOVER_TIMEOUT_S = 10.0
"""As long as the official client waits; some old servers never answer what they do not know."""


class HandshakeRefused(Exception):
    """The server answered in a way that ends the conversation; the text says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Introduced:
    """A server that can be used.

    Attributes:
        conversation: Where requests go.
        initialize: What it says of itself, as an `initialize` result whatever it speaks.
    """

    conversation: Conversation
    initialize: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """What a server says of itself when asked."""

    initialize: JsonObject
    tools: Sequence[JsonObject] = ()
    resources: Sequence[JsonObject] = ()
    resource_templates: Sequence[JsonObject] = ()
    prompts: Sequence[JsonObject] = ()

    @property
    def protocol_version(self) -> str:
        return str(self.initialize.get("protocolVersion", ""))


def is_stateless(initialize: JsonObject) -> bool:
    """Tell from what a server said of itself whether it speaks the stateless protocol."""
    return initialize.get("protocolVersion") in MODERN_PROTOCOL_VERSIONS


async def shake_hands(peer: Peer, *, stateless: bool = False) -> tuple[Conversation, Lists]:
    """Bring a fresh server to where it can be used, and read its lists.

    Raises:
        HandshakeRefused: It refused, or speaks no version that we do.
        LinkClosed: It ended first.
    """
    introduced = await introduce(peer, stateless=stateless)
    return introduced.conversation, await read_lists(introduced.conversation, introduced.initialize)


async def introduce(peer: Peer, *, stateless: bool = False) -> Introduced:
    """Find out which protocol a server speaks, and begin with it.

    Args:
        peer: Nothing was said on it yet.
        stateless: It spoke the stateless protocol when it was last met.

    Raises:
        HandshakeRefused: It speaks neither; the text is about the one it was expected to speak.
        LinkClosed: It ended first.
    """
    first, second = (_discover, _initialize) if stateless else (_initialize, _discover)
    try:
        return await first(peer)
    except HandshakeRefused as refused:
        try:
            return await second(peer)
        except HandshakeRefused:
            raise refused from refused.__cause__


async def _initialize(peer: Peer) -> Introduced:
    params: JsonObject = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": CLIENT_CAPABILITIES,
        "clientInfo": CLIENT_INFO,
    }
    try:
        result = (await peer.request("initialize", params)).result
    except MCPError as refused:
        raise HandshakeRefused(f"it refused initialize: {refused.message}") from refused
    version = result.get("protocolVersion")
    if version not in HANDSHAKE_PROTOCOL_VERSIONS:
        known = f"{HANDSHAKE_PROTOCOL_VERSIONS[0]} to {LATEST_HANDSHAKE_VERSION}"
        raise HandshakeRefused(f"it speaks MCP {version!r}; the versions known here are {known}")
    await peer.notify("notifications/initialized", None)
    return Introduced(conversation=peer, initialize=result)


async def _discover(peer: Peer) -> Introduced:
    try:
        found = await _discovered(peer, LATEST_MODERN_VERSION)
    except MCPError as refused:
        named = _shared_version(_member(refused.data, "supported"))
        if refused.code != UNSUPPORTED_PROTOCOL_VERSION or named is None:
            raise HandshakeRefused(f"it refused server/discover: {refused.message}") from refused
        try:
            found = await _discovered(peer, named)
        except MCPError as again:
            raise HandshakeRefused(f"it refused server/discover: {again.message}") from again
    version = _shared_version(found.get("supportedVersions"))
    if version is None:
        raise HandshakeRefused(f"it speaks MCP {found.get('supportedVersions')!r}, none of which is known here")
    initialize = _as_initialize(found, version)
    capabilities = cast("JsonObject", initialize["capabilities"])
    conversation = StatelessConversation(peer, version=version, capabilities=capabilities)
    conversation.listen()
    return Introduced(conversation=conversation, initialize=initialize)


async def _discovered(peer: Peer, version: str) -> JsonObject:
    with anyio.move_on_after(DISCOVER_TIMEOUT_S):
        return (await peer.request("server/discover", enveloped({}, version, None))).result
    raise HandshakeRefused(f"it did not answer server/discover within {DISCOVER_TIMEOUT_S:g} s")


def _shared_version(offered: object) -> str | None:
    """Return the newest stateless version in what a server offers."""
    listed = cast("list[object]", offered) if isinstance(offered, list) else []
    return next((version for version in reversed(MODERN_PROTOCOL_VERSIONS) if version in listed), None)


def _as_initialize(discovered: JsonObject, version: str) -> JsonObject:
    """Say what a discovered server told as an `initialize` result says it."""
    capabilities = discovered.get("capabilities")
    told: JsonObject = {
        "protocolVersion": version,
        "capabilities": capabilities if isinstance(capabilities, dict) else {},
        "serverInfo": _member(discovered.get("_meta"), SERVER_INFO_META_KEY) or {"name": "unnamed", "version": ""},
    }
    if "instructions" in discovered:
        told["instructions"] = discovered["instructions"]
    return told


def _member(value: object, name: str) -> object:
    return cast("JsonObject", value).get(name) if isinstance(value, dict) else None


async def read_lists(server: Conversation, initialized: JsonObject) -> Lists:
    """Read every list that the server declares, all at once and all pages."""
    declared = initialized.get("capabilities")
    capabilities = cast("JsonObject", declared) if isinstance(declared, dict) else {}
    read: dict[str, list[JsonObject]] = {}
    failures: list[HandshakeRefused | LinkClosed] = []

    async def one(method: str, key: str) -> None:
        try:
            read[key] = await _all_pages(server, method, key)
        except (HandshakeRefused, LinkClosed) as exc:
            failures.append(exc)

    async with anyio.create_task_group() as tasks:
        if "tools" in capabilities:
            tasks.start_soon(one, "tools/list", "tools")
        if "resources" in capabilities:
            tasks.start_soon(one, "resources/list", "resources")
            tasks.start_soon(one, "resources/templates/list", "resourceTemplates")
        if "prompts" in capabilities:
            tasks.start_soon(one, "prompts/list", "prompts")
    if failures:
        raise failures[0]
    return Lists(
        initialize=initialized,
        tools=tuple(read.get("tools", ())),
        resources=tuple(read.get("resources", ())),
        resource_templates=tuple(read.get("resourceTemplates", ())),
        prompts=tuple(read.get("prompts", ())),
    )


def as_catalogue(server: ResourceId, key: str, lists: Lists) -> Catalogue:
    """Name the lists by a digest of their own bytes and of `key` (launch spec and credentials' scope)."""
    text = json.dumps([key, lists.initialize, lists.tools, lists.resources, lists.resource_templates, lists.prompts])
    return Catalogue(
        server=server,
        digest=hashlib.blake2b(text.encode(), digest_size=16).hexdigest(),
        initialize=lists.initialize,
        tools=lists.tools,
        resources=lists.resources,
        resource_templates=lists.resource_templates,
        prompts=lists.prompts,
    )


async def _all_pages(server: Conversation, method: str, key: str) -> list[JsonObject]:
    entries: list[JsonObject] = []
    cursor: object = None
    for _ in range(MAX_PAGES):
        try:
            result = (await server.request(method, None if cursor is None else {"cursor": cursor})).result
        except MCPError as refused:
            if refused.code == METHOD_NOT_FOUND:
                return entries  # declared, not there: as good as empty
            raise HandshakeRefused(f"it answered {method} with an error: {refused.message}") from refused
        page = result.get(key)
        if isinstance(page, list):
            entries += [cast("JsonObject", entry) for entry in cast("list[object]", page) if isinstance(entry, dict)]
        cursor = result.get("nextCursor")
        if cursor is None:
            break
    return entries
