"""A gateway on a real loopback port, over the fake runtime."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from mcp.types import CallToolResult, TextContent

from headstart.clock import ManualClock
from headstart.gateway.app import Gateway, GatewayOptions, open_gateway
from headstart.gateway.sessions import SessionLimits
from headstart.runtime.contract import SessionMemory, ToolRuntime
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of


def text_of(result: CallToolResult) -> str:
    """Return the text of a result that is one text block."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait, bounded, for what happens in a client that has no event for it."""
    with anyio.fail_after(5):
        while not condition():  # noqa: ASYNC110  see above
            await anyio.sleep(0.001)


async def streams_open(gateway: Any, count: int) -> None:
    """Wait until clients have this many streams open."""

    def opened() -> int:
        return sum(len(c.outboxes) for s in gateway.sessions.live() for c in s.connections.values())

    await eventually(lambda: opened() >= count)


@asynccontextmanager
async def served(app: Any) -> AsyncGenerator[str]:
    """Serve an ASGI app on a free loopback port and yield its base URL."""
    with socket.socket(
        socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    ) as listener:  # asyncio looks at the number
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        port = listener.getsockname()[1]
        config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            with anyio.fail_after(10):
                while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
                    await anyio.sleep(0.005)
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.should_exit = True


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime(
        [
            FakeServer(catalogue=catalogue_of("git", tools=["status", "log"], instructions="Ask git.")),
            FakeServer(catalogue=catalogue_of("time", tools=["now"])),
        ]
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


Opened = Callable[..., AbstractAsyncContextManager[tuple[str, Gateway]]]


@pytest.fixture
def opened(clock: ManualClock) -> Opened:
    """Return what opens a gateway over a runtime: `async with opened(runtime) as (url, gateway)`."""

    @asynccontextmanager
    async def open_one(
        runtime: ToolRuntime, *, memory: SessionMemory | None = None, **options: Any
    ) -> AsyncGenerator[tuple[str, Gateway]]:
        limits = {name: options.pop(name) for name in ("idle_s", "linger_s", "cap") if name in options}
        chosen = GatewayOptions(sessions=SessionLimits(**limits), **options)
        async with (
            open_gateway(runtime, options=chosen, memory=memory, clock=clock) as gateway,
            served(gateway) as url,
        ):
            yield url, gateway

    return open_one
