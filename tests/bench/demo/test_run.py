# pyright: reportPrivateUsage=false
# (a run takes minutes and real servers; what it makes of its cells is all that is tested here)
"""What `headstart bench demo` prints as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart.bench.demo.agent import CallRecord, SessionRecord
from headstart.bench.demo.cells import CELLS, CellResult, Stage
from headstart.bench.demo.models import Pace
from headstart.bench.demo.run import _result
from headstart.bench.demo.world import World
from headstart.bench.replay_model import RecordedStep, Recording
from headstart.bench.result import BenchResult

HERE = Path(__file__).parent
RECORDING = Recording(session="review", user="u", steps=(RecordedStep(text="four"),))
MODES = ["eager", "on-demand", "on-demand+zygote", "predictive", "predictive+zygote", "reserved"]
NUMBERS = {
    "provisioning_s_mean",
    "provisioning_s_max",
    "session_s_median",
    "session_s_max",
    "provisioning_share",
    "cold_starts",
    "wasted_s",
    "cpu_s",
    "peak_memory_mb",
    "sessions",
}


def finished(*tpots_s: float, said: str = "") -> BenchResult:
    """A run at these paces in which every session waited 0.5 s of its 4 s; `said`: what a call failed with."""
    world = World(
        folder=HERE,
        mcp_file=HERE,
        sessions_file=HERE,
        training_file=HERE,
        sessions=(RECORDING,),
        training=(RECORDING,),
        servers=("git", "time"),
    )
    stage = Stage(
        world=world,
        recordings=(RECORDING,),
        paces=tuple(Pace(tpot_s=each, model_url="http://127.0.0.1:1/v1") for each in tpots_s),
        backend="process",
        learned=HERE,
        scratch=HERE,
        gap_s=0.0,
        aside=1,
    )
    call = CallRecord(tool="git__git_log", started_s=1.0, ended_s=1.5, is_error=bool(said), said=said)
    trace: dict[str, Any] = {"session": "review", "steps": [], "preparations": []}
    trace["summary"] = {"waited_s": 0.5, "cold_calls": 1, "calls": 1}
    results = [
        CellResult(
            cell=cell,
            tpot_s=each,
            sessions=[SessionRecord(session="review", started_s=1.0, ended_s=5.0, calls=[call])],
            traces=[trace],
            cpu_s=each * 100.0,
            peak_bytes=100_000_000,
        )
        for cell in CELLS
        for each in tpots_s
    ]
    return _result(results, world, stage)


def test_every_mode_has_every_number_at_the_main_pace_and_at_the_others() -> None:
    summary = finished(0.005, 0.020, 0.050).summary
    assert summary["tpot_ms"] == 20.0
    assert [pace["tpot_ms"] for pace in summary["paces"]] == [5.0, 20.0, 50.0]
    for told in (summary, *summary["paces"]):
        assert list(told["modes"]) == MODES
        for numbers in told["modes"].values():
            assert numbers.keys() >= NUMBERS
            assert numbers["cpu_s"] == pytest.approx(told["tpot_ms"] / 10.0), "each pace has its own cells"
            assert (numbers["provisioning_s_mean"], numbers["provisioning_share"], numbers["sessions"]) == (
                0.5,
                0.125,
                1,
            )


def test_a_run_at_another_pace_alone_is_told_by_that() -> None:
    summary = finished(0.040).summary
    assert (summary["tpot_ms"], list(summary["modes"])) == (40.0, MODES)


@pytest.mark.parametrize("said", ["", "no such branch"])
def test_a_call_that_failed_is_noted_once_and_no_other(said: str) -> None:
    result = finished(0.020, said=said)
    assert [note for note in result.notes if "failed" in note] == ([f"git__git_log failed: {said}"] if said else [])
    assert len(list(result.samples)) == len(MODES)
