"""Runs the whole demo: learn, then every mode at every pace, side by side in one run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.bench.demo.cells import CELLS, CellResult, Pace, open_model, run_cell
from headstart.bench.demo.kill import Killed, kill_in_the_middle
from headstart.bench.demo.learning import ensure_learned
from headstart.bench.demo.report import cell_samples, cell_summary, ratios
from headstart.bench.demo.world import make_world
from headstart.bench.isolation import best_backend_name
from headstart.bench.result import BenchResult

__all__ = ["FULL", "QUICK", "Size", "Watcher", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is run.

    Attributes:
        sessions: In each cell.
        paces_s: Seconds per token; every cell is run at each.
        gap_s: From the beginning of one session to that of the next.
    """

    sessions: int
    paces_s: tuple[float, ...]
    gap_s: float


QUICK = Size(sessions=2, paces_s=(0.020,), gap_s=1.0)
FULL = Size(sessions=10, paces_s=(0.005, 0.020, 0.050), gap_s=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watcher:
    """Who is told what, while it goes on.

    Attributes:
        progress: What is going on, for people.
        on_cell: Each cell, when it is measured.
        on_killed: What became of a killed service's processes; None leaves that part out.
    """

    progress: Callable[[str], None] = lambda _: None
    on_cell: Callable[[CellResult], None] = lambda _: None
    on_killed: Callable[[Killed], None] | None = None


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
    scratch.mkdir(parents=True)
    recordings = world.sessions[: size.sessions]
    results: dict[float, list[CellResult]] = {}
    for tpot_s in size.paces_s:
        async with open_model(world.sessions_file, tpot_s=tpot_s) as model_url:
            pace = Pace(model_url=model_url, tpot_s=tpot_s, gap_s=size.gap_s, scratch=scratch)
            for cell in CELLS:
                watcher.progress(f"{len(recordings)} sessions at {tpot_s * 1000:.0f} ms per token, {cell.name}")
                result = await run_cell(world, cell, pace, learned=learned, recordings=recordings, backend=backend)
                results.setdefault(tpot_s, []).append(result)
                watcher.on_cell(result)
    if watcher.on_killed is not None:
        watcher.progress("two sessions, and a kill -9 of the service under them")
        async with open_model(world.sessions_file, tpot_s=0.020) as model_url:
            copy = scratch / "killed"
            shutil.copytree(learned, copy)
            pace = Pace(model_url=model_url, tpot_s=0.020, gap_s=size.gap_s, scratch=scratch)
            watcher.on_killed(await kill_in_the_middle(world, pace, learned_copy=copy, backend=backend))
    return _result(results)


def _result(results: dict[float, list[CellResult]]) -> BenchResult:
    paces = [_pace_summary(tpot_s, cells) for tpot_s, cells in results.items()]
    main = next(pace for pace in paces if pace["tpot_ms"] == 20.0)
    every = [sample for cells in results.values() for cell in cells for sample in cell_samples(cell)]
    return BenchResult(summary={**main, "paces": paces}, samples=every)


def _pace_summary(tpot_s: float, cells: Sequence[CellResult]) -> dict[str, Any]:
    modes = {cell.cell.name: cell_summary(cell) for cell in cells}
    return {"tpot_ms": tpot_s * 1000, "modes": modes, "ratios": ratios(modes)}
