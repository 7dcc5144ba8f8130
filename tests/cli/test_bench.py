"""`headstart bench`: one JSON object on stdout, everything else beside it, and the samples kept."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from headstart.bench.demo import run as demo
from headstart.bench.result import BenchResult
from headstart.cli.bench import app

CELL = {
    "session_s_median": 1.0,
    "session_s_max": 1.0,
    "provisioning_s_mean": 0.1,
    "provisioning_s_max": 0.1,
    "provisioning_share": 0.1,
    "cold_starts": 0,
    "wasted_s": 0.0,
    "cpu_s": 1.0,
    "peak_memory_mb": 10.0,
    "sessions": 2,
}
PACE = {"tpot_ms": 20.0, "modes": {"eager": CELL}, "ratios": {"prediction_alone": 5.0}}
WHOLE_RUN = {"sessions_per_mode": 2, "cpu_s": {"eager": 1.0}, "cpu_vs_on_demand": 0.5}
SUMMARY = {**PACE, "paces": [PACE], "whole_run": WHOLE_RUN}


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[demo.Size]:
    """A demo that does nothing but what every demo does to its folder; what it was asked for."""
    asked: list[demo.Size] = []

    async def run(size: demo.Size, *, scratch: Path, watcher: demo.Watcher) -> BenchResult:
        asked.append(size)
        await anyio.Path(scratch).mkdir(parents=True)
        await anyio.Path(scratch / "eager.log").write_text("a log")
        watcher.progress("running")
        return BenchResult(summary=SUMMARY, samples=[{"session": "a"}], notes=("limited by nothing",))

    monkeypatch.setattr(demo, "run", run)
    return asked


def test_a_demo_prints_one_object_and_keeps_its_samples_without_its_working_files(
    tmp_path: Path, sizes: list[demo.Size]
) -> None:
    done = CliRunner().invoke(app, ["demo", "--quick", "--json", "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == SUMMARY
    assert done.stderr.startswith("running\nnote: limited by nothing\nsamples: ")
    [folder] = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["samples.jsonl", "summary.json"]
    assert sizes == [demo.QUICK]


@pytest.mark.parametrize(
    ("options", "size"), [([], demo.FULL), (["--quick"], demo.QUICK), (["--tour"], demo.TOUR)], ids=str
)
def test_a_demo_comes_in_three_sizes_and_prints_a_table(
    options: list[str], size: demo.Size, tmp_path: Path, sizes: list[demo.Size]
) -> None:
    done = CliRunner().invoke(app, ["demo", *options, "--runs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "2 sessions in each mode, 20 ms per token" in done.stdout
    assert "prediction alone: 5.00" in done.stdout
    assert sizes == [size]
