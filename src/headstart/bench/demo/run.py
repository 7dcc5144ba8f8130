"""Runs the whole demo: learn, then every mode at every pace, side by side in one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headstart.bench.demo.cells import CELLS, CellResult, Stage, run_modes
from headstart.bench.demo.finale import ITS_MODE, Finale, play_finale
from headstart.bench.demo.learning import ensure_learned
from headstart.bench.demo.limits import limits, limits_told
from headstart.bench.demo.models import MAIN_TPOT_S, open_models
from headstart.bench.demo.report import cell_samples, cell_summary, conversations_summary, ratios, whole_run
from headstart.bench.demo.service import Served
from headstart.bench.demo.world import World, make_world, servers_called
from headstart.bench.isolation import best_backend_name
from headstart.bench.result import BenchResult

__all__ = ["FULL", "QUICK", "TOUR", "Size", "Watcher", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run.

    Attributes:
        sessions: In each cell.
        sessions_aside: How many of them, the first ones, are played at other paces than the main one, which
            plays the rest; 0 plays all at every pace.
        skipped: Recordings before the first that is played.
        tpots_s: Seconds per token; every cell is run at each.
        gap_s: From the beginning of one session to that of the next.
        servers: Those that are configured, beside all that the sessions call; empty: every one.
        modes_at_once: How many modes prepare side by side. Pages of files are shared by all who map
            them, so that a service that stands idle makes the memory of another look smaller by
            some per cent; a run that has the time does one after the other.
    """

    sessions: int
    tpots_s: tuple[float, ...]
    gap_s: float
    servers: tuple[str, ...] = ()
    modes_at_once: int = 1
    skipped: int = 0
    sessions_aside: int = 0


_EIGHT = ("sympy", "powerpoint", "pdf", "git", "sqlite", "time", "files", "memory")
"""What a tour has: some that take long to start, some light ones, and two that run on Node."""

_SHORT = 3
"""Recordings that only the runs in a hurry play: two on light servers, and one that calls heavy ones."""

QUICK = Size(sessions=2, tpots_s=(MAIN_TPOT_S,), gap_s=0.25, servers=("sqlite",), modes_at_once=len(CELLS))
TOUR = replace(QUICK, tpots_s=(0.005, MAIN_TPOT_S, 0.050), servers=_EIGHT, skipped=1, sessions_aside=1)
FULL = Size(sessions=10, tpots_s=(0.005, MAIN_TPOT_S, 0.050), gap_s=2.0, skipped=_SHORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told what, while it goes on.

    Attributes:
        progress: What is going on, for people.
        on_cell: Each cell, when it is measured.
        on_finale: What a wrong guess cost, and what became of a killed service's processes; None leaves them out.
    """

    progress: Callable[[str], None] = lambda _: None
    on_cell: Callable[[CellResult], None] = lambda _: None
    on_finale: Callable[[Finale], None] | None = None


async def run(size: Size, *, scratch: Path, watcher: Watcher) -> BenchResult:
    """Run all cells.

    Args:
        size: How much.
        scratch: A folder for what is made on the way; it must not exist.
        watcher: Who is told.

    Raises:
        HeadstartError: A server could not be installed, or the service did not start.
    """
    world = await make_world(progress=watcher.progress)
    backend = await best_backend_name(watcher.progress)
    learned = await ensure_learned(world, backend=backend, progress=watcher.progress)
    recordings = world.sessions[size.skipped : size.skipped + size.sessions]
    if size.servers:
        world = world.only(dict.fromkeys((*size.servers, *servers_called(recordings))))
    scratch.mkdir(parents=True)
    async with open_models(world.sessions_file, size.tpots_s) as paces:
        stage = Stage(
            world=world,
            recordings=recordings,
            paces=paces,
            backend=backend,
            learned=learned,
            scratch=scratch,
            gap_s=size.gap_s,
            aside=size.sessions_aside,
        )
        results = await _run_cells(stage, watcher, at_once=size.modes_at_once)
    return _result(results, world, stage)


async def _run_cells(stage: Stage, watcher: Watcher, *, at_once: int) -> list[CellResult]:
    def measured(result: CellResult) -> None:
        took = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in result.phases_s.items())
        watcher.progress(f"  {result.cell.name}, {result.tpot_s * 1000:g} ms per token: {took}")
        watcher.on_cell(result)

    async def finale(services: Mapping[str, Served]) -> None:
        if watcher.on_finale is not None and ITS_MODE in services:
            watcher.progress("a session that changes its mind, then two, and a kill -9 of the service under them")
            watcher.on_finale(await play_finale(stage, services[ITS_MODE]))

    told = f"{len(stage.recordings)} sessions on {len(stage.world.servers)} servers"
    results: list[CellResult] = []
    for first in range(0, len(CELLS), at_once):
        cells = CELLS[first : first + at_once]
        watcher.progress(f"{told}: {', '.join(cell.name for cell in cells)}")
        results += await run_modes(stage, cells, on_cell=measured, afterwards=finale)
    return results


def _result(results: Sequence[CellResult], world: World, stage: Stage) -> BenchResult:
    paces = [_pace_summary(pace.tpot_s, results) for pace in stage.paces]
    main = next((pace for pace in paces if pace["tpot_ms"] == MAIN_TPOT_S * 1000), paces[0])
    conversations = conversations_summary(stage.recordings)
    steps, tokens = conversations["steps_per_session_median"], conversations["tokens_per_step_median"]
    notes = (
        f"{steps:g} steps per session and {tokens:g} tokens per step, at the median",
        f"learned beforehand from {len(world.training)} other conversations, and nothing while measuring",
        *(limits_told(pace["tpot_ms"], pace["limits"]) for pace in paces),
        *_failures(results),
    )
    every = [sample for result in results for sample in cell_samples(result)]
    summary = {**main, "servers": len(world.servers), "conversations": conversations, "paces": paces}
    summary["whole_run"] = whole_run(results)
    return BenchResult(summary=summary, samples=every, notes=notes)


def _pace_summary(tpot_s: float, results: Sequence[CellResult]) -> dict[str, Any]:
    cells = {result.cell.name: result for result in results if result.tpot_s == tpot_s}
    modes = {name: cell_summary(result) for name, result in cells.items()}
    found = limits(cells["on-demand"], cells["predictive"])
    return {"tpot_ms": tpot_s * 1000, "modes": modes, "ratios": ratios(modes), "limits": found}


def _failures(results: Sequence[CellResult]) -> list[str]:
    """Tell each call that a server answered with an error: none is meant to."""
    failed = {
        (call.tool, call.said)
        for result in results
        for session in result.sessions
        for call in session.calls
        if call.is_error
    }
    return [f"{tool} failed: {said.strip()[:200]}" for tool, said in sorted(failed)]
