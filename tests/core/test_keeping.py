"""How long an idle sandbox is worth its memory."""

from __future__ import annotations

import pytest

from headstart.core.keeping import Keeping
from headstart.ids import PrincipalId, ResourceId

ME, GIT = PrincipalId("me"), ResourceId("git")
CHEAP = 1e-4
"""Seconds of waiting per second kept: some five megabytes at the default price."""


def stay_s(keeping: Keeping, *, start_s: float = 1.0, cost: float = CHEAP, most_s: float = 600.0) -> float:
    return keeping.stay(ME, GIT, start_s=start_s, cost_s_per_s=cost, most_s=most_s).seconds


def test_cheap_memory_is_kept_to_the_limit_and_dear_memory_not_at_all() -> None:
    assert stay_s(Keeping(), cost=1e-6) == 600.0
    assert stay_s(Keeping(), cost=1e-6, most_s=120.0) == 120.0
    assert stay_s(Keeping(), cost=10.0) == 0.0


def test_what_starts_slowly_is_kept_longer() -> None:
    lengths = [stay_s(Keeping(), start_s=start_s, cost=0.002) for start_s in (0.02, 0.2, 2.0, 20.0)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1]


def test_calls_that_come_back_soon_or_never_make_keeping_short() -> None:
    keeping = Keeping()
    for _ in range(60):
        keeping.idle_ended(ME, GIT, after_s=1.0, returned=True)
        keeping.idle_ended(ME, GIT, after_s=300.0, returned=False)
    assert 0.0 < stay_s(keeping, cost=0.002) <= 10.0


def test_calls_that_come_back_late_make_keeping_long() -> None:
    keeping = Keeping()
    before_s = stay_s(keeping, cost=0.01)
    for _ in range(60):
        keeping.idle_ended(ME, GIT, after_s=60.0, returned=True)
    assert stay_s(keeping, cost=0.01) == 90.0 > before_s


def test_a_period_that_was_cut_short_is_no_return() -> None:
    keeping = Keeping()
    for _ in range(50):
        keeping.idle_ended(ME, GIT, after_s=5.0, returned=False)
    assert keeping.stay(ME, GIT, start_s=1.0, cost_s_per_s=CHEAP, most_s=10.0).probability < 0.2


def test_habits_are_exported_and_forgotten_per_principal() -> None:
    keeping = Keeping()
    keeping.idle_ended(ME, GIT, after_s=1.0, returned=True)
    data = keeping.export(ME)
    other = Keeping()
    other.load(ME, data)
    assert other.export(ME) == data
    other.load(ME, {"bad": [1.0]})
    assert "bad" not in other.export(ME)
    other.forget(ME)
    assert other.export(ME) == {}


def test_old_habits_fade() -> None:
    keeping = Keeping()
    for _ in range(10_000):
        keeping.idle_ended(ME, GIT, after_s=1.0, returned=True)
    assert sum(keeping.export(ME)["git"][:6]) <= 200.0
    assert keeping.stay(ME, GIT, start_s=1.0, cost_s_per_s=CHEAP, most_s=3.0).probability == pytest.approx(
        0.95, abs=0.05
    )
