"""What the proxy adds to a model's stream, against the same upstream directly.

Upstream, proxy and load generator are three processes. Direct and proxied runs alternate,
so that what else happens on the machine meets both. Reported are differences of medians,
and for the full load how late chunks arrive after the upstream wrote them.

What limits them is measured alongside: a relay of bare bytes, in the proxy's place, gives
what any process in between costs on this machine; and at full load, where three processes
want more than two cores, the lateness of the *direct* stream says how much is the
machine's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from headstart.bench.result import BenchResult, percentile

__all__ = ["Plan", "measure", "run"]

STREAMS = 100
CHUNKS_PER_S = 100
LIGHT_STREAMS = 4
"""So few that their chunks come one by one: timers tick in milliseconds, and chunks that come together wait in line."""
APART_S = 0.02
"""Between single requests, so that the reading of one is over before the next; agents pause for longer."""
ANSWER_WITHIN_S = 120.0
MAX_LINE_BYTES = 256 * 1024 * 1024
_PACKAGE = "headstart.bench.proxy_load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    single_rounds: int
    light_seconds: float
    light_rounds: int
    full_seconds: float
    bursts: int

    @classmethod
    def of(cls, *, quick: bool) -> Plan:
        if quick:
            return cls(single_rounds=100, light_seconds=1.0, light_rounds=3, full_seconds=3.0, bursts=6)
        return cls(single_rounds=600, light_seconds=2.0, light_rounds=6, full_seconds=15.0, bursts=30)


class _Child:
    """A process of the bench, spoken to in lines."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)

    async def line(self) -> Any:
        with anyio.fail_after(ANSWER_WITHIN_S):
            return json.loads(await self._stdout.receive_until(b"\n", MAX_LINE_BYTES))

    async def ask(self, **command: Any) -> Any:
        await self._stdin.send(json.dumps(command).encode() + b"\n")
        return await self.line()

    async def finish(self) -> None:
        await self._stdin.aclose()


@asynccontextmanager
async def _child(module: str, *args: str) -> AsyncGenerator[_Child]:
    command = (sys.executable, "-m", f"{_PACKAGE}.{module}", *args)
    async with await anyio.open_process(command, stderr=None) as process:
        child = _Child(process)
        try:
            yield child
        finally:
            with anyio.move_on_after(5, shield=True):
                await child.finish()
                await process.wait()
            if process.returncode is None:
                process.kill()


async def run(*, quick: bool) -> BenchResult:
    """Measure. Takes about 20 s if quick, else two minutes.

    Raises:
        TimeoutError: A process of the bench did not answer.
    """
    return await measure(Plan.of(quick=quick))


async def measure(plan: Plan) -> BenchResult:
    """Measure as much as `plan` says."""
    async with _child("upstream") as upstream:
        direct = await upstream.line()
        async with (
            _child("front", f"http://127.0.0.1:{direct}/v1") as front,
            _child("relay", str(direct)) as relay,
            _child("client") as client,
        ):
            ports = {"direct": direct, "proxied": await front.line(), "relayed": await relay.line()}
            measured = _Measured(client, ports)
            await measured.everything(plan)
            await front.finish()
            told = await front.line()
    return _result(measured, told)


class _Measured:
    """All samples, by what was measured and which way the stream went."""

    def __init__(self, client: _Child, ports: Mapping[str, int]) -> None:
        self._client = client
        self._ports = dict(ports)
        self.streams: list[dict[str, Any]] = []

    async def everything(self, plan: Plan) -> None:
        await self._alternate("warm-up", 5, streams=10, chunks=20, interval_ms=1)
        await self._alternate("single", plan.single_rounds, gap_s=APART_S, streams=1, chunks=3, interval_ms=0)
        chunks = int(plan.light_seconds * CHUNKS_PER_S)
        await self._alternate(
            "light", plan.light_rounds, streams=LIGHT_STREAMS, chunks=chunks, interval_ms=1_000 / CHUNKS_PER_S
        )
        await self._alternate("burst", plan.bursts, gap_s=0.1, streams=STREAMS, chunks=1, interval_ms=0, fresh=True)
        chunks = int(plan.full_seconds * CHUNKS_PER_S)
        del self._ports["relayed"]
        await self._alternate("full", 1, streams=STREAMS, chunks=chunks, interval_ms=1_000 / CHUNKS_PER_S)

    async def _alternate(self, part: str, rounds: int, *, gap_s: float = 0.0, **command: Any) -> None:
        for number in range(rounds):
            for way, port in self._ports.items():
                await anyio.sleep(gap_s)
                for stream in await self._client.ask(port=port, **command):
                    self.streams.append({"part": part, "way": way, "round": number, **stream})

    def ttft_ms(self, part: str, way: str) -> list[float]:
        return [stream["ttft_ms"] for stream in self._of(part, way)]

    def transit_ms(self, part: str, way: str) -> list[float]:
        """Of all chunks but each stream's first, which waits for the response's head."""
        return [transit for stream in self._of(part, way) for transit in stream["transit_ms"][1:]]

    def _of(self, part: str, way: str) -> Iterator[dict[str, Any]]:
        return (stream for stream in self.streams if stream["part"] == part and stream["way"] == way)


def _added(of: Callable[[str, str], list[float]], part: str, way: str = "proxied") -> float:
    return round(median(of(part, way)) - median(of(part, "direct")), 4)


def _quietest(measured: _Measured, part: str, what: str) -> float:
    """Return the least that was added in any round: what a neighbour on the machine costs only adds."""
    rounds: dict[tuple[int, str], list[float]] = {}
    for stream in measured.streams:
        if stream["part"] == part:
            values = stream[what][1:] if what == "transit_ms" else [stream[what]]
            rounds.setdefault((stream["round"], stream["way"]), []).extend(values)
    middle = {key: median(values) for key, values in rounds.items()}
    return round(
        min(middle[number, "proxied"] - middle[number, "direct"] for number, way in middle if way == "direct"), 4
    )


def _p99(values: Sequence[float]) -> float:
    return round(percentile(values, 99), 3)


def _result(measured: _Measured, told: Mapping[str, Any]) -> BenchResult:
    ttft, transit = measured.ttft_ms, measured.transit_ms
    summary = {
        "ttft_added_ms_p50": _added(ttft, "single"),
        "chunk_added_ms_p50": _added(transit, "light"),
        "streams": STREAMS,
        "chunks_per_s_each": CHUNKS_PER_S,
        "behind_ms_p99": _p99(transit("full", "proxied")),
        "burst100_ttft_added_ms_p50": _added(ttft, "burst"),
    }
    quietest = (_quietest(measured, "light", "transit_ms"), _quietest(measured, "burst", "ttft_ms"))
    floor = (_added(ttft, "single", "relayed"), _added(transit, "light", "relayed"), _added(ttft, "burst", "relayed"))
    notes = (
        "a relay of bare bytes adds {} ms to the first token, {} ms per chunk, {} ms in a burst".format(*floor),
        "in the quietest round the proxy adds {} ms per chunk, {} ms in a burst".format(*quietest),
        f"{os.cpu_count()} cores for three processes",
        f"at full load direct chunks are {_p99(transit('full', 'direct'))} ms behind at p99",
        f"read: {told['read']} generations, {told['unread']} unread, {told['events']} events through the router",
        f"reading at most {told['parse_lag_max_ms']:.1f} ms behind; the proxy used {told['cpu_s']:.1f} CPU-s",
    )
    return BenchResult(summary=summary, samples=measured.streams, notes=notes)
