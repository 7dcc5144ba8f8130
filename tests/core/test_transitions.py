# pyright: reportPrivateUsage=false
# (what is held on to, and for how long, is part of what is tested)

import json

import pytest

from headstart.core.transitions import (
    GraphLimits,
    PaperPolicy,
    PricedPolicy,
    Row,
    TransitionGraph,
    TransitionPredictor,
)
from headstart.ids import PrincipalId, ResourceId, SessionId

ME, YOU = PrincipalId("me"), PrincipalId("you")
S = SessionId("s")


def _start_s(*names: str, seconds: float = 10.0) -> dict[ResourceId, float]:
    return {ResourceId(name): seconds for name in names}


def _calls(predictor: TransitionPredictor, path: str, *, session: str = "s", principal: PrincipalId = ME) -> None:
    for name in path:
        predictor.observe_call(principal=principal, session=SessionId(session), resource=ResourceId(name))


def _proposed(
    predictor: TransitionPredictor,
    servers: str,
    *,
    session: str = "s",
    principal: PrincipalId = ME,
    seconds: float = 10.0,
) -> dict[str, float]:
    found = predictor.propose(
        principal=principal, session=SessionId(session), start_s=_start_s(*servers, seconds=seconds)
    )
    return {str(successor.resource): successor.probability for successor in found}


def _next(predictor: TransitionPredictor, name: str, *, servers: int) -> float:
    """The default policy's probability that the session's very next call is one of `name`'s."""
    _, own, shared = predictor._rows(ME, S)
    return PricedPolicy().probability(ResourceId(name), session=own, principal=shared, servers=servers)


def test_the_usual_successor_is_likeliest() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "ababacab")
    _calls(predictor, "a")
    proposed = _proposed(predictor, "abc")
    assert list(proposed) == ["b", "c"]
    assert proposed["b"] > 0.6 > proposed["c"]


def test_the_first_call_of_a_session_is_a_transition_from_the_start() -> None:
    predictor = TransitionPredictor()
    for number in range(9):
        _calls(predictor, "ab", session=f"s{number}")
    assert _proposed(predictor, "abc", session="new") == pytest.approx({"a": (9 + 1 / 3) / 10})


def test_staying_is_part_of_the_distribution_and_never_proposed() -> None:
    predictor = TransitionPredictor(PricedPolicy(horizon=1))
    _calls(predictor, "aaaaaaab")
    _calls(predictor, "a")
    assert set(_proposed(predictor, "ab")) == {"b"}
    assert _proposed(predictor, "ab")["b"] < 0.3
    assert _next(predictor, "a", servers=2) + _proposed(predictor, "ab")["b"] == pytest.approx(1.0)


def test_a_successor_may_come_after_the_session_has_stayed_for_some_calls() -> None:
    row = Row(counts={ResourceId("a"): 50.0, ResourceId("b"): 50.0}, total=100.0)
    policy = PricedPolicy(alpha=0.0, horizon=3)
    [best] = policy.choose(ResourceId("a"), session=Row(), principal=row, start_s=_start_s("a", "b"))
    assert best.probability == pytest.approx(0.5 + 0.25 + 0.125)


def test_a_new_session_begins_with_its_principals_habits_and_grows_its_own() -> None:
    predictor = TransitionPredictor()
    for number in range(20):
        _calls(predictor, "ab", session=f"old{number}")
    _calls(predictor, "a", session="new")
    assert _proposed(predictor, "abc", session="new")["b"] > 0.9
    _calls(predictor, "cacaca", session="new")
    proposed = _proposed(predictor, "abc", session="new")
    assert proposed["c"] > 0.5 > proposed["b"]


def test_nothing_learned_crosses_to_another_principal() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "abababab", principal=ME)
    _calls(predictor, "a", session="yours", principal=YOU)
    assert _proposed(predictor, "ab", session="yours", principal=YOU) == {}
    assert predictor.export(YOU) == {"": {"a": 1.0, "": 0.0}}


def test_probabilities_of_all_servers_sum_to_one() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "abcacbaabcab")
    assert sum(_next(predictor, name, servers=5) for name in "abcde") == pytest.approx(1.0)


def test_choosing_and_asking_agree() -> None:
    predictor = TransitionPredictor(PricedPolicy(horizon=1, limit=9, floor=0.0))
    _calls(predictor, "abcacbaabcabda")
    for name, probability in _proposed(predictor, "abcd").items():
        assert _next(predictor, name, servers=4) == pytest.approx(probability)


def test_a_server_that_cannot_be_reached_is_not_proposed() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "ababa")
    assert _proposed(predictor, "ac") == {}


def test_a_rare_successor_is_not_worth_naming() -> None:
    predictor = TransitionPredictor()
    for number in range(40):
        _calls(predictor, "ab", session=f"s{number}")
    _calls(predictor, "ac", session="odd")
    _calls(predictor, "a", session="new")
    assert set(_proposed(predictor, "abc", session="new")) == {"b"}


def test_the_reason_tells_the_counts() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "ab", session="old")
    _calls(predictor, "aba", session="new")
    [best] = predictor.propose(principal=ME, session=SessionId("new"), start_s=_start_s("a", "b"))
    assert best.because == "after a: 1 of 1 here, 2 of 2 before"


def test_a_closed_session_is_forgotten_and_its_principal_remembers() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "aba")
    predictor.close_session(S)
    assert list(predictor._tracks) == []
    _calls(predictor, "a")
    [best] = predictor.propose(principal=ME, session=S, start_s=_start_s("a", "b"))
    assert (best.here, best.before) == (0.0, 1.0)


# The paper's policy


def test_the_papers_probability_is_laplace_smoothed() -> None:
    """SpecBox eq. 4 with α = 1: (C + 1) / (ΣC + |V|)."""
    row = Row(counts={ResourceId("b"): 6.0, ResourceId("c"): 1.0}, total=7.0)
    probability = PaperPolicy().probability(ResourceId("b"), principal=row, servers=3)
    assert probability == pytest.approx(7 / 10)


def test_the_paper_prefetches_one_dear_and_likely_successor() -> None:
    predictor = TransitionPredictor(PaperPolicy())
    _calls(predictor, "abababababa")
    assert _proposed(predictor, "abc") == pytest.approx({"b": 6 / 8})
    assert _proposed(predictor, "abc", seconds=4.9) == {}


def test_the_paper_hardly_ever_fires_with_many_servers() -> None:
    """Among 30 servers: 42 exceptionless transitions are too few for τ = 0.6, 43 are enough."""
    servers = [ResourceId(f"r{number}") for number in range(30)]
    start_s = dict.fromkeys(servers, 10.0)
    for seen, proposals in ((42, 0), (43, 1)):
        row = Row(counts={servers[1]: float(seen)}, total=float(seen))
        chosen = PaperPolicy().choose(servers[0], session=Row(), principal=row, start_s=start_s)
        assert len(chosen) == proposals
        assert len(PricedPolicy().choose(servers[0], session=Row(), principal=row, start_s=start_s)) == 1


def test_the_papers_budget_bounds_a_step() -> None:
    predictor = TransitionPredictor(PaperPolicy(probability_threshold=0.2, budget=1))
    _calls(predictor, "abacabacabaca")
    assert len(_proposed(predictor, "abc")) == 1


# Bounds


def test_a_full_row_drops_its_rarest_successor_and_keeps_its_share() -> None:
    row, limits = Row(), GraphLimits(successors=2)
    for name in "bbbccd":
        row.add(ResourceId(name), limits=limits)
    assert set(row.counts) == {"b", "d"}
    assert (row.dropped, row.total) == (2.0, 6.0)


def test_counts_are_halved_when_a_row_is_full() -> None:
    row, limits = Row(), GraphLimits(row_capacity=8.0)
    for name in "bbbbbbb":
        row.add(ResourceId(name), limits=limits)
    row.add(ResourceId("c"), limits=limits)
    assert (row.counts, row.total) == ({"b": 3.5, "c": 0.5}, 4.0)


def test_new_habits_outweigh_old_ones() -> None:
    row, limits = Row(), GraphLimits(row_capacity=64.0)
    for name in "b" * 1_000 + "c" * 100:
        row.add(ResourceId(name), limits=limits)
    assert row.counts[ResourceId("c")] > 2 * row.counts[ResourceId("b")]


def test_states_are_bounded_and_the_least_recently_used_goes() -> None:
    graph = TransitionGraph(GraphLimits(states=3))
    for name in "abcad":
        graph.add(ResourceId(name), ResourceId("x"))
    assert list(graph) == ["c", "a", "d"]


def test_sessions_and_principals_are_bounded() -> None:
    predictor = TransitionPredictor(sessions=2, principals=2)
    for number in range(5):
        _calls(predictor, "ab", session=f"s{number}", principal=PrincipalId(f"p{number}"))
    assert list(predictor._tracks) == ["s3", "s4"]
    assert [bool(predictor.export(PrincipalId(f"p{number}"))) for number in range(5)] == [
        False,
        False,
        False,
        True,
        True,
    ]


# Persistence


def test_a_state_that_sessions_end_in_is_followed_by_nothing_as_often() -> None:
    predictor = TransitionPredictor()
    for number in range(8):
        _calls(predictor, "ab" if number % 2 else "a", session=f"s{number}")
        predictor.close_session(SessionId(f"s{number}"))
    _calls(predictor, "a", session="new")
    [best] = predictor.propose(principal=ME, session=SessionId("new"), start_s=_start_s("a", "b"))
    assert (best.before, best.steps_before) == (4.0, 8.0)
    assert best.probability == pytest.approx(0.5, abs=0.1)


def test_what_is_exported_is_plain_and_restores_to_the_same() -> None:
    predictor, later = TransitionPredictor(), TransitionPredictor()
    _calls(predictor, "abcabca")
    data = json.loads(json.dumps(predictor.export(ME)))
    later.restore(ME, data)
    assert later.export(ME) == predictor.export(ME)
    _calls(predictor, "a", session="t")
    _calls(later, "a", session="t")
    assert _proposed(predictor, "abc", session="t") == _proposed(later, "abc", session="t")


def test_restoring_more_than_fits_keeps_the_most_recent_states_and_the_commonest_successors() -> None:
    data = {f"r{state}": {f"r{to}": float(to) for to in range(10)} for state in range(10)}
    graph = TransitionGraph.restore(data, GraphLimits(states=2, successors=3))
    assert list(graph) == ["r8", "r9"]
    row = graph.row(ResourceId("r9"))
    assert (set(row.counts), row.total) == ({"r7", "r8", "r9"}, 45.0)


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf")])
def test_counts_that_are_none_are_not_restored(count: float) -> None:
    with pytest.raises(ValueError, match="a count that is none"):
        TransitionPredictor().restore(ME, {"a": {"b": count}})


def test_forgetting_a_principal_erases_it_and_its_sessions() -> None:
    predictor = TransitionPredictor()
    _calls(predictor, "aba")
    _calls(predictor, "aba", session="yours", principal=YOU)
    predictor.forget(ME)
    assert predictor.export(ME) == {}
    assert list(predictor._tracks) == ["yours"]


def test_what_does_not_learn_counts_for_the_session_alone() -> None:
    taught = TransitionPredictor()
    _calls(taught, "ab", session="before")
    predictor = TransitionPredictor(learns=False)
    predictor.restore(ME, taught.export(ME))
    _calls(predictor, "acaca")
    assert predictor.export(ME) == taught.export(ME)
    assert next(iter(_proposed(predictor, "abc"))) == "c"
    _calls(predictor, "a", session="later")
    assert next(iter(_proposed(predictor, "abc", session="later"))) == "b"
