"""What limits prediction alone: how early each server was known, against how long it takes to start."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headstart.bench.demo.cells import CellResult

__all__ = ["limits", "limits_told"]


@dataclass(frozen=True, slots=True)
class _FirstCall:
    """A session's first call of a server.

    Attributes:
        waited_s: For its sandbox.
        writing_s: From the step's request to the end of the model's answer.
        won: What had been prepared for it, as its trace tells, if anything was.
    """

    began_s: float
    waited_s: float
    writing_s: float
    won: Mapping[str, Any] | None


def limits(on_demand: CellResult, predictive: CellResult) -> dict[str, Any]:
    """Return, of two cells without zygotes at the same pace, seconds each.

    `left_if_known_at_request_s`: what a session would still wait for, at the mean, if each start
    that on-demand waited for had begun when its step's request did. `known_by`: for each predictor,
    how many starts it won, how long before the call they began, how long they took, and what all
    of them together had still to be waited for.
    """
    late_s = [max(0.0, call.waited_s - call.writing_s) for call in _first_calls(on_demand)]
    known_by: dict[str, list[_FirstCall]] = {}
    for call in _first_calls(predictive):
        known_by.setdefault(call.won["predictor"] if call.won is not None else "the call", []).append(call)
    return {
        "left_if_known_at_request_s": sum(late_s) / len(on_demand.traces),
        "known_by": {name: _summed_up(calls) for name, calls in sorted(known_by.items())},
    }


def limits_told(tpot_ms: float, found: Mapping[str, Any]) -> str:
    """Say it in a line for people."""
    known = "; ".join(
        f"{name} {one['starts']}, {one['lead_s_median']:.2f} s before the call (a start {one['start_s_median']:.2f} s),"
        f" {one['waited_s']:.2f} s waited"
        for name, one in found["known_by"].items()
    )
    left_s = found["left_if_known_at_request_s"]
    return (
        f"{tpot_ms:g} ms per token, prediction alone: servers were known by {known}; had each been known"
        f" when its step began, {left_s:.2f} s per session would be left"
    )


def _summed_up(calls: list[_FirstCall]) -> dict[str, Any]:
    won = [(call.began_s, call.won) for call in calls if call.won is not None]
    return {
        "starts": len(calls),
        "lead_s_median": statistics.median(began_s - one["started_s"] for began_s, one in won) if won else 0.0,
        "start_s_median": statistics.median(one["ready_s"] - one["started_s"] for _, one in won) if won else 0.0,
        "waited_s": sum(call.waited_s for call in calls),
    }


def _first_calls(result: CellResult) -> Iterator[_FirstCall]:
    for trace in result.traces:
        won = {
            one["resource"]: one
            for one in reversed(trace["preparations"])
            if one["won"] and one["kind"] != "keep" and one["ready_s"] is not None
        }
        seen: set[str] = set()
        for step in trace["steps"]:
            generation = step["generation"]
            for call in step["calls"]:
                if generation is not None and call["resource"] not in seen:
                    yield _FirstCall(
                        began_s=call["start_s"],
                        waited_s=sum(
                            span["end_s"] - span["start_s"] for span in call["spans"] if span["part"] == "env_prep"
                        ),
                        writing_s=generation["end_s"] - generation["start_s"],
                        won=won.get(call["resource"]),
                    )
                seen.add(call["resource"])
