import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.bets import Bet, BetKind, PredictorName
from headstart.core.policy import BYTE_SECONDS_PER_CPU_SECOND, BetRule
from headstart.ids import PrincipalId, ResourceId


def _bet(
    *,
    probability: float = 0.5,
    hidden_s: float = 1.0,
    verify_s: float = 0.0,
    miss_s: float = 0.0,
    waste_cpu_s: float = 0.0,
    waste_byte_s: float = 0.0,
) -> Bet:
    return Bet(
        kind=BetKind.PREWARM,
        predictor=PredictorName("keyword"),
        principal=PrincipalId("me"),
        session=None,
        resource=ResourceId("excel"),
        probability=probability,
        hidden_s=hidden_s,
        verify_s=verify_s,
        miss_s=miss_s,
        waste_cpu_s=waste_cpu_s,
        waste_byte_s=waste_byte_s,
        expires_s=30.0,
    )


def test_the_rule_is_p_hidden_against_verify_miss_and_waste() -> None:
    bet = _bet(
        probability=0.75,
        hidden_s=2.0,
        verify_s=0.1,
        miss_s=0.4,
        waste_cpu_s=3.0,
        waste_byte_s=BYTE_SECONDS_PER_CPU_SECOND,
    )
    price = BetRule(waste_price=0.2).price(bet)
    assert price.gain_s == pytest.approx(1.5)
    assert price.verify_s == pytest.approx(0.1)
    assert price.miss_s == pytest.approx(0.1)
    assert price.waste_s == pytest.approx(0.25 * 0.2 * 4.0)
    assert price.worth_s == pytest.approx(1.5 - 0.1 - 0.1 - 0.2)
    assert price.worth_taking


def test_a_calibrated_probability_replaces_the_predictors_own() -> None:
    bet = _bet(probability=0.9, waste_cpu_s=1.0)
    assert BetRule().price(bet).worth_taking
    assert not BetRule().price(bet, probability=0.1).worth_taking


def test_a_certain_bet_wastes_nothing_however_short_the_notice() -> None:
    price = BetRule(waste_price=5.0).price(_bet(probability=1.0, hidden_s=0.01, miss_s=9.0, waste_cpu_s=9.0))
    assert price.cost_s == 0.0
    assert price.worth_taking


def test_a_bet_that_wins_exactly_what_it_costs_is_not_taken() -> None:
    assert not BetRule().price(_bet(hidden_s=0.0)).worth_taking
    assert not BetRule(waste_price=1.0).price(_bet(probability=0.5, hidden_s=1.0, waste_cpu_s=1.0)).worth_taking


def test_a_dear_server_is_worth_a_guess_that_a_cheap_one_is_not() -> None:
    """The paper's cost threshold, without a threshold: what is kept resident costs the same for both."""
    cheap = _bet(probability=0.2, hidden_s=0.05, waste_cpu_s=0.05, waste_byte_s=3e9)
    dear = _bet(probability=0.2, hidden_s=4.0, waste_cpu_s=4.0, waste_byte_s=3e9)
    assert not BetRule().price(cheap).worth_taking
    assert BetRule().price(dear).worth_taking


def test_probabilities_outside_their_range_are_clamped() -> None:
    assert BetRule().price(_bet(), probability=7.0).probability == 1.0
    assert BetRule().price(_bet(), probability=-1.0).probability == 0.0


_seconds = st.floats(0.0, 100.0)


@given(low=st.floats(0.0, 1.0), high=st.floats(0.0, 1.0), hidden=_seconds, miss=_seconds, cpu=_seconds)
def test_a_likelier_bet_is_never_worth_less(low: float, high: float, hidden: float, miss: float, cpu: float) -> None:
    low, high = sorted((low, high))
    bet = _bet(hidden_s=hidden, miss_s=miss, waste_cpu_s=cpu)
    rule = BetRule()
    assert rule.price(bet, probability=low).worth_s <= rule.price(bet, probability=high).worth_s + 1e-9
