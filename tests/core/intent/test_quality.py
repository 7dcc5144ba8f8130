"""The router on sentences that were not used to tune it; the figures are a floor, not a wish."""

import pytest

from headstart.bench.labelled import Example, examples, servers
from headstart.core.intent import KeywordRouter
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, TextArrived
from headstart.ids import GenerationId, PrincipalId

ME = PrincipalId("me")


def _named(router: KeywordRouter, example: Example, generation: GenerationId) -> set[str]:
    events = (
        GenerationStarted(at_s=0.0, generation=generation, principal=ME, text=example.request),
        TextArrived(at_s=0.0, generation=generation, text=example.plan),
        GenerationEnded(at_s=0.0, generation=generation, outcome=GenerationOutcome.COMPLETED),
    )
    return {candidate.resource for event in events for candidate in router.observe(event)}


def _judge(gamma: float) -> tuple[float, float]:
    router = KeywordRouter(gamma=gamma)
    for registration in servers(ME):
        router.register(registration)
    steps = [(_named(router, e, GenerationId(f"g{n}")), e.server) for n, e in enumerate(examples(held_out=True))]
    right = sum(server in named for named, server in steps)
    return right / sum(len(named) for named, _ in steps), right / sum(bool(server) for _, server in steps)


def test_two_distinct_keywords_are_seldom_wrong_and_find_most_servers() -> None:
    precision, recall = _judge(gamma=2)
    assert precision >= 0.9
    assert recall >= 0.55


@pytest.mark.parametrize(("lower", "higher"), [(1, 2), (2, 3)])
def test_a_higher_threshold_trades_recall_for_precision(lower: float, higher: float) -> None:
    (precise_less, recall_more), (precise_more, recall_less) = _judge(lower), _judge(higher)
    assert precise_more >= precise_less
    assert recall_less < recall_more


def test_the_examples_name_no_tool() -> None:
    tools = {tool.name for server in servers(ME) for tool in server.tools if "_" in tool.name}
    for example in (*examples(held_out=True), *examples(held_out=False)):
        assert not any(tool in example.request for tool in tools)
