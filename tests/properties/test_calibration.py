"""A calibration is a monotone map from probabilities to probabilities, whatever it was fed."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.calibration import BINS, Calibration, LeadTimes

_probabilities = st.floats(0.0, 1.0)
_outcomes = st.lists(st.tuples(_probabilities, st.booleans(), st.integers(1, 40)), max_size=25)


def _fed(outcomes: list[tuple[float, bool, int]]) -> Calibration:
    calibration = Calibration(bin_capacity=50.0)
    for said, came_true, times in outcomes:
        for _ in range(times):
            calibration.update(said, came_true=came_true)
    return calibration


@given(outcomes=_outcomes, between=st.lists(_probabilities, max_size=4))
@settings(max_examples=400)
def test_a_surer_word_is_never_worth_less(outcomes: list[tuple[float, bool, int]], between: list[float]) -> None:
    calibration = _fed(outcomes)
    borders = [border / BINS + nudge for border in range(BINS + 1) for nudge in (-1e-9, 1e-9)]
    values = [calibration.calibrated(said) for said in sorted(borders + between)]
    assert all(low <= high + 1e-9 for low, high in pairwise(values))


@given(outcomes=_outcomes, said=_probabilities)
def test_the_answer_is_a_probability_and_survives_export(outcomes: list[tuple[float, bool, int]], said: float) -> None:
    calibration, restored = _fed(outcomes), Calibration(bin_capacity=50.0)
    assert 0.0 <= calibration.calibrated(said) <= 1.0
    restored.restore(calibration.export())
    assert restored.calibrated(said) == calibration.calibrated(said)


@given(leads=st.lists(st.floats(-5.0, 1e4), max_size=80), start=st.floats(0.0, 1e3), more=st.floats(0.0, 1e3))
def test_a_longer_start_hides_more_but_never_all_of_the_difference(
    leads: list[float], start: float, more: float
) -> None:
    times = LeadTimes()
    for lead in leads:
        times.record(lead)
    assert 0.0 <= times.hidden_s(start) <= start + 1e-9
    assert times.hidden_s(start) - 1e-6 <= times.hidden_s(start + more) <= times.hidden_s(start) + more + 1e-6
