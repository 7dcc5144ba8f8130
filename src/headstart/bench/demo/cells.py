"""The cells of the demo's table: a pool mode has one service, and each pace runs on it.

What a mode prepares once (its zygotes) is made once and counted in each of its cells. A
pace begins with no sandbox of another one standing, and the service is told not to learn,
so that the second pace knows no more than the first did.

In reserved mode the sessions are opened before they begin to talk, and all that was
started for them is waited for: every configured server is warm for every session. The
alternative, spare sets for sessions to come, refills a set while it is used, which would
charge the mode with twice the memory that its sessions need.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from headstart.bench.demo.agent import SessionRecord
from headstart.bench.demo.meter import TreeMeter
from headstart.bench.demo.models import MAIN_TPOT_S, Pace
from headstart.bench.demo.service import Served, ServiceConfig, serving, session_name
from headstart.bench.demo.world import World
from headstart.bench.replay_model import Recording

__all__ = ["CELLS", "Cell", "CellResult", "Stage", "WrongGuess", "run_modes", "unused_cpu_s", "wrong_guesses"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to run the pool."""

    name: str
    mode: str
    zygotes: bool


CELLS = (
    Cell("eager", "eager", zygotes=False),
    Cell("on-demand", "on-demand", zygotes=False),
    Cell("on-demand+zygote", "on-demand", zygotes=True),
    Cell("predictive", "predictive", zygotes=False),
    Cell("predictive+zygote", "predictive", zygotes=True),
    Cell("reserved", "reserved", zygotes=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What all cells of a run have in common.

    Attributes:
        recordings: The conversations, a session each.
        aside: How many of them, the first ones, are played at other paces than the main one, which
            plays the rest; 0 plays all at every pace.
        learned: The state directory that each service begins with a copy of.
        scratch: Where they work.
        gap_s: From the beginning of one session to that of the next.
    """

    world: World
    recordings: tuple[Recording, ...]
    paces: tuple[Pace, ...]
    backend: str
    learned: Path
    scratch: Path
    gap_s: float
    aside: int

    def played_at(self, pace: Pace) -> tuple[Recording, ...]:
        """Return the conversations of each cell at this pace."""
        is_main = pace.tpot_s == MAIN_TPOT_S or len(self.paces) == 1
        chosen = self.recordings[self.aside :] if is_main else self.recordings[: self.aside]
        return chosen or self.recordings


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongGuess:
    """A sandbox that was started on a prediction and that no call came for.

    Attributes:
        cpu_s / byte_s: What it had cost when its time was up, or when the sessions were over.
    """

    resource: str
    session: str
    predictor: str
    because: str
    cpu_s: float
    byte_s: float


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What one cell measured.

    Attributes:
        traces: Each session's trace, as the service tells it.
        wasted_s: CPU-seconds of sandboxes that served no call, gone or still there.
        prepared_cpu_s: Burnt below the service (sandboxes, zygotes, the spawner) by what the mode
            prepared before its first pace.
        cpu_s: That, and what was burnt there since the pace before.
        peak_bytes: PSS of the same while the sessions ran, at its highest sample.
        phases_s: Where the wall time went, for those who wait for the demo.
    """

    cell: Cell
    tpot_s: float
    sessions: list[SessionRecord] = field(default_factory=list[SessionRecord])
    traces: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    wasted_s: float = 0.0
    prepared_cpu_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    wrong_guesses: list[WrongGuess] = field(default_factory=list[WrongGuess])
    phases_s: dict[str, float] = field(default_factory=dict[str, float])


async def run_modes(
    stage: Stage,
    cells: Sequence[Cell],
    *,
    on_cell: Callable[[CellResult], None],
    afterwards: Callable[[Mapping[str, Served]], Awaitable[None]],
) -> list[CellResult]:
    """Run all conversations at every pace, in one mode after the other, and take the numbers.

    All that the modes prepare is prepared before the first of them is measured, so that
    it uses every core; while one is measured, the services of the others stand idle.

    Args:
        stage: What they have in common.
        cells: The modes, a service each.
        on_cell: Told of each cell when it is measured.
        afterwards: Called once, when all numbers are taken, with the services by their cells' names.
    """
    results: list[CellResult] = []
    began_s = time.monotonic()
    async with serving(*(_config(stage, cell) for cell in cells)) as services:
        prepared = await _prepare(services)
        prepared_s = time.monotonic() - began_s
        for cell, served, meter in zip(cells, services, prepared, strict=True):
            prepared_cpu_s = meter.cpu_s
            async with meter.sampling():
                for pace in stage.paces:
                    result = CellResult(cell=cell, tpot_s=pace.tpot_s, phases_s={"prepare": prepared_s})
                    await _run_pace(stage, served, pace, meter, result)
                    result.prepared_cpu_s = prepared_cpu_s
                    result.cpu_s += prepared_cpu_s
                    results.append(result)
                    on_cell(result)
        await afterwards({cell.name: served for cell, served in zip(cells, services, strict=True)})
    return results


def _config(stage: Stage, cell: Cell) -> ServiceConfig:
    state_dir = stage.scratch / cell.name
    shutil.copytree(stage.learned, state_dir)
    return ServiceConfig(
        state_dir=state_dir,
        mcp_file=stage.world.mcp_file,
        paces=stage.paces,
        backend=stage.backend,
        mode=cell.mode,
        zygotes=cell.zygotes,
    )


async def _prepare(services: Sequence[Served]) -> list[TreeMeter]:
    """Wait for all zygotes; what they burn is seen by the meters, one for each service."""
    meters = [TreeMeter(served.process.pid) for served in services]
    async with AsyncExitStack() as stack:
        for meter in meters:
            await stack.enter_async_context(meter.sampling())
        for served in services:
            await served.until_zygotes_stand()
    return meters


async def _run_pace(stage: Stage, served: Served, pace: Pace, meter: TreeMeter, result: CellResult) -> None:
    names = [session_name(recording, pace) for recording in stage.played_at(pace)]
    await meter.sample()
    burnt_before_s = meter.cpu_s
    unused_before_s = unused_cpu_s((await served.ask("/headstart/status"))["pool"])
    if result.cell.mode == "reserved":
        with _timed(result, "reserve"):
            await _reserve(served, names, servers=len(stage.world.servers))
    meter.forget_peak()
    with _timed(result, "sessions"):
        await _run_sessions(stage, served, pace, result)
    with _timed(result, "numbers"):
        await meter.sample()
        result.peak_bytes = meter.peak_bytes
        result.cpu_s = meter.cpu_s - burnt_before_s
        pool = (await served.ask("/headstart/status"))["pool"]
        result.wasted_s = unused_cpu_s(pool) - unused_before_s
        result.traces = [await served.ask(f"/headstart/trace/{name}") for name in names]
        result.wrong_guesses = wrong_guesses(result.traces, pool)
    with _timed(result, "end"):
        for name in names:
            await served.end_session(name)
        await served.until_sandboxes(0)


@contextmanager
def _timed(result: CellResult, phase: str) -> Generator[None]:
    began_s = time.monotonic()
    yield
    result.phases_s[phase] = time.monotonic() - began_s


async def _reserve(served: Served, names: Sequence[str], *, servers: int) -> None:
    for name in names:
        await served.open_session(name)
    await served.until_sandboxes(len(names) * servers)


def unused_cpu_s(pool: Mapping[str, Any]) -> float:
    """Return the CPU-seconds of all sandboxes that served no call, gone or still there."""
    live = sum(float(sandbox["cpu_s"]) for sandbox in pool["sandboxes"] if sandbox["served"] == 0)
    return float(pool["ended_unused_cpu_s"]) + live


def wrong_guesses(traces: Iterable[Mapping[str, Any]], pool: Mapping[str, Any]) -> list[WrongGuess]:
    """Return what was started on a prediction in vain: what sessions gave up, and what is left when they are over."""
    return [*_settled(traces), *_standing(pool)]


def _settled(traces: Iterable[Mapping[str, Any]]) -> Iterator[WrongGuess]:
    """What was given up while its session went on."""
    for trace in traces:
        for one in trace["preparations"]:
            if one["kind"] != "keep" and not one["won"] and one["started_s"] is not None:
                yield WrongGuess(
                    resource=one["resource"],
                    session=trace["session"],
                    predictor=one["predictor"],
                    because=one["because"],
                    cpu_s=one["wasted_cpu_s"],
                    byte_s=one["wasted_byte_s"],
                )


def _standing(pool: Mapping[str, Any]) -> Iterator[WrongGuess]:
    """What still stands when all sessions are over."""
    for sandbox in pool["sandboxes"]:
        cause = sandbox["cause"]
        if sandbox["served"] == 0 and cause["predictor"] is not None:
            yield WrongGuess(
                resource=sandbox["resource"],
                session=sandbox["session"] or "nobody yet",
                predictor=cause["predictor"],
                because=cause["because"],
                cpu_s=sandbox["cpu_s"],
                byte_s=sandbox["memory_bytes"] * sandbox["age_s"],
            )


async def _run_sessions(stage: Stage, served: Served, pace: Pace, result: CellResult) -> None:
    async def one(recording: Recording, delay_s: float) -> None:
        await anyio.sleep(delay_s)
        result.sessions.append(await served.converse(recording, pace))

    async with anyio.create_task_group() as tasks:
        for number, recording in enumerate(stage.played_at(pace)):
            tasks.start_soon(one, recording, number * stage.gap_s)
