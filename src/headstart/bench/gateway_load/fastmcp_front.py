"""FastMCP's proxy in front of the same server, at its best: one server process, kept connected."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

from headstart.bench.replay_model import serve_on_loopback

__all__ = ["main"]


async def _serve(mode: str, command: list[str]) -> None:
    async with Client(StdioTransport(command[0], command[1:]), mode=mode) as client:
        app = create_proxy(client).http_app(path="/mcp")
        async with app.lifespan(app), serve_on_loopback(app) as origin:
            print(f"{origin}/mcp", flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve the server whose command is given until stdin ends; prints the URL."""
    uvloop.run(_serve(sys.argv[1], sys.argv[2:]))


if __name__ == "__main__":
    main()
