"""When servers were known, and what that left to wait for."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.bench.demo.cells import CELLS, CellResult
from headstart.bench.demo.limits import limits, limits_told


def step(number: int, resource: str, *, request_s: float, call_s: float, waited_s: float) -> dict[str, Any]:
    span = {"part": "env_prep", "start_s": call_s, "end_s": call_s + waited_s}
    return {
        "number": number,
        "generation": {"start_s": request_s, "end_s": call_s},
        "calls": [{"resource": resource, "start_s": call_s, "spans": [span]}],
    }


def prepared(resource: str, predictor: str, *, started_s: float, ready_s: float, won: bool = True) -> dict[str, Any]:
    return {
        "resource": resource,
        "predictor": predictor,
        "kind": "prewarm",
        "won": won,
        "started_s": started_s,
        "ready_s": ready_s,
    }


def cell(steps: list[dict[str, Any]], *preparations: dict[str, Any]) -> CellResult:
    trace = {"session": "one", "steps": steps, "preparations": list(preparations)}
    return CellResult(cell=CELLS[1], tpot_s=0.02, traces=[trace])


def test_what_would_be_left_is_what_starts_take_longer_than_the_model_writes() -> None:
    slow = step(1, "sympy", request_s=0.0, call_s=1.0, waited_s=1.8)
    quick = step(2, "git", request_s=3.0, call_s=4.0, waited_s=0.7)
    again = step(3, "sympy", request_s=5.0, call_s=5.1, waited_s=0.0)
    found = limits(cell([slow, quick, again]), cell([]))
    assert found == {"left_if_known_at_request_s": pytest.approx(0.8), "known_by": {}}


def test_starts_are_told_by_who_knew_of_them_with_lead_length_and_wait() -> None:
    steps = [
        step(1, "sympy", request_s=0.0, call_s=1.0, waited_s=1.0),
        step(2, "git", request_s=3.0, call_s=4.0, waited_s=0.5),
        step(3, "git", request_s=5.0, call_s=6.0, waited_s=0.0),
        step(4, "time", request_s=7.0, call_s=8.0, waited_s=0.4),
    ]
    predictive = cell(
        steps,
        prepared("sympy", "tool-name", started_s=0.7, ready_s=2.0),
        prepared("git", "tool-name", started_s=3.9, ready_s=4.5),
        prepared("word", "keyword", started_s=0.0, ready_s=1.0, won=False),
    )
    found = limits(cell([]), predictive)["known_by"]
    assert found == {
        "tool-name": {
            "starts": 2,
            "lead_s_median": pytest.approx(0.2),
            "start_s_median": pytest.approx(0.95),
            "waited_s": pytest.approx(1.5),
        },
        "the call": {"starts": 1, "lead_s_median": 0.0, "start_s_median": 0.0, "waited_s": pytest.approx(0.4)},
    }


def test_the_line_for_people_has_both() -> None:
    found = {
        "left_if_known_at_request_s": 0.14,
        "known_by": {"tool-name": {"starts": 10, "lead_s_median": 0.32, "start_s_median": 0.84, "waited_s": 7.56}},
    }
    assert limits_told(20.0, found) == (
        "20 ms per token, prediction alone: servers were known by tool-name 10, 0.32 s before the call"
        " (a start 0.84 s), 7.56 s waited; had each been known when its step began, 0.14 s per session would be left"
    )
