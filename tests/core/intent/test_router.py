# pyright: reportPrivateUsage=false
# (what is held on to, and for how long, is part of what is tested)

from dataclasses import replace

import pytest

from headstart.core.bets import PredictorName
from headstart.core.events import ResourceRegistered, ToolProfile
from headstart.core.intent import Candidate, IntentRouter, KeywordRouter, ToolNameRouter, Union, default_router
from headstart.core.intent.candidates import KEYWORD, KEYWORD_REQUEST, KEYWORD_RESULTS, TOOL_NAME
from headstart.core.stream import (
    GenerationEnded,
    GenerationOutcome,
    GenerationStarted,
    ModelEvent,
    TextArrived,
    TextKind,
    ToolCallArgumentsArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import GenerationId, PrincipalId, ResourceId, SessionId

ME = PrincipalId("me")
G = GenerationId("g1")


def _registered(
    name: str, *tools: str, keywords: tuple[str, ...] = (), principal: PrincipalId = ME
) -> ResourceRegistered:
    return ResourceRegistered(
        at_s=0.0,
        principal=principal,
        resource=ResourceId(name),
        tools=tuple(ToolProfile(name=tool) for tool in tools),
        keywords=keywords,
    )


def _started(text: str = "", *, answered: tuple[str, ...] = (), principal: PrincipalId = ME) -> GenerationStarted:
    return GenerationStarted(
        at_s=1.0, generation=G, principal=principal, session=SessionId("s"), text=text, answered_calls=answered
    )


def _text(text: str, kind: TextKind = TextKind.VISIBLE) -> TextArrived:
    return TextArrived(at_s=2.0, generation=G, text=text, kind=kind)


def _opened(tool: str, index: int = 0) -> ToolCallOpened:
    return ToolCallOpened(at_s=3.0, generation=G, index=index, tool=tool)


_ENDED = GenerationEnded(at_s=9.0, generation=G, outcome=GenerationOutcome.COMPLETED)


def _sheets(router: IntentRouter) -> None:
    router.register(_registered("sheets", "create_workbook", keywords=("workbook", "pivot", "ledger", "audit")))


def _said(router: IntentRouter, *events: ModelEvent) -> list[tuple[str, str]]:
    return [(str(c.resource), str(c.predictor)) for event in events for c in router.observe(event)]


@pytest.fixture
def keyword() -> KeywordRouter:
    router = KeywordRouter()
    _sheets(router)
    return router


def test_the_request_alone_can_be_enough(keyword: KeywordRouter) -> None:
    [candidate] = keyword.observe(_started("a pivot in the workbook"))
    assert candidate == Candidate(
        at_s=1.0,
        generation=G,
        principal=ME,
        session=SessionId("s"),
        resource=ResourceId("sheets"),
        predictor=KEYWORD_REQUEST,
        probability=2.5 / 4.5,
        evidence=("pivot", "workbook"),
    )
    assert candidate.because == "keywords: pivot, workbook"


def test_a_server_that_is_not_looked_for_is_not_found_and_takes_nothing_from_the_others(keyword: KeywordRouter) -> None:
    alone = keyword.observe(_started("a pivot in the workbook"))
    keyword.observe(_ENDED)
    same = _registered("other", "create_workbook", keywords=("workbook", "pivot", "ledger", "audit"))
    keyword.register(replace(same, looked_for=False))
    assert keyword.observe(_started("a pivot in the workbook")) == alone


def test_hits_of_the_request_and_the_output_add_up(keyword: KeywordRouter) -> None:
    assert _said(keyword, _started("a pivot, please"), _text("The work"), _text("book"), _text(" first")) == [
        ("sheets", KEYWORD)
    ]


def test_reasoning_counts_like_visible_text(keyword: KeywordRouter) -> None:
    assert _said(keyword, _started(), _text("pivot workbook ", TextKind.REASONING)) == [("sheets", KEYWORD)]


def test_a_word_does_not_run_on_from_reasoning_into_visible_text(keyword: KeywordRouter) -> None:
    events = (_started("workbook"), _text("piv", TextKind.REASONING), _text("ot ", TextKind.VISIBLE))
    assert _said(keyword, *events) == []


def test_the_last_word_before_a_tool_call_counts(keyword: KeywordRouter) -> None:
    assert _said(keyword, _started("workbook"), _text("a pivot")) == []
    assert _said(keyword, _opened("other")) == [("sheets", KEYWORD)]


def test_the_last_word_of_a_generation_counts(keyword: KeywordRouter) -> None:
    assert _said(keyword, _started("workbook"), _text("a pivot"), _ENDED) == [("sheets", KEYWORD)]


def test_tool_results_weigh_half_and_are_named_so(keyword: KeywordRouter) -> None:
    assert _said(keyword, _started("workbook pivot", answered=("call_1",))) == []
    assert _said(keyword, _started("workbook pivot ledger audit", answered=("call_1",))) == [
        ("sheets", KEYWORD_RESULTS)
    ]


def test_only_the_newest_of_long_results_are_read(keyword: KeywordRouter) -> None:
    keywords, filling = "workbook pivot ledger audit ", "lorem " * 1_000
    assert _said(keyword, _started(keywords + filling, answered=("call_1",))) == []
    assert _said(keyword, _started(filling + keywords, answered=("call_1",))) == [("sheets", KEYWORD_RESULTS)]


def test_tool_names_in_the_request_are_only_keywords() -> None:
    router = default_router(gamma=3)
    _sheets(router)
    assert all(not candidate.certain for candidate in router.observe(_started("use create_workbook with pivot")))


def test_arguments_are_not_scanned(keyword: KeywordRouter) -> None:
    piece = ToolCallArgumentsArrived(at_s=4.0, generation=G, index=0, text='{"q": "workbook pivot"}')
    assert _said(keyword, _started(), piece, _ENDED) == []


def test_text_of_an_unknown_generation_is_ignored(keyword: KeywordRouter) -> None:
    assert _said(keyword, _text("workbook pivot "), _ENDED) == []


def test_a_new_server_is_known_to_the_next_generation(keyword: KeywordRouter) -> None:
    keyword.observe(_started())
    keyword.register(_registered("music", keywords=("violin", "sonata")))
    assert _said(keyword, _text("violin sonata ")) == []
    assert _said(keyword, _started("violin sonata")) == [("music", KEYWORD_REQUEST)]


def test_registering_the_same_again_rebuilds_nothing(keyword: KeywordRouter) -> None:
    keyword.observe(_started())
    built = keyword._lexicons[ME]
    _sheets(keyword)
    keyword.observe(_started())
    assert keyword._lexicons[ME] is built


def test_registering_many_servers_builds_the_lexicon_once() -> None:
    router = KeywordRouter()
    for number in range(50):
        router.register(_registered(f"server{number}", keywords=(f"word{number}x",)))
    assert router._lexicons == {}
    router.observe(_started())
    built = router._lexicons[ME]
    router.observe(_started())
    assert router._lexicons[ME] is built


def test_principals_with_the_same_servers_share_a_lexicon_and_no_others(keyword: KeywordRouter) -> None:
    you, they = PrincipalId("you"), PrincipalId("they")
    keyword.register(
        _registered("sheets", "create_workbook", keywords=("workbook", "pivot", "ledger", "audit"), principal=you)
    )
    keyword.register(_registered("music", keywords=("violin", "sonata"), principal=they))
    assert _said(keyword, _started("workbook pivot violin sonata", principal=they)) == [("music", KEYWORD_REQUEST)]
    keyword.observe(_started(principal=ME))
    keyword.observe(_started(principal=you))
    assert keyword._lexicons[you] is keyword._lexicons[ME] is not keyword._lexicons[they]


def test_generations_whose_end_is_lost_do_not_pile_up(keyword: KeywordRouter) -> None:
    for number in range(5_000):
        keyword.observe(GenerationStarted(at_s=0.0, generation=GenerationId(f"lost{number}"), principal=ME))
    assert len(keyword._streams) == 4_096


def test_a_tool_calls_name_is_certain_and_told_once() -> None:
    router = ToolNameRouter()
    _sheets(router)
    router.observe(_started())
    [candidate] = router.observe(_opened("mcp__headstart__sheets__create_workbook"))
    assert (candidate.resource, candidate.tool, candidate.certain) == ("sheets", "create_workbook", True)
    assert candidate.predictor == TOOL_NAME
    assert candidate.because == "tool name: mcp__headstart__sheets__create_workbook"
    closed = ToolCallClosed(at_s=4.0, generation=G, index=0, tool="sheets__create_workbook", arguments="{}")
    assert router.observe(closed) == ()


def test_a_call_that_is_only_seen_closed_is_told_too() -> None:
    router = ToolNameRouter()
    _sheets(router)
    router.observe(_started())
    closed = ToolCallClosed(at_s=4.0, generation=G, index=2, tool="sheets__create_workbook", arguments="{}")
    assert [candidate.certain for candidate in router.observe(closed)] == [True]


def test_a_name_that_means_nothing_is_not_told() -> None:
    router = ToolNameRouter()
    _sheets(router)
    router.observe(_started())
    assert router.observe(_opened("Bash")) == ()


class _Scripted:
    """A router that says what it is told to: stands where a semantic one will."""

    def __init__(self, name: str, *probabilities: float) -> None:
        self._name = PredictorName(name)
        self._probabilities = list(probabilities)
        self.confirmed: list[tuple[GenerationId, ResourceId]] = []

    def register(self, event: ResourceRegistered) -> None: ...

    def observe(self, event: ModelEvent) -> tuple[Candidate, ...]:
        if not isinstance(event, TextArrived) or not self._probabilities:
            return ()
        probability = self._probabilities.pop(0)
        candidate = Candidate(
            at_s=event.at_s,
            generation=event.generation,
            principal=ME,
            session=None,
            resource=ResourceId("sheets"),
            predictor=self._name,
            probability=probability,
            certain=probability == 1.0,
        )
        return (candidate,) if probability else ()

    def confirm(self, *, generation: GenerationId, resource: ResourceId) -> None:
        self.confirmed.append((generation, resource))


def test_the_first_credible_signal_wins() -> None:
    union = Union((_Scripted("slow", 0.0, 0.5), _Scripted("fast", 0.5, 0.0)))
    assert _said(union, _text("a"), _text("b")) == [("sheets", "fast")]


def test_what_is_worth_more_gets_through_and_what_is_not_does_not() -> None:
    union = Union((_Scripted("a", 0.5, 0.4, 0.5, 0.7, 1.0, 1.0),))
    probabilities = [c.probability for _ in range(6) for c in union.observe(_text("x"))]
    assert probabilities == [0.5, 0.7, 1.0]


def test_the_union_forgets_a_generation_at_its_end() -> None:
    union = Union((_Scripted("a", 0.5, 0.5),))
    assert _said(union, _text("x"), _ENDED, _text("x")) == [("sheets", "a"), ("sheets", "a")]


def test_every_router_is_told_what_came_true() -> None:
    routers = _Scripted("a"), _Scripted("b")
    Union(routers).confirm(generation=G, resource=ResourceId("sheets"))
    assert [router.confirmed for router in routers] == [[(G, ResourceId("sheets"))]] * 2


def test_a_tool_name_after_keywords_is_told_as_certainty() -> None:
    router = default_router()
    _sheets(router)
    said = _said(router, _started("workbook pivot"), _text("ledger audit "), _opened("sheets__create_workbook"))
    assert said == [("sheets", KEYWORD_REQUEST), ("sheets", KEYWORD), ("sheets", TOOL_NAME)]


def test_union_and_routers_fit_the_seam() -> None:
    routers: tuple[IntentRouter, ...] = (default_router(), KeywordRouter(), ToolNameRouter(), _Scripted("s"))
    Union(routers).register(_registered("music", keywords=("violin",)))
