import pytest

from headstart.core.bets import BetId
from headstart.core.policy import Refusal
from headstart.core.waste import WasteBudget, WasteLimits

A, B, C = BetId("a"), BetId("b"), BetId("c")


def _budget(*, memory: int = 100, share: float = 0.5, burst: float = 2.0) -> WasteBudget:
    return WasteBudget(WasteLimits(memory_bytes=memory, cpu_share=share, cpu_burst_s=burst))


def test_what_fits_is_reserved_and_what_does_not_is_refused() -> None:
    budget = _budget()
    assert budget.reserve(A, at_s=0.0, memory_bytes=60, cpu_s=1.0) is None
    assert budget.reserve(B, at_s=0.0, memory_bytes=41, cpu_s=0.0) is Refusal.WASTE_MEMORY
    assert budget.reserve(B, at_s=0.0, memory_bytes=40, cpu_s=1.1) is Refusal.WASTE_CPU
    assert budget.reserve(B, at_s=0.0, memory_bytes=40, cpu_s=1.0) is None
    statistics = budget.statistics(at_s=0.0)
    assert (statistics.open_bets, statistics.reserved_memory_bytes, statistics.reserved_cpu_s) == (2, 100, 2.0)


def test_a_refused_bet_leaves_no_trace() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=101, cpu_s=0.0)
    assert not budget.holds(A)
    assert budget.statistics(at_s=0.0).reserved_memory_bytes == 0


def test_a_hit_gives_everything_back() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=100, cpu_s=2.0)
    budget.settle_hit(A)
    assert budget.reserve(B, at_s=0.0, memory_bytes=100, cpu_s=2.0) is None


def test_a_miss_gives_memory_back_and_spends_cpu() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=100, cpu_s=2.0)
    budget.settle_miss(A, at_s=0.0, cpu_s=1.5)
    assert budget.reserve(B, at_s=0.0, memory_bytes=100, cpu_s=0.6) is Refusal.WASTE_CPU
    assert budget.reserve(B, at_s=0.0, memory_bytes=100, cpu_s=0.5) is None
    assert budget.statistics(at_s=0.0).wasted_cpu_s == 1.5


def test_time_refills_up_to_the_burst_and_no_further() -> None:
    budget = _budget(share=0.5, burst=2.0)
    budget.settle_miss(A, at_s=0.0, cpu_s=2.0)
    assert budget.statistics(at_s=2.0).available_cpu_s == pytest.approx(1.0)
    assert budget.statistics(at_s=1_000.0).available_cpu_s == pytest.approx(2.0)


def test_time_that_goes_backwards_refills_nothing() -> None:
    budget = _budget()
    budget.settle_miss(A, at_s=10.0, cpu_s=2.0)
    assert budget.statistics(at_s=3.0).available_cpu_s == 0.0
    assert budget.statistics(at_s=10.0).available_cpu_s == 0.0


def test_a_start_that_cost_more_than_reserved_is_a_debt_that_time_pays_off() -> None:
    budget = _budget(share=0.5, burst=2.0)
    budget.reserve(A, at_s=0.0, memory_bytes=1, cpu_s=1.0)
    budget.settle_miss(A, at_s=0.0, cpu_s=4.0)
    assert budget.reserve(B, at_s=3.0, memory_bytes=1, cpu_s=0.1) is Refusal.WASTE_CPU
    assert budget.reserve(B, at_s=5.0, memory_bytes=1, cpu_s=0.1) is None


def test_what_was_spent_and_lies_ahead_replaces_the_reservation() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=50, cpu_s=1.0)
    assert budget.revise(A, at_s=0.0, memory_bytes=90, spent_cpu_s=0.2, ahead_cpu_s=0.3) == 0.5
    statistics = budget.statistics(at_s=0.0)
    assert (statistics.reserved_memory_bytes, statistics.reserved_cpu_s) == (90, 0.5)


def test_memory_that_does_not_fit_is_refused_and_the_old_reservation_stands() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=50, cpu_s=1.0)
    refused = budget.revise(A, at_s=0.0, memory_bytes=101, spent_cpu_s=0.2, ahead_cpu_s=0.3)
    assert refused is Refusal.WASTE_MEMORY
    statistics = budget.statistics(at_s=0.0)
    assert (statistics.reserved_memory_bytes, statistics.reserved_cpu_s) == (50, 1.0)


def test_only_what_is_there_is_allowed_and_more_when_time_has_filled_it() -> None:
    budget = _budget(share=0.5, burst=2.0)
    budget.reserve(A, at_s=0.0, memory_bytes=1, cpu_s=1.0)
    budget.reserve(B, at_s=0.0, memory_bytes=1, cpu_s=0.5)
    assert budget.revise(A, at_s=0.0, memory_bytes=1, spent_cpu_s=0.9, ahead_cpu_s=5.0) == 1.5
    budget.settle_miss(B, at_s=0.0, cpu_s=0.5)
    assert budget.revise(A, at_s=1.0, memory_bytes=1, spent_cpu_s=1.5, ahead_cpu_s=5.0) == 2.0


def test_what_was_spent_in_spite_of_the_limit_is_reserved_and_keeps_everything_else_out() -> None:
    budget = _budget(burst=2.0)
    budget.reserve(A, at_s=0.0, memory_bytes=1, cpu_s=1.0)
    budget.reserve(B, at_s=0.0, memory_bytes=1, cpu_s=0.5)
    assert budget.revise(A, at_s=0.0, memory_bytes=1, spent_cpu_s=3.0, ahead_cpu_s=1.0) == 3.0
    assert budget.statistics(at_s=0.0).available_cpu_s == -1.5
    assert budget.revise(B, at_s=0.0, memory_bytes=1, spent_cpu_s=0.1, ahead_cpu_s=0.4) == 0.1


def test_a_bet_that_needs_nothing_is_never_refused() -> None:
    budget = _budget(memory=0, share=0.0, burst=0.0)
    assert budget.reserve(A, at_s=0.0, memory_bytes=0, cpu_s=0.0) is None


def test_settling_twice_changes_nothing_more() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=10, cpu_s=1.0)
    budget.settle_hit(A)
    budget.settle_hit(A)
    assert budget.statistics(at_s=0.0).open_bets == 0


def test_misuse_is_told() -> None:
    budget = _budget()
    budget.reserve(A, at_s=0.0, memory_bytes=1, cpu_s=0.0)
    with pytest.raises(ValueError, match="already"):
        budget.reserve(A, at_s=0.0, memory_bytes=1, cpu_s=0.0)
    with pytest.raises(ValueError, match="negative"):
        budget.reserve(B, at_s=0.0, memory_bytes=-1, cpu_s=0.0)
    with pytest.raises(ValueError, match="negative"):
        budget.reserve(B, at_s=0.0, memory_bytes=1, cpu_s=float("nan"))
    with pytest.raises(KeyError):
        budget.revise(C, at_s=0.0, memory_bytes=1, spent_cpu_s=0.0, ahead_cpu_s=0.0)
