"""Clients: the official ones, and raw HTTP for what these would never do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

__all__ = ["ERAS", "RawClient", "said", "tools"]

ERAS: Final = ("legacy", "auto")
"""With a handshake (2025-11-25), and what the SDK finds out by itself (2026-07-28, stateless)."""


@asynccontextmanager
async def tools(url: str, *, era: str = "auto") -> AsyncGenerator[Client]:
    """Connect the official client."""
    async with Client(streamable_http_client(url), mode=era) as client:
        yield client


def said(result: CallToolResult) -> str:
    """The text of a result."""
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


class RawClient:
    """A handshake client of 2025-06-18, message by message."""

    def __init__(self, url: str, *, headers: dict[str, str] | None = None) -> None:
        self.url = url
        self.http = httpx2.Client(trust_env=False, timeout=30, headers=headers, verify=False)
        self.headers = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def initialize(self) -> str:
        """Shake hands; returns the id of the session."""
        self.instructions()
        return self.headers["Mcp-Session-Id"]

    def instructions(self) -> str:
        """Shake hands; returns what the service says about itself."""
        client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        answer = self.http.post(self.url, json=message("initialize", client), headers=self.headers)
        assert answer.status_code == 200, answer.text
        self.headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        told: str = _message_in(answer)["result"].get("instructions", "")
        return told

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Ask; returns the answer's message."""
        return _message_in(self.http.post(self.url, json=message(method, params or {}), headers=self.headers))

    def call(self, tool: str, **arguments: object) -> tuple[str, bool]:
        """Call a tool; returns what it said, and whether that was an error."""
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        assert "result" in answer, answer
        result = answer["result"]
        return "\n".join(part["text"] for part in result["content"]), bool(result.get("isError"))


def _message_in(answer: httpx2.Response) -> dict[str, Any]:
    text = answer.text
    if answer.headers["content-type"].startswith("text/event-stream"):
        text = [line[5:] for line in text.splitlines() if line.startswith("data:")][-1]
    found: dict[str, Any] = json.loads(text)
    return found


def message(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
