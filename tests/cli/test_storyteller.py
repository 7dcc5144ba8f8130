"""What the demo tells people while it runs."""

from __future__ import annotations

from typing import Any

import pytest

from headstart.bench.demo.cells import CELLS, CellResult, WrongGuess
from headstart.bench.demo.finale import Finale, Killed
from headstart.cli.storyteller import Storyteller

PREDICTIVE = CELLS[3]
SUMMARY: dict[str, Any] = {
    "session": "s",
    "calls": 1,
    "cold_calls": 0,
    "steps": 1,
    "wall_s": 3.0,
    "waited_s": 0.0,
    "hidden_s": 0.5,
    "kept_s": 0.0,
    "wasted_cpu_s": 0.9,
    "wasted_byte_s": 0.0,
    "model_s": 2.0,
    "parts": [],
    "closed": True,
}


def guess(resource: str, *, cpu_s: float) -> WrongGuess:
    because = "keywords: rows, workbook"
    return WrongGuess(resource=resource, session="s", predictor="keyword", because=because, cpu_s=cpu_s, byte_s=2e8)


def result(*guesses: WrongGuess, tpot_s: float = 0.020) -> CellResult:
    trace: dict[str, Any] = {"session": "s", "summary": SUMMARY, "steps": [], "preparations": []}
    return CellResult(cell=PREDICTIVE, tpot_s=tpot_s, traces=[trace], wrong_guesses=list(guesses))


def told(capsys: pytest.CaptureFixture[str], told_of: CellResult, *, show: bool = True) -> str:
    Storyteller(show=show).cell(told_of)
    return capsys.readouterr().out


def test_the_dearest_wrong_guess_is_told_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, result(guess("git", cpu_s=0.4), guess("excel", cpu_s=0.9)))
    assert "predictive: one session" in out
    assert "keyword prepared excel for s (keywords: rows, workbook); nobody came for it." in out
    assert "It cost 0.90 CPU-seconds and 0.20 GB-seconds" in out


def test_where_no_guess_was_wrong_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert "wrong guess" not in told(capsys, result())


def test_only_the_main_pace_is_told_and_nothing_at_all_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, result(guess("excel", cpu_s=0.9), tpot_s=0.005)) == ""
    assert told(capsys, result(guess("excel", cpu_s=0.9)), show=False) == ""


def test_the_finale_tells_a_wrong_guess_and_what_a_kill_left_behind(capsys: pytest.CaptureFixture[str]) -> None:
    killed = Killed(before={41: "python -m server", 42: "init"}, gone_after_s=0.21, left={})
    Storyteller(show=True).finale(Finale(wrong_guesses=[guess("excel", cpu_s=0.05)], killed=killed))
    out = capsys.readouterr().out
    assert "keyword prepared excel for s (keywords: rows, workbook); nobody came for it." in out
    assert "It cost 0.05 CPU-seconds" in out
    assert "41  python -m server" in out
    assert "2 processes before; 0 left after 0.21 s" in out
