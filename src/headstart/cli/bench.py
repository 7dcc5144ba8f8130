"""`headstart bench …`: measure, keep every sample, print one summary."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from headstart.cli.terminal import console, print_json, say

if TYPE_CHECKING:
    from headstart.bench.result import BenchResult

__all__ = ["app"]

app = typer.Typer(help="Measure. Raw samples go to a new folder under runs/.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


QuickOption = Annotated[bool, typer.Option("--quick", help="Under 50 s once set up.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where run folders go.")]
_RUNS = Path("runs")


@app.command("demo")
def bench_demo(  # noqa: PLR0913 (a command's options)
    *,
    quick: QuickOption = False,
    json: JsonOption = False,
    runs: RunsOption = _RUNS,
    sessions: Annotated[int | None, typer.Option(min=1, max=10, help="Sessions in each mode.")] = None,
    gap_s: Annotated[
        float | None, typer.Option("--gap", min=0, help="Seconds between the sessions' beginnings.")
    ] = None,
    tpot_ms: Annotated[
        list[float] | None, typer.Option("--tpot", min=0, help="Milliseconds per token; may be given several times.")
    ] = None,
    tour: Annotated[
        bool,
        typer.Option(
            "--tour", help="As short as --quick at three paces, with waterfalls, a wrong guess and a kill -9."
        ),
    ] = False,
) -> None:
    """Real sessions over real servers, in every pool mode."""
    from dataclasses import replace

    import anyio

    from headstart.bench.demo import run as demo
    from headstart.bench.result import save_run
    from headstart.cli.storyteller import Storyteller

    folder = _run_folder(runs, "demo")
    size = demo.TOUR if tour else demo.QUICK if quick else demo.FULL
    size = replace(
        size,
        sessions=sessions or size.sessions,
        gap_s=size.gap_s if gap_s is None else gap_s,
        tpots_s=tuple(one / 1000 for one in tpot_ms) if tpot_ms else size.tpots_s,
    )
    storyteller = Storyteller(show=tour and not json)
    watcher = demo.Watcher(
        progress=say, on_cell=storyteller.cell, on_finale=storyteller.finale if storyteller.shows else None
    )
    work = folder / "work"
    result = anyio.run(lambda: demo.run(size, scratch=work, watcher=watcher))
    shutil.rmtree(work)  # states and logs; kept where a run has failed, for whoever looks for the cause
    save_run(result, folder)
    if json:
        print_json(result.summary)
    else:
        storyteller.tables(result.summary)
    _notes(result, folder)


@app.command("zygote")
def bench_zygote(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """Server start to tools/list, cold and forked.

    Forked is from a preloaded process.
    """
    import anyio

    from headstart.bench import zygote

    _finish(anyio.run(lambda: zygote.run(quick=quick, progress=say)), _run_folder(runs, "zygote"), json=json)


@app.command("start")
def bench_start(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """Sandbox creation to the end of its first command.

    Back to back and with pauses.
    """
    import anyio

    from headstart.bench import start

    _finish(anyio.run(lambda: start.run(quick=quick)), _run_folder(runs, "start"), json=json)


@app.command("sandbox")
def bench_sandbox(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """What a sandbox costs its user: creating it, commands, output."""
    import anyio

    from headstart.bench import sandbox

    _finish(anyio.run(lambda: sandbox.run(quick=quick)), _run_folder(runs, "sandbox"), json=json)


@app.command("proxy")
def bench_proxy(*, quick: QuickOption = False, json: JsonOption = False, runs: RunsOption = _RUNS) -> None:
    """What the proxy adds to a stream, and the gateway to a call."""
    import anyio

    from headstart.bench import gateway, proxy
    from headstart.bench.result import BenchResult

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
    from headstart.bench import routing

    _finish(routing.run(quick=quick), _run_folder(runs, "routing"), json=json)


def _run_folder(runs: Path, name: str) -> Path:
    return runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"


def _finish(result: BenchResult, folder: Path, *, json: bool) -> None:
    from headstart.bench.result import save_run

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
