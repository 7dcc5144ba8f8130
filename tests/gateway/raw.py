"""A raw MCP client over HTTP: what it sends is what a test wrote."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

__all__ = ["CLIENT", "ENVELOPE", "Raw", "frames"]

CLIENT = {"name": "raw", "version": "1"}
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}
_ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def frames(body: str) -> list[Any]:
    """Return the messages of an event stream."""
    return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]


class Raw:
    """One client of one route."""

    def __init__(self, url: str, http: httpx2.AsyncClient, **headers: str) -> None:
        self.url = url
        self.http = http
        self.headers = {**_ACCEPT, **headers}

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, **headers: str) -> AsyncGenerator[Raw]:
        async with httpx2.AsyncClient(timeout=10) as http:
            yield cls(url, http, **{name.replace("_", "-"): value for name, value in headers.items()})

    async def send(self, message: Any) -> httpx2.Response:
        """Post a message (or whatever else a test wants to post)."""
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.http.post(self.url, content=content, headers=self.headers)

    async def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> httpx2.Response:
        """Do the handshake; later requests carry the session id that it gave."""
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": CLIENT}
        answer = await self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        session = answer.headers.get("mcp-session-id")
        if session is not None:
            self.headers["Mcp-Session-Id"] = session
            self.headers["Mcp-Protocol-Version"] = answer.json()["result"]["protocolVersion"]
            await self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    async def ask(self, method: str, params: Any = None, *, request_id: Any = 1) -> httpx2.Response:
        """Send a handshake-era request."""
        message = {"jsonrpc": "2.0", "id": request_id, "method": method}
        return await self.send(message if params is None else {**message, "params": params})

    async def ask_modern(self, method: str, params: Any = None, *, meta: Any = None) -> httpx2.Response:
        """Send a stateless request with its envelope and headers."""
        given: dict[str, Any] = {**(params or {}), "_meta": {**ENVELOPE, **(meta or {})}}
        headers = {**self.headers, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method}
        if (name := given.get("name") or given.get("uri")) is not None:
            headers["Mcp-Name"] = name
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
        return await self.http.post(self.url, content=json.dumps(message).encode(), headers=headers)
