"""From sessions and traces to the table."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from headstart.bench.demo.agent import CallRecord, SessionRecord
from headstart.bench.demo.cells import CELLS, Cell, CellResult, unused_cpu_s
from headstart.bench.demo.report import cell_samples, cell_summary, conversations_summary, ratios, table, whole_run
from headstart.bench.replay_model import RecordedCall, RecordedStep, Recording

ON_DEMAND = CELLS[1]


def session(name: str, *, seconds: float, is_error: bool = False) -> SessionRecord:
    call = CallRecord(tool="git__git_log", started_s=1.0, ended_s=1.5, is_error=is_error, said="a commit")
    return SessionRecord(session=name, started_s=10.0, ended_s=10.0 + seconds, steps=2, calls=[call])


def trace(name: str, *, waited_s: float) -> dict[str, Any]:
    summary = {"waited_s": waited_s, "cold_calls": int(waited_s > 0), "calls": 1}
    return {"session": name, "summary": summary, "steps": [], "preparations": []}


def result(cell: Cell = ON_DEMAND, *, sessions: int = 2, waited_s: float = 1.0) -> CellResult:
    names = [f"s{number}" for number in range(sessions)]
    return CellResult(
        cell=cell,
        tpot_s=0.02,
        sessions=[session(name, seconds=4.0 + number) for number, name in enumerate(names)],
        traces=[trace(name, waited_s=waited_s) for name in names],
        wasted_s=0.5,
        cpu_s=8.0,
        peak_bytes=300_000_000,
    )


def said(summaries: dict[str, Any]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table(summaries, tpot_ms=20.0))
    return captured.get()


def test_a_cell_is_summed_up_over_its_sessions() -> None:
    summary = cell_summary(result())
    assert summary == {
        "provisioning_s_mean": 1.0,
        "provisioning_s_max": 1.0,
        "session_s_median": 4.5,
        "session_s_max": 5.0,
        "provisioning_share": pytest.approx(2.0 / 9.0),
        "cold_starts": 2,
        "wasted_s": 0.5,
        "cpu_s": 8.0,
        "peak_memory_mb": 300.0,
        "sessions": 2,
        "calls": 2,
        "failed_calls": 0,
    }


def test_the_99th_percentile_is_told_only_of_a_hundred_sessions() -> None:
    few, many = cell_summary(result(sessions=99)), cell_summary(result(sessions=100))
    assert "session_s_p99" not in few
    assert many["session_s_p99"] <= many["session_s_max"]
    assert "p99" not in said({"on-demand": few})
    assert "p99" in said({"on-demand": many})


def test_the_table_says_how_many_sessions_and_how_fast_the_model_writes() -> None:
    assert said({"on-demand": cell_summary(result())}).startswith("2 sessions in each mode, 20 ms per token")


def test_every_session_is_kept_as_a_sample_with_its_calls() -> None:
    first, second = cell_samples(result())
    assert (first["session"], first["mode"], first["tpot_ms"]) == ("s0", "on-demand", 20.0)
    assert second["calls"] == [{"tool": "git__git_log", "seconds": 0.5, "is_error": False}]


def test_the_claims_are_ratios_of_cells_of_the_same_run() -> None:
    waits = {"on-demand": 6.0, "on-demand+zygote": 3.0, "predictive": 1.5, "predictive+zygote": 0.3}
    modes = {cell.name: cell_summary(result(cell, waited_s=waits.get(cell.name, 0.0))) for cell in CELLS}
    assert ratios(modes) == {
        "prediction_alone": pytest.approx(4.0),
        "prediction_with_zygotes_in_both": pytest.approx(10.0),
        "both_vs_on_demand": pytest.approx(20.0),
        "memory_vs_reserved": pytest.approx(1.0),
        "cpu_vs_on_demand": pytest.approx(1.0),
    }


def test_what_was_prepared_once_is_counted_once_over_the_whole_run() -> None:
    results = [result(cell) for cell in CELLS for _pace in range(3)]
    for each in results:
        prepared = 10.0 if each.cell.zygotes else 0.0
        each.prepared_cpu_s, each.cpu_s = prepared, prepared + (2.0 if each.cell.zygotes else 8.0)
    told = whole_run(results)
    assert (told["cpu_s"]["predictive+zygote"], told["cpu_s"]["on-demand"]) == (16.0, 24.0)
    assert (told["sessions_per_mode"], told["cpu_vs_on_demand"]) == (6, pytest.approx(16 / 24))


def test_a_wait_of_nearly_nothing_is_no_ratio_of_millions() -> None:
    modes = {
        cell.name: cell_summary(result(cell, waited_s=1e-7 if "predictive" in cell.name else 2.0)) for cell in CELLS
    }
    assert ratios(modes)["prediction_alone"] == pytest.approx(2_000.0)


def test_how_long_the_conversations_are_counts_hidden_tokens_too() -> None:
    call = RecordedCall(name="git__git_log", arguments={})
    steps = (RecordedStep(hidden_tokens=10, calls=(call,)), RecordedStep(text="abcdefgh"))
    told = conversations_summary([Recording(session="s", user="u", steps=steps)])
    assert told == {
        "sessions": 1,
        "steps_per_session_median": 2,
        "calls_per_session_median": 1,
        "tokens_per_step_median": (10 + 3 + 1 + 2) / 2,
    }


def test_what_nobody_used_is_wasted_whether_it_is_gone_or_still_there() -> None:
    standing = [{"served": 0, "cpu_s": 1.5}, {"served": 2, "cpu_s": 9.0}]
    assert unused_cpu_s({"ended_unused_cpu_s": 0.25, "sandboxes": standing}) == 1.75
