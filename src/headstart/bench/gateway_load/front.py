"""Our gateway with the whole service behind it, as `headstart serve` runs them, but for isolation.

The sandbox backend has no part in a call: once a server runs, its pipes are pipes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from headstart.backends.process import open_process_backend
from headstart.bench.replay_model import serve_on_loopback
from headstart.bench.scratch import open_scratch, scratch_dir
from headstart.clock import SystemClock
from headstart.config.model import PoolMode, PoolSettings, ServerSettings, Settings
from headstart.gateway.app import open_gateway
from headstart.gateway.guard import PortGuard
from headstart.ids import RandomIds, ResourceId
from headstart.runtime.service import Service

__all__ = ["main"]


async def _serve(folder: Path, command: list[str]) -> None:
    echo = ServerSettings(name=ResourceId("echo"), command=command[0], args=tuple(command[1:]))
    settings = Settings(servers=(echo,), state_dir=folder, pool=PoolSettings(mode=PoolMode.ON_DEMAND, zygotes=False))
    clock, ids = SystemClock(), RandomIds()
    async with (
        open_process_backend(scratch_dir()) as backend,
        Service.open(settings=settings, backend=backend, clock=clock, ids=ids) as service,
        open_gateway(service, memory=service.session_memory, clock=clock, ids=ids) as gateway,
        serve_on_loopback(PortGuard(gateway, host="127.0.0.1")) as origin,
    ):
        print(f"{origin}/mcp/echo", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main() -> None:
    """Serve the server whose command is given until stdin ends; prints the URL."""
    with open_scratch() as folder:
        uvloop.run(_serve(folder, sys.argv[1:]))


if __name__ == "__main__":
    main()
