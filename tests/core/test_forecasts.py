"""What predictors said, until it is known whether it came true."""

from __future__ import annotations

from headstart.core.bets import PredictorName
from headstart.core.forecasts import Forecast, Forecasts
from headstart.ids import PrincipalId, ResourceId

GIT, EXCEL = ResourceId("git"), ResourceId("excel")


def said(
    backer: str = "s", resource: ResourceId = GIT, *, p: float = 0.5, at_s: float = 0.0, until_s: float = 10.0
) -> Forecast:
    return Forecast(
        principal=PrincipalId("me"),
        backer=backer,
        resource=resource,
        predictor=PredictorName("keyword"),
        said=p,
        at_s=at_s,
        until_s=until_s,
    )


def test_a_call_makes_true_what_was_said_of_its_server_and_nothing_else() -> None:
    forecasts = Forecasts()
    forecasts.add(said(resource=GIT))
    forecasts.add(said(resource=EXCEL))
    assert [each.resource for each in forecasts.came_true("s", GIT)] == [GIT]
    assert forecasts.came_true("s", GIT) == []
    assert len(forecasts) == 1


def test_a_repeated_word_keeps_its_times_and_its_surest_form() -> None:
    forecasts = Forecasts()
    forecasts.add(said(p=0.5, at_s=1.0, until_s=10.0))
    forecasts.add(said(p=0.9, at_s=2.0, until_s=11.0))
    [kept] = forecasts.came_true("s", GIT)
    assert (kept.said, kept.at_s, kept.until_s) == (0.9, 1.0, 10.0)


def test_time_makes_false_what_did_not_come() -> None:
    forecasts = Forecasts()
    forecasts.add(said(until_s=10.0))
    assert list(forecasts.expired(9.9)) == []
    assert [each.resource for each in forecasts.expired(10.0)] == [GIT]
    assert len(forecasts) == 0


def test_what_was_said_of_a_conversation_is_its_sessions_after_the_join() -> None:
    forecasts = Forecasts()
    forecasts.add(said("talk"))
    forecasts.rebind("talk", "s")
    assert forecasts.came_true("talk", GIT) == []
    assert len(forecasts.came_true("s", GIT)) == 1


def test_a_session_that_ended_hands_over_what_never_came_true_and_leaves_nothing() -> None:
    forecasts = Forecasts()
    for n in range(100):
        forecasts.add(said(f"s{n}"))
        assert [forecast.backer for forecast in forecasts.close(f"s{n}")] == [f"s{n}"]
    assert len(forecasts) == 0


def test_forecasts_are_bounded() -> None:
    forecasts = Forecasts()
    for n in range(20_000):
        forecasts.add(said(f"s{n}"))
    assert len(forecasts) == 16_384
    assert forecasts.came_true("s0", GIT) == []
