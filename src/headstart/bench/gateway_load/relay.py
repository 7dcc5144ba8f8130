"""The least that HTTP in front of a stdio server can cost: bodies go in as lines, lines come back as bodies.

It serves one client, understands nothing but ids, and keeps no promise that a gateway makes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from typing import Any

import uvloop

from headstart.bench.replay_model import serve_on_loopback

__all__ = ["main"]


class _Relay:
    """A raw ASGI app in front of one server process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process without pipes")
        self._to, self._from = process.stdin, process.stdout
        self._waiting: dict[Any, asyncio.Future[bytes]] = {}

    async def read(self) -> None:
        """Hand each answer to the request that waits for it, until the server ends."""
        async for line in self._from:
            waiting = self._waiting.pop(json.loads(line).get("id"), None)
            if waiting is not None:
                waiting.set_result(line)

    def close(self) -> None:
        """End the server's input, on which it ends."""
        self._to.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive()).get("body") or b"{}"
        answer = b"" if scope["method"] != "POST" else await self._ask(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        status = 405 if scope["method"] == "GET" else 200 if answer else 202
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _ask(self, body: bytes) -> bytes:
        name = json.loads(body).get("id")
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if name is not None:
            self._waiting[name] = answer
        self._to.write(body + b"\n")
        return b"" if name is None else await answer


async def _serve(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    relay = _Relay(process)
    reading = asyncio.create_task(relay.read())
    async with serve_on_loopback(relay) as origin:
        print(f"{origin}/mcp", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    relay.close()
    await reading
    await process.wait()


def main() -> None:
    """Serve the server whose command is given until stdin ends; prints the URL."""
    uvloop.run(_serve(sys.argv[1:]))


if __name__ == "__main__":
    main()
