"""`headstart bench`: one JSON object on stdout, everything else beside it, and the samples kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from typer.testing import CliRunner

from headstart.bench import gateway, proxy, start, zygote
from headstart.bench.demo import run as demo
from headstart.bench.result import BenchResult
from headstart.bench.servers import InstalledServer, ServerSpec
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
SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        answer = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "n", "version": "1"}}
        answer = answer if asked["method"] == "initialize" else {"tools": []}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""


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


def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let one small server be all that is installed, where everybody may read it: not all file systems can map ids."""
    folder = tmp_path / "server"
    folder.mkdir(mode=0o755)
    program = folder / "server.py"
    program.write_text(SERVER)
    server = InstalledServer(
        name="small",
        kind="pip",
        command=sys.executable,
        args=(str(program),),
        env={},
        prefix=folder,
        data=folder,
        light=True,
    )

    async def ensure_installed(names: object, **_: object) -> dict[str, InstalledServer]:
        return {"small": server}

    spec = ServerSpec(name="small", kind="pip", pins=(), command="", light=True)
    monkeypatch.setattr(zygote, "load_specs", lambda: {"small": spec})
    monkeypatch.setattr(zygote, "ensure_installed", ensure_installed)
    monkeypatch.setattr(zygote, "cache_dir", lambda: folder)


def without_pauses(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    monkeypatch.setattr(start, "_QUIET_S", 0.01)


def only_quick(plan: object, *, quick: bool) -> object:
    assert quick
    return plan


async def take_turns(plan: gateway.Plan) -> dict[str, list[float]]:
    """Stand in for the calls of `tests/bench/test_gateway.py`, where five processes import for a while."""
    assert plan == gateway.Plan.of(quick=True)
    ways = ("direct", *gateway._FRONTS)  # pyright: ignore[reportPrivateUsage]
    return {way: [float(number)] * 5 for number, way in enumerate(ways, 1)}


def few_streams_and_calls(monkeypatch: pytest.MonkeyPatch, _: Path) -> None:
    """Measure fewer streams than --quick asks for, and no calls."""
    streams = proxy.Plan(single_rounds=3, light_seconds=0.1, light_rounds=1, full_seconds=0.1, bursts=1)
    monkeypatch.setattr(proxy.Plan, "of", partial(only_quick, streams))
    monkeypatch.setattr(gateway, "_take_turns", take_turns)


def as_it_is(_monkeypatch: pytest.MonkeyPatch, _folder: Path) -> None:
    """Measure all of it: it is short."""


SPREAD = {"p50": float, "p99": float, "n": int}
PROXY = {
    "ttft_added_ms_p50": float,
    "chunk_added_ms_p50": float,
    "streams": int,
    "chunks_per_s_each": int,
    "behind_ms_p99": float,
    "burst100_ttft_added_ms_p50": float,
    "call_added_ms_p50": float,
    "fastmcp_call_added_ms_p50": float,
}
ZYGOTE = {"servers": {"small": {"cold_ms_p50": float, "zygote_ms_p50": float, "n": int}}}
START = {"back_to_back_ms": SPREAD, "spaced_ms": SPREAD}
ROUTING = {"keyword_us_per_delta_p50": float, "prefetch_us_per_step_p50": float}


def told(summary: Any, wanted: Any) -> Any:
    """What there is of the wanted keys, with the types of their values."""
    if isinstance(wanted, type):
        return cast("type[object]", type(summary))
    return {key: told(summary[key], inner) for key, inner in wanted.items() if key in summary}


@pytest.mark.parametrize(
    ("bench", "small", "wanted", "quick"),
    [
        ("zygote", installed, ZYGOTE, ("form", "zygote", zygote.QUICK_ZYGOTE_ROUNDS)),
        ("start", without_pauses, START, ("series", "spaced", 15)),
        ("proxy", few_streams_and_calls, PROXY, ("way", "fastmcp", 5)),
        ("routing", as_it_is, ROUTING, ("kind", "step", 4_000)),
    ],
    ids=["zygote", "start", "proxy", "routing"],
)
def test_a_quick_bench_prints_one_json_object_with_the_promised_keys_and_nothing_else(
    bench: str,
    small: Callable[[pytest.MonkeyPatch, Path], None],
    wanted: Mapping[str, Any],
    quick: tuple[str, str, int],
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small(monkeypatch, tmp_path)
    runs = tmp_path / "runs"
    done = CliRunner().invoke(app, [bench, "--json", "--quick", "--runs", str(runs)])
    assert done.exit_code == 0, done.output
    assert told(json.loads(done.stdout), wanted) == wanted
    assert capfd.readouterr().out == "", "a process of the bench wrote to our stdout"
    [folder] = runs.iterdir()
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    field, value, count = quick
    assert sum(sample.get(field) == value for sample in samples) == count
