import pytest

from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.ledger import Ledger
from headstart.core.policy import Refusal
from headstart.ids import PrincipalId, ResourceId

KEYWORD, TRANSITIONS = PredictorName("keyword"), PredictorName("transitions")


def _bet(predictor: PredictorName = KEYWORD) -> Bet:
    return Bet(
        kind=BetKind.PREWARM,
        predictor=predictor,
        principal=PrincipalId("me"),
        session=None,
        resource=ResourceId("excel"),
        probability=0.5,
        hidden_s=1.0,
        expires_s=30.0,
    )


def test_every_rate_has_its_numerator_and_its_denominator() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.admitted(BetId(f"b{number}"), _bet(), probability=0.5)
    ledger.refused(_bet(), Refusal.NOT_WORTH_IT)
    ledger.refused(_bet(), Refusal.NOT_WORTH_IT)
    ledger.refused(_bet(), Refusal.WASTE_CPU)
    ledger.hit(BetId("b0"), hidden_s=0.75)
    ledger.hit(BetId("b1"), hidden_s=0.25)
    ledger.missed(BetId("b2"), wasted_cpu_s=1.0, wasted_byte_s=10.0)
    ledger.voided(BetId("b3"), wasted_cpu_s=0.5, wasted_byte_s=5.0)
    record = ledger.statistics().of(KEYWORD)
    assert (record.proposals, record.admitted) == (8, 5)
    assert dict(record.refused) == {Refusal.NOT_WORTH_IT: 2, Refusal.WASTE_CPU: 1}
    assert (record.hits, record.misses, record.voided, record.open) == (2, 1, 1, 1)
    assert (record.hits, record.decided) == (2, 3)
    assert (record.hidden_s, record.wasted_cpu_s, record.wasted_byte_s) == (1.0, 1.5, 15.0)
    assert record.expected_hits == 1.5
    assert record.proposals == record.admitted + sum(count for _, count in record.refused)


def test_predictors_are_kept_apart_in_the_order_of_their_first_proposals() -> None:
    ledger = Ledger()
    ledger.refused(_bet(TRANSITIONS), Refusal.ALREADY_THERE)
    ledger.admitted(BetId("b"), _bet(KEYWORD), probability=0.3)
    assert [(r.predictor, r.proposals, r.admitted) for r in ledger.statistics().records] == [
        ("transitions", 1, 0),
        ("keyword", 1, 1),
    ]


def test_a_predictor_that_never_proposed_has_an_empty_record() -> None:
    record = Ledger().statistics().of(KEYWORD)
    assert (record.proposals, record.decided) == (0, 0)


def test_statistics_do_not_change_afterwards() -> None:
    ledger = Ledger()
    ledger.admitted(BetId("b"), _bet(), probability=0.3)
    before = ledger.statistics()
    ledger.hit(BetId("b"), hidden_s=1.0)
    assert before.of(KEYWORD).hits == 0
    assert ledger.statistics().of(KEYWORD).hits == 1


def test_a_bet_is_settled_once() -> None:
    ledger = Ledger()
    ledger.admitted(BetId("b"), _bet(), probability=0.3)
    ledger.missed(BetId("b"))
    for settle in (lambda: ledger.hit(BetId("b"), hidden_s=1.0), lambda: ledger.missed(BetId("b"))):
        with pytest.raises(KeyError):
            settle()
    with pytest.raises(KeyError):
        ledger.voided(BetId("b"))
    assert ledger.statistics().of(KEYWORD).decided == 1


def test_a_bet_is_admitted_once() -> None:
    ledger = Ledger()
    ledger.admitted(BetId("b"), _bet(), probability=0.3)
    with pytest.raises(ValueError, match="open already"):
        ledger.admitted(BetId("b"), _bet(), probability=0.3)
    assert ledger.statistics().of(KEYWORD).proposals == 1


def test_a_claim_that_came_too_early_hides_nothing_but_is_a_hit() -> None:
    ledger = Ledger()
    ledger.admitted(BetId("b"), _bet(), probability=0.3)
    ledger.hit(BetId("b"), hidden_s=-0.5)
    record = ledger.statistics().of(KEYWORD)
    assert (record.hits, record.hidden_s) == (1, 0.0)
