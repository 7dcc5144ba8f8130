"""Bets from proposal to settlement."""

from __future__ import annotations

import json

import pytest

from headstart.core.bets import Bet, BetKind, PredictorName
from headstart.core.bookmaker import Bookmaker
from headstart.core.policy import BetRule, Refusal
from headstart.core.pool import Stake, StakeLost, StakeWon
from headstart.core.waste import WasteLimits
from headstart.ids import PrincipalId, ResourceId, SandboxId, SessionId

ME, GIT, KEYWORD = PrincipalId("me"), ResourceId("git"), PredictorName("keyword")


def books(*, memory_bytes: int = 1_000, cpu_burst_s: float = 5.0, learns: bool = True) -> Bookmaker:
    limits = WasteLimits(memory_bytes=memory_bytes, cpu_share=0.0, cpu_burst_s=cpu_burst_s)
    return Bookmaker(BetRule(waste_price=0.2), limits, learns=learns)


def bet(*, p: float = 0.5, hidden_s: float = 1.0, cpu_s: float = 1.0) -> Bet:
    return Bet(
        kind=BetKind.PREWARM,
        predictor=KEYWORD,
        principal=ME,
        session=SessionId("s"),
        resource=GIT,
        probability=p,
        hidden_s=hidden_s,
        waste_cpu_s=cpu_s,
        expires_s=10.0,
    )


def admitted(book: Bookmaker, made: Bet, *, memory_bytes: int = 100) -> Stake:
    stake = book.price(made, "s", 0.0)
    assert isinstance(stake, Stake)
    reserved = book.reserve(stake, 0.0, memory_bytes=memory_bytes)
    assert isinstance(reserved, Stake)
    book.admitted(reserved)
    return reserved


def won(stake: Stake, *, hidden_s: float = 0.8) -> StakeWon:
    return StakeWon(
        at_s=3.0,
        stake=stake,
        sandbox=SandboxId("sbx"),
        session=SessionId("s"),
        call=None,
        waited_s=0.2,
        hidden_s=hidden_s,
    )


def lost(stake: Stake, *, void: bool) -> StakeLost:
    return StakeLost(at_s=3.0, stake=stake, sandbox=SandboxId("sbx"), reason=None, void=void, cpu_s=2.0, byte_s=7.0)


def test_a_bet_is_taken_if_the_rule_says_so() -> None:
    assert isinstance(books().price(bet(p=0.5), "s", 0.0), Stake)
    assert books().price(bet(p=0.05), "s", 0.0) is Refusal.NOT_WORTH_IT
    assert isinstance(books().price(bet(p=0.05), "s", 0.0, always_worth_it=True), Stake)


def test_what_is_won_lost_and_void_is_entered_in_the_record() -> None:
    book = books()
    book.won(won(admitted(book, bet())))
    book.lost(lost(admitted(book, bet()), void=False))
    book.lost(lost(admitted(book, bet()), void=True))
    book.refused(bet(), Refusal.ALREADY_THERE)
    record = book.ledger().of(KEYWORD)
    assert (record.proposals, record.admitted, record.hits, record.misses, record.voided) == (4, 3, 1, 1, 1)
    assert (record.hidden_s, record.wasted_cpu_s, record.wasted_byte_s) == (0.8, 4.0, 14.0)
    assert book.waste(3.0).wasted_cpu_s == 4.0
    assert book.waste(3.0).open_bets == 0


def test_open_guesses_may_not_hold_more_than_the_budget() -> None:
    book = books(cpu_burst_s=1.5)
    admitted(book, bet())
    second = book.price(bet(), "s", 0.0)
    assert isinstance(second, Stake)
    assert book.reserve(second, 0.0, memory_bytes=100) is Refusal.WASTE_CPU
    assert book.reserve(second, 0.0, memory_bytes=10_000) is Refusal.WASTE_MEMORY


def test_what_is_all_but_certain_is_not_shut_out_by_open_guesses_but_gets_what_they_left() -> None:
    book = books(cpu_burst_s=1.5)
    guess = admitted(book, bet())
    certain = admitted(book, bet(p=0.99))
    assert guess.cpu_s == pytest.approx(1.25)
    assert certain.cpu_s == pytest.approx(0.25)
    assert admitted(book, bet(p=0.99)).cpu_s == 0.0


def test_a_start_may_use_what_was_reserved_and_when_it_is_ready_only_a_little_more() -> None:
    book = books(cpu_burst_s=1.5)
    stake = admitted(book, bet())
    assert book.measured(stake, 0.0, memory_bytes=1, cpu_s=0.1, ready=False) == pytest.approx(1.25)
    assert book.measured(stake, 0.0, memory_bytes=1, cpu_s=1.2, ready=False) == pytest.approx(1.45)
    assert book.measured(stake, 0.0, memory_bytes=1, cpu_s=1.4, ready=False) == pytest.approx(1.5)
    assert book.measured(stake, 0.0, memory_bytes=1, cpu_s=0.4, ready=True) == pytest.approx(0.65)
    book.won(won(stake))
    assert book.measured(stake, 0.0, memory_bytes=1, cpu_s=9.0, ready=True) is None


def test_a_call_makes_its_forecasts_true_and_time_makes_the_others_false() -> None:
    book = books()
    book.heard(bet(), "s", 0.0)
    book.called(["s"], GIT, 4.0)
    book.heard(bet(), "s", 10.0)
    book.time_passed(129.0)
    assert sum(book.export(ME)["keyword"]["trials"]) == 1
    book.time_passed(130.0)
    learned = book.export(ME)["keyword"]
    assert (sum(learned["hits"]), sum(learned["trials"]), learned["leads_s"][-1]) == (1, 2, 4.0)


def test_a_predictor_that_is_often_wrong_is_believed_less_even_if_it_was_refused() -> None:
    book = books()
    for n in range(40):
        book.heard(bet(), "s", n * 200.0)
        book.time_passed(n * 200.0 + 120.0)
    assert book.price(bet(), "s", 10_000.0) is Refusal.NOT_WORTH_IT


def test_what_has_not_come_when_its_session_closes_was_wrong_once() -> None:
    book = books()
    book.heard(bet(), "s", 0.0)
    book.session_closed("s")
    book.time_passed(1_000.0)
    learned = book.export(ME)["keyword"]
    assert (sum(learned["hits"]), sum(learned["trials"])) == (0, 1)


def test_books_that_do_not_learn_use_what_was_loaded_and_judge_nobody() -> None:
    taught = books()
    taught.heard(bet(), "s", 0.0)
    taught.called(["s"], GIT, 4.0)
    book = books(learns=False)
    book.load(ME, taught.export(ME))
    book.heard(bet(), "s", 0.0)
    book.called(["s"], GIT, 9.0)
    book.heard(bet(), "s", 10.0)
    book.time_passed(1_000.0)
    assert book.export(ME) == taught.export(ME)
    assert book.hidden_s(ME, KEYWORD, 2.0) == taught.hidden_s(ME, KEYWORD, 2.0)


def test_asking_what_is_known_of_a_predictor_learns_nothing() -> None:
    book = books()
    book.hidden_s(ME, KEYWORD, 1.0)
    book.usual_lead_s(ME, KEYWORD)
    book.price(bet(), "s", 0.0)
    assert book.export(ME) == {}


def test_three_of_four_leads_say_how_long_a_bet_runs() -> None:
    book = books()
    for lead_s in (*[4.0] * 30, 100.0, 100.0):
        book.heard(bet(), "s", 0.0)
        book.called(["s"], GIT, lead_s)
    assert book.usual_lead_s(ME, KEYWORD) == 4.0


def test_the_record_of_a_predictor_is_exported_per_principal_and_forgotten() -> None:
    book = books()
    book.heard(bet(), "s", 0.0)
    book.called(["s"], GIT, 4.0)
    data = json.loads(json.dumps(book.export(ME)))
    assert book.export(PrincipalId("you")) == {}
    other = books()
    other.load(ME, data)
    assert other.export(ME) == book.export(ME)
    with pytest.raises(ValueError, match="calibration"):
        other.load(ME, {"keyword": {"hits": [2.0], "trials": [1.0], "leads_s": []}})
    other.forget(ME)
    assert other.export(ME) == {}
