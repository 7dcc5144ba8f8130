"""What the demo says: a table over all cells, and the numbers behind it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from headstart.bench.demo.cells import CellResult
from headstart.bench.replay_model import Recording
from headstart.bench.replay_model.playback import output_tokens

__all__ = ["cell_samples", "cell_summary", "conversations_summary", "ratios", "table", "whole_run"]

_P99_NEEDS = 100
_LEAST_WAIT_S = 0.001
"""Waits below count as this much in ratios: what remains is how long a lease takes, and how many of it fit is no claim."""


def cell_summary(result: CellResult) -> dict[str, Any]:
    """One cell in numbers; seconds each unless named otherwise."""
    waited = [trace["summary"]["waited_s"] for trace in result.traces]
    lived = [session.seconds for session in result.sessions]
    summary: dict[str, Any] = {
        "provisioning_s_mean": statistics.fmean(waited),
        "provisioning_s_max": max(waited),
        "session_s_median": statistics.median(lived),
        "session_s_max": max(lived),
        "provisioning_share": sum(waited) / sum(lived),
        "cold_starts": sum(trace["summary"]["cold_calls"] for trace in result.traces),
        "wasted_s": result.wasted_s,
        "cpu_s": result.cpu_s,
        "peak_memory_mb": result.peak_bytes / 1e6,
        "sessions": len(lived),
        "calls": sum(len(session.calls) for session in result.sessions),
        "failed_calls": sum(call.is_error for session in result.sessions for call in session.calls),
    }
    if len(lived) >= _P99_NEEDS:
        summary["session_s_p99"] = statistics.quantiles(lived, n=100)[98]
    return summary


def conversations_summary(recordings: Sequence[Recording]) -> dict[str, float]:
    """How long the conversations are; a step is a generation, and hidden tokens count."""
    tokens = [output_tokens(step) for recording in recordings for step in recording.steps]
    calls = [sum(len(step.calls) for step in recording.steps) for recording in recordings]
    return {
        "sessions": len(recordings),
        "steps_per_session_median": statistics.median(len(recording.steps) for recording in recordings),
        "calls_per_session_median": statistics.median(calls),
        "tokens_per_step_median": statistics.median(tokens),
    }


def cell_samples(result: CellResult) -> Iterable[dict[str, Any]]:
    """Every session and every call of a cell, as it was lived and as it was traced."""
    where = {"mode": result.cell.name, "tpot_ms": result.tpot_s * 1000}
    traces = {trace["session"]: trace for trace in result.traces}
    for session in result.sessions:
        trace = traces[session.session]
        yield {
            **where,
            "session": session.session,
            "seconds": session.seconds,
            "model_s": session.model_s,
            "cell": {
                "phases_s": result.phases_s,
                "prepared_cpu_s": result.prepared_cpu_s,
                "cpu_s": result.cpu_s,
                "peak_bytes": result.peak_bytes,
                "wrong_guesses": [asdict(guess) for guess in result.wrong_guesses],
            },
            "summary": trace["summary"],
            "calls": [
                {"tool": call.tool, "seconds": call.ended_s - call.started_s, "is_error": call.is_error}
                for call in session.calls
            ],
            "steps": trace["steps"],
            "preparations": trace["preparations"],
        }


def ratios(modes: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The claims, as ratios of cells of one run."""

    def waits(one: str, other: str) -> float:
        return float(modes[one]["provisioning_s_mean"]) / max(float(modes[other]["provisioning_s_mean"]), _LEAST_WAIT_S)

    def share(key: str, one: str, other: str) -> float:
        return float(modes[one][key]) / float(modes[other][key])

    return {
        "prediction_alone": waits("on-demand", "predictive"),
        "prediction_with_zygotes_in_both": waits("on-demand+zygote", "predictive+zygote"),
        "both_vs_on_demand": waits("on-demand", "predictive+zygote"),
        "memory_vs_reserved": share("peak_memory_mb", "predictive+zygote", "reserved"),
        "cpu_vs_on_demand": share("cpu_s", "predictive+zygote", "on-demand"),
    }


def whole_run(results: Sequence[CellResult]) -> dict[str, Any]:
    """Sum up all paces, so that what a mode prepared once for all its sessions is counted once."""
    cpu_s: dict[str, float] = {}
    for result in results:
        mode = result.cell.name
        cpu_s.setdefault(mode, result.prepared_cpu_s)
        cpu_s[mode] += result.cpu_s - result.prepared_cpu_s
    return {
        "sessions_per_mode": sum(len(result.sessions) for result in results) / len(cpu_s),
        "cpu_s": cpu_s,
        "cpu_vs_on_demand": cpu_s["predictive+zygote"] / cpu_s["on-demand"],
    }


def table(summaries: Mapping[str, Mapping[str, Any]], *, tpot_ms: float) -> Table:
    """Lay out one pace's cells, session seconds first; the 99th percentile only where there are enough sessions."""
    sessions = max(cell["sessions"] for cell in summaries.values())
    with_p99 = all("session_s_p99" in cell for cell in summaries.values())
    title = f"{sessions} session{'s' if sessions > 1 else ''} in each mode, {tpot_ms:g} ms per token"
    shown = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    p99 = ("p99",) if with_p99 else ()
    columns = ("mode", "session s", *p99, "max", "waited s", "max", "share", "cold", "wasted", "CPU-s", "peak MB")
    for number, name in enumerate(columns):
        shown.add_column(name, justify="left" if number == 0 else "right")
    for name, cell in summaries.items():
        shown.add_row(name, *_cells(cell, with_p99=with_p99))
    return shown


def _cells(cell: Mapping[str, Any], *, with_p99: bool) -> Sequence[str]:
    return (
        f"{cell['session_s_median']:.2f}",
        *((f"{cell['session_s_p99']:.2f}",) if with_p99 else ()),
        f"{cell['session_s_max']:.2f}",
        f"{cell['provisioning_s_mean']:.3f}",
        f"{cell['provisioning_s_max']:.3f}",
        f"{cell['provisioning_share']:.1%}",
        str(cell["cold_starts"]),
        f"{cell['wasted_s']:.2f}",
        f"{cell['cpu_s']:.1f}",
        f"{cell['peak_memory_mb']:.0f}",
    )
