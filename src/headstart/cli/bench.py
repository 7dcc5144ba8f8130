"""`headstart bench …`: measure, keep every sample, print one summary."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, cast

import anyio
import typer

from headstart.bench import gateway, proxy, routing, start, zygote
from headstart.bench.demo import run as demo
from headstart.bench.result import BenchResult, save_run
from headstart.cli.storyteller import Storyteller
from headstart.cli.terminal import console, print_json, say

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Measure. Raw samples go to a new folder under runs/.")

QuickOption = Annotated[bool, typer.Option("--quick", help="Under 50 s once set up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where run folders go.")]
_RUNS = Path("runs")


@app.command("demo")
def bench_demo(
    *,
    quick: QuickOption = False,
    json: JsonOption = False,
    runs: RunsOption = _RUNS,
    sessions: Annotated[int | None, typer.Option(min=1, max=10, help="Sessions in each mode.")] = None,
    gap_s: Annotated[
        float | None, typer.Option("--gap", min=0, help="Seconds between the sessions' beginnings.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Waterfalls, a wrong guess and a kill -9, too.")] = False,
) -> None:
    """Real sessions over real servers, in every pool mode."""
    folder = _run_folder(runs, "demo")
    size = demo.QUICK if quick else demo.FULL
    size = replace(size, sessions=sessions or size.sessions, gap_s=size.gap_s if gap_s is None else gap_s)
    storyteller = Storyteller(show=show and not json)
    watcher = demo.Watcher(
        progress=say, on_cell=storyteller.cell, on_killed=storyteller.killed if storyteller.shows else None
    )
    result = anyio.run(lambda: demo.run(size, scratch=folder / "work", watcher=watcher))
    save_run(result, folder)
    if json:
        print_json(result.summary)
    else:
        storyteller.tables(result.summary)
    _notes(result, folder)


@app.command("zygote")
def bench_zygote(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """Server start to tools/list, cold and forked from a preloaded process."""
    _finish(anyio.run(lambda: zygote.run(quick=quick, progress=say)), _run_folder(runs, "zygote"), json=json)


@app.command("start")
def bench_start(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """Sandbox creation to the end of its first command, back to back and with pauses."""
    _finish(anyio.run(lambda: start.run(quick=quick)), _run_folder(runs, "start"), json=json)


@app.command("proxy")
def bench_proxy(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """What the proxy adds to a stream, and the gateway to a call."""

    async def both() -> BenchResult:
        streams = await proxy.run(quick=quick)
        calls = await gateway.run(quick=quick)
        return BenchResult(
            summary={**streams.summary, **calls.summary},
            samples=[*streams.samples, *calls.samples],
            notes=(*streams.notes, *calls.notes),
        )

    _finish(anyio.run(both), _run_folder(runs, "proxy"), json=json)


@app.command("routing")
def bench_routing(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """What deciding costs: keywords per delta, transitions per step."""
    _finish(routing.run(quick=quick), _run_folder(runs, "routing"), json=json)


def _run_folder(runs: Path, name: str) -> Path:
    return runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"


def _finish(result: BenchResult, folder: Path, *, json: bool) -> None:
    save_run(result, folder)
    if json:
        print_json(result.summary)
    else:
        _print_summary(result.summary)
    _notes(result, folder)


def _notes(result: BenchResult, folder: Path) -> None:
    for note in result.notes:
        say(f"note: {note}")
    say(f"samples: {folder}")


def _print_summary(summary: Mapping[str, Any], indent: str = "") -> None:
    out = console()
    for name, value in summary.items():
        if isinstance(value, Mapping):
            out.print(f"{indent}{name}:")
            _print_summary(cast("Mapping[str, Any]", value), indent + "  ")
        else:
            shown = f"{value:.3f}" if isinstance(value, float) else str(value)
            out.print(f"{indent}{name}: {shown}")
