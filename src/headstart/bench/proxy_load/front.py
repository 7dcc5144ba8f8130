"""The proxy under test, as the service runs it: uvicorn, uvloop, a router reading along."""

from __future__ import annotations

import asyncio
import json
import resource
import sys

import uvicorn
import uvloop

from headstart.bench.replay_model import serve_on_loopback
from headstart.config.model import Upstream
from headstart.core.events import PrepareForm, ResourceRegistered, ToolProfile
from headstart.core.intent import default_router
from headstart.core.stream import ModelEvent
from headstart.ids import PrincipalId, ResourceId
from headstart.proxy import open_proxy

__all__ = ["main"]

SERVERS = 50
TOOLS_EACH = 20
_PRINCIPAL = PrincipalId("bench")


class _Routing:
    """A real keyword router over 1,000 tools, fed with everything that is read."""

    def __init__(self) -> None:
        self._router = default_router()
        self.events = 0
        self.candidates = 0
        for number in range(SERVERS):
            self._router.register(_server(number))

    def observe(self, event: ModelEvent) -> None:
        self.events += 1
        self.candidates += len(self._router.observe(event))


def _server(number: int) -> ResourceRegistered:
    tools = tuple(
        ToolProfile(
            name=f"{verb}_{number}_{place}",
            description=f"Use this to {verb} the record of kind{number}x{place} in the archive of area{number}.",
            argument_names=(f"kind{number}x{place}", "path"),
        )
        for place, verb in enumerate(("read", "write", "find", "move") * (TOOLS_EACH // 4))
    )
    return ResourceRegistered(
        at_s=0.0,
        principal=_PRINCIPAL,
        resource=ResourceId(f"server{number}"),
        form=PrepareForm.COLD,
        tools=tools,
        start_s=1.0,
        start_cpu_s=1.0,
        memory_bytes=100_000_000,
    )


async def _serve(upstream: str) -> None:
    routing = _Routing()
    upstreams = [Upstream(prefix="default", base_url=upstream)]
    async with (
        open_proxy(upstreams, observe=routing.observe, principal_of=lambda _: _PRINCIPAL) as proxy,
        serve_on_loopback(proxy) as origin,
    ):
        print(origin.rpartition(":")[2], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        told = proxy.statistics()
        usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "read": told.read,
                "unread": sum(one.count for one in told.unread),
                "parse_lag_max_ms": told.parse_lag_max_s * 1e3,
                "events": routing.events,
                "candidates": routing.candidates,
                "cpu_s": usage.ru_utime + usage.ru_stime,
                "uvicorn": uvicorn.__version__,
            }
        ),
        flush=True,
    )


def main() -> None:
    """Serve until stdin ends; prints the port first and what was read last."""
    uvloop.run(_serve(sys.argv[1]))


if __name__ == "__main__":
    main()
