"""What the gateway adds to a `tools/call`, and what FastMCP's proxy adds to the same call.

One real stdio server is called by the official SDK's client: directly over stdio,
through our whole service, and through FastMCP's proxy, each a process of its own. They
take turns call by call, so that what else happens on the machine meets all of them alike.
Reported are differences of medians. They include what HTTP costs the client, and one more
hop between processes, which no gateway can save; a relay that does nothing else says how
much that is on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Final

import anyio
from anyio.streams.text import TextReceiveStream
from mcp import Client, StdioServerParameters

from headstart.bench.result import BenchResult, percentile

__all__ = ["Plan", "measure", "run"]

START_WITHIN_S: Final = 60.0
WARM_UP: Final = 20
_SERVER: Final = (sys.executable, "-m", "headstart.bench.gateway_load.server")
_PACKAGE: Final = "headstart.bench.gateway_load"
_MODE: Final = "legacy"
"""The client speaks the protocol with a handshake, as most agents do."""

_FRONTS: Final = {
    "headstart": ("front", *_SERVER),
    "fastmcp": ("fastmcp_front", _MODE, *_SERVER),
    "relay": ("relay", *_SERVER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured: so many rounds, or as many as there is time for."""

    rounds: int
    within_s: float

    @classmethod
    def of(cls, *, quick: bool) -> Plan:
        return cls(rounds=400, within_s=12.0) if quick else cls(rounds=3_000, within_s=120.0)


async def run(*, quick: bool) -> BenchResult:
    """Measure calls.

    Raises:
        TimeoutError: One of the processes did not start.
    """
    return await measure(Plan.of(quick=quick))


async def measure(plan: Plan) -> BenchResult:
    """Measure calls by a plan; see `run`."""
    taken = await _take_turns(plan)
    middle = {way: median(calls) for way, calls in taken.items()}
    calm = {way: percentile(calls, 10) for way, calls in taken.items()}
    summary = {
        "call_added_ms_p50": round(middle["headstart"] - middle["direct"], 3),
        "fastmcp_call_added_ms_p50": round(middle["fastmcp"] - middle["direct"], 3),
    }
    samples = [{"way": way, "ms": round(ms, 4)} for way, calls in taken.items() for ms in calls]
    least = f"a relay that only passes bodies on as lines adds {middle['relay'] - middle['direct']:.2f} ms"
    told = ", ".join(f"{way} {middle[way]:.2f} ({calm[way]:.2f})" for way in taken)
    return BenchResult(summary=summary, samples=samples, notes=(least, f"one call, p50 (p10), ms: {told}"))


async def _take_turns(plan: Plan) -> dict[str, list[float]]:
    """Call in turns and return each way's milliseconds."""
    async with AsyncExitStack() as stack:
        direct = StdioServerParameters(command=_SERVER[0], args=[*_SERVER[1:]], env=dict(os.environ))
        targets: dict[str, StdioServerParameters | str] = {"direct": direct}
        for way, command in _FRONTS.items():
            targets[way] = await stack.enter_async_context(_front(*command))
        clients = {way: await stack.enter_async_context(Client(to, mode=_MODE)) for way, to in targets.items()}
        taken: dict[str, list[float]] = {way: [] for way in clients}
        for _ in range(WARM_UP):
            await _round(clients)
        until_s = time.perf_counter() + plan.within_s
        for _ in range(plan.rounds):
            for way, ms in (await _round(clients)).items():
                taken[way].append(ms)
            if time.perf_counter() > until_s:  # between calls: a client that is cut off in one does not close well
                break
        return taken


async def _round(clients: Mapping[str, Client]) -> dict[str, float]:
    """Call once each way and return the milliseconds."""
    taken: dict[str, float] = {}
    for way, client in clients.items():
        began = time.perf_counter()
        await client.call_tool("echo", {"text": "hello"})
        taken[way] = (time.perf_counter() - began) * 1e3
    return taken


@asynccontextmanager
async def _front(module: str, *args: str) -> AsyncGenerator[str]:
    """Run a gateway in a process of its own and yield its URL."""
    command = [sys.executable, "-m", f"{_PACKAGE}.{module}", *args]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a process without pipes")
        with anyio.fail_after(START_WITHIN_S):
            line = ""
            while not line.endswith("\n"):
                line += await TextReceiveStream(process.stdout).receive()
        try:
            yield line.strip()
        finally:
            await process.stdin.aclose()
            with anyio.move_on_after(10, shield=True):
                await process.wait()
