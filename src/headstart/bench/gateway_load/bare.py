"""The least that HTTP can cost: an app that has its answers ready."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from headstart.bench.replay_model import serve_on_loopback

__all__ = ["main"]

_ANSWERS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "bare", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "hello"}], "isError": False},
}


async def _app(scope: Any, receive: Any, send: Any) -> None:
    request = json.loads((await receive()).get("body") or b"{}")
    result = _ANSWERS.get(request.get("method", ""))
    body = b"" if result is None else json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    status = 405 if scope["method"] == "GET" else 200 if body else 202
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _serve() -> None:
    async with serve_on_loopback(_app) as origin:
        print(f"{origin}/mcp", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve until stdin ends; prints the URL."""
    uvloop.run(_serve())


if __name__ == "__main__":
    main()
