"""A client of the built-in server `sandbox`."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

from mcp import Client

from .clients import said, tools
from .running import Running

__all__ = ["Talk", "talking"]


class Talk:
    """A client of the built-in server alone; a tool's text, or, where that is expected, its error."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def ok(self, tool: str, /, **arguments: object) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, said(result)
        return said(result)

    async def error(self, tool: str, /, **arguments: object) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, said(result)
        return said(result)

    async def bash(self, line: str, **more: object) -> str:
        """Run a line that has to succeed; returns what it said."""
        output, _, status = (await self.ok("bash", command=line, **more)).rpartition("[exit code ")
        assert status.startswith("0,"), output + status
        return output.rstrip("\n")

    def sees(self, name: str) -> Callable[[], Awaitable[bool]]:
        """Return what looks whether there is something of this name in the home."""

        async def look() -> bool:
            return name in await self.ok("list_files")

        return look

    async def fork(self, **arguments: object) -> str:
        found = re.search(r"Branch (\S+) ", await self.ok("fork", **arguments))
        assert found is not None
        return found[1]


@asynccontextmanager
async def talking(running: Running, session: str | None = None, *, era: str = "legacy") -> AsyncGenerator[Talk]:
    path = "/mcp/sandbox" if session is None else f"/s/{session}/mcp/sandbox"
    async with tools(f"{running.url}{path}", era=era) as client:
        yield Talk(client)
