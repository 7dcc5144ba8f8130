"""A waterfall is read at night: moments on the clock, plain words, lines that fit."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.cli.waterfall import waterfall

BEGAN_S = 1_000.0
WALL_OFFSET_S = 1_800_000_000.25 - BEGAN_S


def span(part: str, start: float, end: float, call: str | None = None) -> dict[str, Any]:
    return {"part": part, "start_s": BEGAN_S + start, "end_s": BEGAN_S + end, "call": call}


def preparation(**changes: Any) -> dict[str, Any]:
    return {
        "resource": "git",
        "predictor": "keyword",
        "because": "keywords: commit, branch",
        "probability": 0.8,
        "started_s": BEGAN_S + 0.5,
        "ready_s": BEGAN_S + 1.5,
        "ended_s": BEGAN_S + 2,
        "won": True,
        "void": False,
        "hidden_s": 1.0,
        "waited_s": 0.5,
        "wasted_cpu_s": 0.0,
        "wasted_byte_s": 0.0,
        **changes,
    }


def call(**changes: Any) -> dict[str, Any]:
    return {
        "call": "c1",
        "resource": "git",
        "tool": "git_log",
        "refusal": None,
        "cold": False,
        "abandoned": False,
        "is_error": False,
        "end_s": BEGAN_S + 2,
        **changes,
    }


def trace(**changes: Any) -> dict[str, Any]:
    tiles = [
        span("context", 0, 0.2),
        span("decode", 0.2, 1),
        span("env_prep", 1, 1.5, "c1"),
        span("data_io", 1.5, 1.5004, "c1"),
        span("sandbox_exec", 1.5004, 2, "c1"),
    ]
    step = {
        "number": 1,
        "start_s": BEGAN_S,
        "end_s": BEGAN_S + 2,
        "generation": {"spans": tiles[:2], "text": True, "outcome": "completed"},
        "calls": [call()],
        "tiles": tiles,
    }
    parts = [["decode", 0.8], ["context", 0.2], ["env_prep", 0.5], ["sandbox_exec", 0.5], ["data_io", 0.0004]]
    summary = {
        "steps": 1,
        "calls": 1,
        "cold_calls": 0,
        "wall_s": 2.0,
        "waited_s": 0.5,
        "hidden_s": 1.0,
        "wasted_cpu_s": 0.0,
        "wasted_byte_s": 0.0,
        "parts": parts,
    }
    told = {"session": "run-1", "steps": [step], "preparations": [preparation()], "summary": summary}
    return {**told, "wall_offset_s": WALL_OFFSET_S, **changes}


def drawn(told: dict[str, Any], width: int = 100) -> str:
    return "\n".join(line.plain for line in waterfall(told, width=width))


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    import time  # noqa: PLC0415 for its tzset only

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def test_steps_and_preparations_are_told_by_the_clock_on_the_wall() -> None:
    text = drawn(trace())
    assert "session run-1   2027-01-15 08:00:00 to 08:00:02 UTC" in text
    assert "step 1 at 08:00:00.250, 2.00 s: model 1.00 s, waited for sandboxes 0.50 s" in text
    assert "at 08:00:00.750 by keyword, p = 0.80 (keywords: commit, branch)" in text


def test_a_record_that_does_not_know_the_clock_tells_no_wrong_time() -> None:
    text = drawn(trace(wall_offset_s=None))
    assert "step 1, 2.00 s" in text
    assert "at +0.50 s by keyword" in text
    assert "2027" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_bars_and_titles_fit_the_terminal(width: int) -> None:
    assert max(map(len, drawn(trace(), width).splitlines())) <= width


def test_parts_have_plain_names_and_the_shortest_share_a_line() -> None:
    text = drawn(trace())
    for identifier in ("env_prep", "data_io", "sandbox_exec", "decode", "context"):
        assert identifier not in text
    assert "waiting for git.git_log" in text
    assert "running git.git_log" in text
    assert "1 spans under 1 ms, together" in text


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ({"cold": True}, "git.git_log waited for a start that nothing had prepared"),
        ({"refusal": "start failed"}, "git.git_log got no sandbox: start failed"),
        ({"is_error": True}, "git.git_log answered with an error"),
        ({"abandoned": True}, "git.git_log was given up by its client"),
    ],
)
def test_what_went_wrong_with_a_call_is_told_in_its_step(trouble: dict[str, Any], told: str) -> None:
    unlucky = trace()
    unlucky["steps"][0]["calls"] = [call(**trouble)]
    assert told in drawn(unlucky)
    assert told not in drawn(trace())


def test_a_preparation_between_two_steps_is_shown_with_the_one_before() -> None:
    late = preparation(started_s=BEGAN_S + 2.5, ready_s=None, ended_s=BEGAN_S + 3, won=False, resource="files")
    assert "prepared files" in drawn(trace(preparations=[late]))
    assert "nobody came: wasted" in drawn(trace(preparations=[late]))


def test_what_was_waited_saved_and_wasted_is_told_in_seconds_and_as_a_share_of_the_whole() -> None:
    wrong = preparation(resource="files", won=False, wasted_cpu_s=0.75, wasted_byte_s=2.5e9)
    void = preparation(resource="web", won=False, void=True)
    known = trace(preparations=[preparation(), wrong, wrong, void])
    known["summary"] |= {"calls": 4, "cold_calls": 1, "wasted_cpu_s": 1.5, "wasted_byte_s": 5e9}
    lines = [" ".join(line.split()) for line in drawn(known).splitlines()]
    assert lines.count("a call came for it: saved 1.00 s, still waited 0.500 s") == 1
    assert lines.count("nobody came: wasted 0.75 CPU-s and 2.50 GB-s") == 2
    assert lines.count("it ended for a reason that says nothing about the guess") == 1
    assert lines[lines.index("in all: 1 step, 4 calls, 2.00 s") + 1 :][:4] == [
        "waited for sandboxes 0.500 s (25.0%)",
        "nothing was prepared for 1 of 4 calls",
        "saved by preparing 1.000 s (33.3%); 3.00 s without it",
        "wasted 1.500 CPU-s, 5.00 GB-s (2 wrong, 1 void)",
    ]


def test_a_session_of_no_length_has_no_shares() -> None:
    known = trace(steps=[], preparations=[])
    known["summary"] |= {"steps": 0, "calls": 0, "wall_s": 0.0, "waited_s": 0.0, "hidden_s": 0.0, "parts": []}
    lines = [" ".join(line.split()) for line in drawn(known).splitlines()]
    assert "saved by preparing 0.000 s (0.0%); 0.00 s without it" in lines


def test_servers_that_start_cold_are_named_with_their_reason_at_the_end() -> None:
    forms = [
        {"server": "git", "form": "zygote", "reason": "forks at its event loop"},
        {"server": "files", "form": "cold", "reason": "node is not Python"},
        {"server": "browser", "form": "cold", "reason": "node is not Python"},
        {"server": "dbt", "form": "cold", "reason": "it opens a port on import"},
    ]
    lines = [" ".join(line.split()) for line in drawn(trace(forms=forms)).splitlines()]
    assert lines[-2:] == [
        "starts cold files, browser: node is not Python",
        "starts cold dbt: it opens a port on import",
    ]
    assert "starts cold" not in drawn(trace())


def test_a_session_that_a_kill_cut_off_says_so_and_what_was_still_going_on() -> None:
    told = trace(cut_off_s=BEGAN_S + 2)
    told["steps"][0]["calls"] = [call(abandoned=True)]
    lines = drawn(told)
    assert "git.git_log was still going on" in lines
    assert "cut off at 08:00:02.250: the service was killed" in lines
