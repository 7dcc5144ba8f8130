"""What each MCP method means here: answered from a view, or sent to the server it is about.

Only what must change changes: a name or URI of the merged view becomes the server's own,
and back in the result. Everything else goes through as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from mcp import MCPError
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    METHOD_NOT_FOUND,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)

from headstart.errors import SandboxLost
from headstart.gateway.channels import RequestChannel, Voice
from headstart.gateway.session import Connection
from headstart.gateway.view import LIST_KEYS, Target, View
from headstart.gateway.views import Views
from headstart.gateway.wire import encode, json_object
from headstart.ids import ResourceId
from headstart.runtime.contract import JsonObject, LearnProgress, ToolRuntime
from headstart.version import VERSION

__all__ = ["Methods", "Request", "merged_initialize", "modern_result"]

_NOT_FOUND: Final = -32002
"""MCP's code for a resource that nobody has."""

_ENVELOPE_KEYS: Final = frozenset(
    {PROTOCOL_VERSION_META_KEY, CLIENT_INFO_META_KEY, CLIENT_CAPABILITIES_META_KEY, LOG_LEVEL_META_KEY}
)
"""What a stateless client says to its neighbour (us) with each request; not the server's business."""


class Request:
    """One request of a client, on its way.

    Attributes:
        voice: How its client hears and answers meanwhile.
        server: The server it went to, once that is known.
    """

    __slots__ = ("connection", "method", "params", "server", "voice")

    def __init__(self, connection: Connection, method: str, params: JsonObject, voice: Voice) -> None:
        self.connection = connection
        self.method = method
        self.params = params
        self.voice = voice
        self.server: ResourceId | None = connection.server


class Methods:
    """Answers requests; one instance serves all clients."""

    def __init__(self, runtime: ToolRuntime, views: Views) -> None:
        self._runtime = runtime
        self._views = views

    async def answer(self, request: Request) -> bytes:
        """Return the encoded result of a request.

        Raises:
            MCPError: It is wrong, or its server answered with an error.
            HeadstartError: It cannot be served.
        """
        match request.method:
            case "tools/call":
                result = await self._call(request)
            case "ping":
                return b"{}"
            case method if method in LIST_KEYS:
                return await self._list(request)
            case "prompts/get":
                result = await self._named(request, "prompt")
            case "resources/read" | "resources/subscribe" | "resources/unsubscribe":
                result = await self._resource(request)
            case "completion/complete":
                result = await self._complete(request)
            case "logging/setLevel":
                return self._set_level(request)
            case _:
                result = await self._other(request)
        return encode(modern_result(request.connection, result) if request.connection.modern else result)

    async def view(self, connection: Connection, *, progress: LearnProgress | None = None) -> View:
        """Return what a client sees, made at its first look and kept for its conversation."""
        unheld = connection.modern and not connection.session.named and connection.stale
        if connection.view is None or unheld:
            connection.view = await self._views.of(connection.server, connection.scope, progress=progress)
            connection.stale = False
        return connection.view

    async def notified(self, connection: Connection, method: str, params: JsonObject | None) -> None:
        """Pass a client's notification to the servers that may care (those that run)."""
        if connection.server is not None:
            await self._runtime.notify(connection.scope, connection.server, method, params)
        elif method == "notifications/roots/list_changed":
            for entry in self._runtime.servers(connection.scope.principal):
                await self._runtime.notify(connection.scope, entry.name, method, params)

    async def send(self, request: Request, server: ResourceId, params: JsonObject | None) -> JsonObject:
        """Send a request to a server's sandbox and return its result."""
        connection = request.connection
        request.server = server
        channel = RequestChannel(request.voice, server, self._views)
        if connection.modern and params is not None:
            params = _without_envelope(params)
        if connection.log_level is not None and server not in connection.levels_sent:
            await self._send_level(connection, server, channel)
        try:
            return await self._runtime.request(connection.scope, server, request.method, params, channel)
        except SandboxLost:
            connection.levels_sent.discard(server)
            raise

    # ------------------------------------------------------------ methods

    async def _list(self, request: Request) -> bytes:
        if request.params.get("cursor") is not None:
            raise MCPError(INVALID_PARAMS, "unknown cursor: lists come in one page here; ask again without a cursor")
        progress = _learning_told(request)
        view = await self.view(request.connection, progress=progress)
        found = view.list_bytes(request.method, modern=request.connection.modern)
        if found is None:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", request.method)
        return found

    async def _call(self, request: Request) -> JsonObject:
        result = await self._named(request, "tool")
        if request.connection.server is None and request.server is not None:
            _learn_links(request.connection, request.server, result)
        return result

    async def _named(self, request: Request, kind: str) -> JsonObject:
        name = request.params.get("name")
        if request.connection.server is not None:
            return await self.send(request, request.connection.server, request.params)
        view = await self.view(request.connection)
        target = None
        if isinstance(name, str):
            target = view.tool(name) if kind == "tool" else view.prompt(name)
        if target is None:
            raise MCPError(INVALID_PARAMS, f"Unknown {kind}: {name}")
        params = {**request.params, "name": target.name}
        params.pop("task", None)  # not promised here, so it is to be ignored: its task could not be asked for
        return await self.send(request, target.server, params)

    async def _resource(self, request: Request) -> JsonObject:
        uri = request.params.get("uri")
        if request.connection.server is not None:
            return await self.send(request, request.connection.server, request.params)
        target = await self._find_resource(request.connection, uri)
        result = await self.send(request, target.server, {**request.params, "uri": target.name})
        return result if target.name == uri else _readdressed(result, target.name, cast("str", uri))

    async def _find_resource(self, connection: Connection, uri: object) -> Target:
        view = await self.view(connection)
        target = None
        if isinstance(uri, str):
            target = connection.learned_uris.get(uri) or view.resource(uri)
        if target is None:
            cure = "name its server, as in headstart://<server>/<uri>"
            raise MCPError(_NOT_FOUND, f"Resource not found: {uri}. hint: {cure}", {"uri": uri})
        return target

    async def _complete(self, request: Request) -> JsonObject:
        if request.connection.server is not None:
            return await self.send(request, request.connection.server, request.params)
        view = await self.view(request.connection)
        ref = json_object(request.params.get("ref")) or {}
        target, member = _completion_target(view, ref)
        if target is None:
            raise MCPError(INVALID_PARAMS, f"Unknown reference: {ref}")
        told = {**ref, member: target.name}
        return await self.send(request, target.server, {**request.params, "ref": told})

    def _set_level(self, request: Request) -> bytes:
        """Keep the level: filter by it here, and tell each server before its next request.

        A client sets it while connecting; passing it on at once would start every server.
        """
        level = request.params.get("level")
        if not isinstance(level, str):
            raise MCPError(INVALID_PARAMS, "logging/setLevel needs a level")
        request.connection.log_level = level
        request.connection.levels_sent.clear()
        return b"{}"

    async def _send_level(self, connection: Connection, server: ResourceId, channel: RequestChannel) -> None:
        view = await self.view(connection)
        connection.levels_sent.add(server)
        if view.capability(server, "logging") is None:
            return
        try:
            level = {"level": connection.log_level}
            await self._runtime.request(connection.scope, server, "logging/setLevel", level, channel)
        except MCPError:
            return  # it declared logging but has no levels; ours filter all the same

    async def _other(self, request: Request) -> JsonObject:
        """Pass on what MCP's core does not know; nothing is started for tasks that a server does not have."""
        server, method = request.connection.server, request.method
        if server is None:
            cure = "methods of one server's own, tasks and extensions are on /mcp/<server>"
            raise MCPError(METHOD_NOT_FOUND, f"Method not found: {method}. hint: {cure}", method)
        if method.startswith("tasks/") and not _has_tasks(await self.view(request.connection)):
            raise MCPError(METHOD_NOT_FOUND, f"Method not found: {method}. {server} declares no tasks", method)
        return await self.send(request, server, request.params or None)


def _has_tasks(view: View) -> bool:
    """Tell whether a single server declares tasks: as a capability (2025-11-25), or as an extension."""
    capabilities = json_object(view.initialize().get("capabilities")) or {}
    extensions = json_object(capabilities.get("extensions")) or {}
    return "tasks" in capabilities or any(name.rpartition("/")[2] == "tasks" for name in extensions)


def modern_result(connection: Connection, result: JsonObject) -> JsonObject:
    """Add what the 2026-07-28 protocol wants of each result; what the server said itself wins."""
    stamp = {SERVER_INFO_META_KEY: server_info(connection), **(json_object(result.get("_meta")) or {})}
    return {"resultType": "complete", **result, "_meta": stamp}


def server_info(connection: Connection) -> object:
    """Return who the client talks to: the one server, or Headstart for all of them."""
    if connection.server is not None and connection.view is not None:
        return connection.view.initialize().get("serverInfo")
    return {"name": connection.server or "headstart", "version": VERSION}


def merged_initialize(view: View, *, complete: bool) -> JsonObject:
    """Make the `initialize` result of the merged view.

    Unless all servers are known (`complete`), capabilities are promised that may turn
    out to be empty lists.
    """
    capabilities: JsonObject = {}
    for name in ("tools", "prompts", "resources"):
        if not complete or view.with_capability(name):
            capabilities[name] = {"listChanged": True}
    if "resources" in capabilities:
        capabilities["resources"]["subscribe"] = True
    for name in ("logging", "completions"):
        if not complete or view.with_capability(name):
            capabilities[name] = {}
    result: JsonObject = {
        "capabilities": capabilities,
        "serverInfo": {"name": "headstart", "version": VERSION},
    }
    instructions = view_instructions(view)
    return {**result, "instructions": instructions} if instructions else result


def view_instructions(view: View) -> str:
    """Join all servers' instructions under their names, and say which servers are missing and why."""
    parts = [f"# {server}\n{text}" for server, text in view.instructions()]
    parts += [f"# {missing.server}\nNot available: {missing.reason}" for missing in view.missing]
    return "\n\n".join(parts)


def _learning_told(request: Request) -> LearnProgress | None:
    """Return what turns learning into progress notifications, if the client asked for them."""
    if request.voice.progress_token is None:
        return None

    async def tell(*, done: int, total: int, message: str) -> None:
        await request.voice.progress({"progress": done, "total": total, "message": message})

    return tell


def _completion_target(view: View, ref: Mapping[str, Any]) -> tuple[Target | None, str]:
    name, uri = ref.get("name"), ref.get("uri")
    if ref.get("type") == "ref/prompt" and isinstance(name, str):
        return view.prompt(name), "name"
    return (view.template(uri) if isinstance(uri, str) else None), "uri"


def _learn_links(connection: Connection, server: ResourceId, result: JsonObject) -> None:
    """Remember which server a tool's result linked to, so that the link can be read."""
    content = result.get("content")
    for item in cast("list[object]", content) if isinstance(content, list) else ():
        block = json_object(item) or {}
        if block.get("type") == "resource_link" and isinstance(uri := block.get("uri"), str):
            connection.learn_uri(uri, Target(server, uri))


def _readdressed(result: JsonObject, original: str, shown: str) -> JsonObject:
    """Show a read resource under the URI that the client asked for."""
    contents = result.get("contents")
    if not isinstance(contents, list):
        return result
    moved: list[object] = []
    for item in cast("list[object]", contents):
        block = json_object(item)
        moved.append({**block, "uri": shown} if block is not None and block.get("uri") == original else item)
    return {**result, "contents": moved}


def _without_envelope(params: JsonObject) -> JsonObject:
    meta = json_object(params.get("_meta"))
    if meta is None or _ENVELOPE_KEYS.isdisjoint(meta):
        return params
    kept = {key: value for key, value in meta.items() if key not in _ENVELOPE_KEYS}
    rest = {key: value for key, value in params.items() if key != "_meta"}
    return {**rest, "_meta": kept} if kept else rest
