"""The first exchange with an MCP server: `initialize`, then all of its lists.

The handshake offers the newest version that has one and takes any older one; servers built
on the first SDKs die on the newer stateless probe, so it is not tried. All client features
(roots, sampling, elicitation) are declared, because a sandbox is prepared before anybody
knows which client will use it; what the client cannot do is refused when it is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from headstart import __version__
from headstart.ids import ResourceId
from headstart.runtime.contract import Catalogue, JsonObject
from headstart.runtime.outbox import LinkClosed
from headstart.runtime.rpc import Peer

__all__ = ["HandshakeRefused", "Lists", "as_catalogue", "initialize", "read_lists", "shake_hands"]

CLIENT_CAPABILITIES: JsonObject = {
    "roots": {"listChanged": True},
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
}
MAX_PAGES = 200
METHOD_NOT_FOUND = -32601


class HandshakeRefused(Exception):
    """The server answered `initialize` in a way that ends the conversation; the text says how."""


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


async def shake_hands(peer: Peer) -> Lists:
    """Bring a fresh server to where it can be used, and read its lists.

    Raises:
        HandshakeRefused: It refused, or speaks no version that we do.
        LinkClosed: It ended first.
    """
    return await read_lists(peer, await initialize(peer))


async def initialize(peer: Peer) -> JsonObject:
    """Do the handshake and return the server's `initialize` result."""
    params: JsonObject = {
        "protocolVersion": LATEST_HANDSHAKE_VERSION,
        "capabilities": CLIENT_CAPABILITIES,
        "clientInfo": {"name": "headstart", "title": "Headstart", "version": __version__},
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
    return result


async def read_lists(peer: Peer, initialized: JsonObject) -> Lists:
    """Read every list that the server declares, all at once and all pages."""
    declared = initialized.get("capabilities")
    capabilities = cast("JsonObject", declared) if isinstance(declared, dict) else {}
    read: dict[str, list[JsonObject]] = {}
    failures: list[HandshakeRefused | LinkClosed] = []

    async def one(method: str, key: str) -> None:
        try:
            read[key] = await _all_pages(peer, method, key)
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


async def _all_pages(peer: Peer, method: str, key: str) -> list[JsonObject]:
    entries: list[JsonObject] = []
    cursor: object = None
    for _ in range(MAX_PAGES):
        try:
            result = (await peer.request(method, None if cursor is None else {"cursor": cursor})).result
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
