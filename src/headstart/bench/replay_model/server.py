"""Serving an ASGI app on a loopback port for as long as a block runs."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp

from headstart.bench.replay_model.app import replay_app
from headstart.bench.replay_model.recordings import Recording
from headstart.proxy.port import PortProtocol

__all__ = ["serve", "serve_on_loopback"]


class _BorrowedLoopServer(uvicorn.Server):
    """A server inside someone else's event loop: signals are not its business."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serve(
    recordings: Sequence[Recording], *, ttft_s: float = 0.0, tpot_s: float = 0.0, port: int = 0
) -> AsyncGenerator[str]:
    """Serve `recordings` on loopback and yield the base URL (`http://127.0.0.1:…/v1`)."""
    async with serve_on_loopback(replay_app(recordings, ttft_s=ttft_s, tpot_s=tpot_s), port=port) as origin:
        yield f"{origin}/v1"


@asynccontextmanager
async def serve_on_loopback(app: ASGIApp, *, port: int = 0) -> AsyncGenerator[str]:
    """Serve `app` on a loopback port (0: any free one) and yield its origin, `http://127.0.0.1:…`.

    The port listens before the block is entered, so that a first request cannot be refused.
    Leaving the block closes what is still open within seconds, also when cancelled.
    """
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        config = uvicorn.Config(
            app,
            http=PortProtocol,
            lifespan="off",
            log_level="critical",
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=1,
            timeout_keep_alive=120,  # clients, not we, end idle connections
            backlog=1024,
        )
        server = _BorrowedLoopServer(config)
        async with anyio.create_task_group() as group:
            group.start_soon(_serve_until_told, server, listener)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.should_exit = True


async def _serve_until_told(server: uvicorn.Server, listener: socket.socket) -> None:
    """Serve until `should_exit`; shielded, so that a cancelled owner still gets an orderly close (bounded by it)."""
    with anyio.CancelScope(shield=True):
        await server.serve([listener])
