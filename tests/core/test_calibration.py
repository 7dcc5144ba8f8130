import pytest

from headstart.core.calibration import BINS, Calibration, CalibrationData, LeadTimes


def _learn(calibration: Calibration, said: float, *, hits: int, misses: int) -> None:
    for came_true, times in ((True, hits), (False, misses)):
        for _ in range(times):
            calibration.update(said, came_true=came_true)


def test_without_outcomes_a_predictor_is_taken_at_its_word() -> None:
    calibration = Calibration()
    assert [calibration.calibrated(p) for p in (0.0, 0.33, 0.5, 1.0)] == pytest.approx([0.0, 0.33, 0.5, 1.0])


def test_outcomes_outweigh_the_word() -> None:
    calibration = Calibration()
    _learn(calibration, 0.95, hits=10, misses=90)
    assert calibration.calibrated(0.95) == pytest.approx(0.13, abs=0.02)


def test_a_modest_predictor_is_believed_more_once_it_is_right() -> None:
    calibration = Calibration()
    _learn(calibration, 0.35, hits=40, misses=0)
    assert calibration.calibrated(0.35) > 0.9


def test_a_surer_word_is_never_worth_less() -> None:
    calibration = Calibration()
    _learn(calibration, 0.25, hits=30, misses=2)
    _learn(calibration, 0.75, hits=2, misses=30)
    values = [calibration.calibrated(step / 1_000) for step in range(1_001)]
    assert values == sorted(values)


def test_bins_that_were_pooled_are_compared_at_their_common_lower_border() -> None:
    calibration = Calibration()
    _learn(calibration, 0.55, hits=29, misses=17)
    _learn(calibration, 0.65, hits=3, misses=0)
    _learn(calibration, 0.75, hits=0, misses=2)
    assert calibration.calibrated(0.5999) <= calibration.calibrated(0.6)


def test_what_is_far_from_any_outcome_stays_as_it_was_said() -> None:
    calibration = Calibration()
    _learn(calibration, 0.25, hits=10, misses=30)
    assert calibration.calibrated(0.85) == pytest.approx(0.85)


def test_old_outcomes_fade() -> None:
    calibration = Calibration()
    _learn(calibration, 0.5, hits=1_000, misses=0)
    _learn(calibration, 0.5, hits=0, misses=400)
    assert calibration.calibrated(0.5) < 0.2
    assert max(calibration.export().trials) <= 200


def test_probabilities_outside_their_range_are_clamped() -> None:
    calibration = Calibration()
    calibration.update(5.0, came_true=True)
    calibration.update(-5.0, came_true=False)
    assert 0.0 <= calibration.calibrated(-1.0) <= calibration.calibrated(2.0) <= 1.0


def test_a_restored_calibration_says_the_same() -> None:
    calibration, restored = Calibration(), Calibration()
    _learn(calibration, 0.6, hits=3, misses=8)
    restored.restore(calibration.export())
    assert restored.export() == calibration.export()
    assert restored.calibrated(0.6) == calibration.calibrated(0.6)


@pytest.mark.parametrize(
    "data",
    [
        CalibrationData(hits=(1.0,), trials=(1.0,)),
        CalibrationData(hits=(2.0,) * BINS, trials=(1.0,) * BINS),
        CalibrationData(hits=(-1.0,) * BINS, trials=(1.0,) * BINS),
        CalibrationData(hits=(float("nan"),) * BINS, trials=(1.0,) * BINS),
        CalibrationData(hits=(1.0,) * BINS, trials=(float("inf"),) * BINS),
    ],
)
def test_what_is_no_calibration_is_not_restored(data: CalibrationData) -> None:
    with pytest.raises(ValueError, match="not a calibration"):
        Calibration().restore(data)


def test_no_more_is_hidden_than_the_start_takes_or_the_lead_gives() -> None:
    leads = LeadTimes(prior_s=2.0)
    assert leads.hidden_s(0.5) == 0.5
    assert leads.hidden_s(10.0) == 2.0


def test_the_mean_of_the_minimum_is_taken_not_the_minimum_of_the_mean() -> None:
    leads = LeadTimes(prior_s=0.0)
    leads.record(4.0)
    assert leads.hidden_s(2.0) == 1.0


def test_leads_are_bounded_and_the_newest_count() -> None:
    leads = LeadTimes(prior_s=100.0, remembered=4)
    for lead in (50.0, 1.0, 1.0, 1.0, 1.0):
        leads.record(lead)
    assert leads.export() == (1.0,) * 4
    assert leads.hidden_s(9.0) == 1.0


def test_a_negative_lead_hides_nothing() -> None:
    leads = LeadTimes(prior_s=1.0, remembered=1)
    leads.record(-3.0)
    assert leads.hidden_s(5.0) == 0.0


def test_restored_leads_replace_the_prior_and_none_leave_it() -> None:
    leads = LeadTimes(prior_s=1.0)
    leads.restore(())
    assert leads.hidden_s(5.0) == 1.0
    leads.restore((2.0, 4.0))
    assert leads.hidden_s(5.0) == 3.0


@pytest.mark.parametrize("lead", [-1.0, float("nan"), float("inf")])
def test_what_is_no_lead_is_not_restored(lead: float) -> None:
    with pytest.raises(ValueError, match="not lead times"):
        LeadTimes().restore((1.0, lead))
