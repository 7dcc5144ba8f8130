"""The graph stays within its bounds, its totals add up, and it never makes anything surer than it was."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.core.transitions import GraphLimits, PaperPolicy, PricedPolicy, Row, TransitionGraph, TransitionPredictor
from headstart.ids import PrincipalId, ResourceId, SessionId

_LIMITS = GraphLimits(states=4, successors=3, row_capacity=16.0)
_names = st.sampled_from([ResourceId(name) for name in "abcdefgh"])
_paths = st.lists(_names, max_size=120)


@given(moves=st.lists(st.tuples(_names, _names), max_size=200))
def test_bounds_hold_and_totals_add_up(moves: list[tuple[ResourceId, ResourceId]]) -> None:
    graph = TransitionGraph(_LIMITS)
    for state, successor in moves:
        graph.add(state, successor)
        assert len(graph) <= _LIMITS.states
    for state in graph:
        row = graph.row(state)
        assert len(row.counts) <= _LIMITS.successors
        assert 0 < row.total < _LIMITS.row_capacity
        assert row.total == pytest.approx(sum(row.counts.values()) + row.dropped)


@given(path=_paths)
def test_a_bounded_row_is_never_surer_than_a_full_history(path: list[ResourceId]) -> None:
    """Without fading, a kept count is at most the true one, of the same total."""
    row, limits = Row(), GraphLimits(successors=2, row_capacity=1e9)
    for successor in path:
        row.add(successor, limits=limits)
    assert row.total == len(path)
    assert all(count <= path.count(successor) for successor, count in row.counts.items())


@given(moves=st.lists(st.tuples(_names, _names), max_size=100))
def test_export_and_restore_are_inverse(moves: list[tuple[ResourceId, ResourceId]]) -> None:
    graph = TransitionGraph(_LIMITS)
    for state, successor in moves:
        graph.add(state, successor)
    assert TransitionGraph.restore(graph.export(), _LIMITS).export() == graph.export()


@given(path=_paths, sessions=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_candidates_are_distributions_in_order(path: list[ResourceId], sessions: list[int]) -> None:
    start_s = dict.fromkeys((ResourceId(name) for name in "abcdefgh"), 9.0)
    me = PrincipalId("me")
    for policy in (PricedPolicy(limit=8, floor=0.0), PaperPolicy(probability_threshold=0.0, budget=8)):
        predictor = TransitionPredictor(policy, limits=_LIMITS)
        for number, resource in enumerate(path):
            session = SessionId(f"s{sessions[number % len(sessions)]}")
            predictor.observe_call(principal=me, session=session, resource=resource)
            found = predictor.propose(principal=me, session=session, start_s=start_s)
            probabilities = [successor.probability for successor in found]
            assert probabilities == sorted(probabilities, reverse=True)
            assert sum(probabilities) <= 1.0 + 1e-9
            assert resource not in {successor.resource for successor in found}
