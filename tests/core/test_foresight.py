"""From a router's candidate or a likely successor to a bet."""

from __future__ import annotations

from headstart.core.bets import BetKind, PredictorName
from headstart.core.bookmaker import Bookmaker
from headstart.core.events import ResourceRegistered, ToolProfile
from headstart.core.foresight import TRANSITIONS, Foresight, Proposal
from headstart.core.policy import BetRule
from headstart.core.pool import Estimates
from headstart.core.scope import Belonging, ConversationId
from headstart.core.stream import GenerationStarted, ToolCallOpened
from headstart.core.waste import WasteLimits
from headstart.ids import GenerationId, PrincipalId, ResourceId, SessionId

ME, S, TALK = PrincipalId("me"), SessionId("s"), ConversationId("talk")
GIT, EXCEL, FAR = ResourceId("git"), ResourceId("excel"), ResourceId("far")


def foresight(*, paper: bool = False, crowding: float = 0.0) -> tuple[Foresight, Bookmaker]:
    estimates = Estimates()
    books = Bookmaker(BetRule(), WasteLimits())
    made = Foresight(gamma=2.0, paper_prefetch=paper, books=books, estimates=estimates, crowding=lambda: crowding)
    for resource in (GIT, EXCEL, FAR):
        event = ResourceRegistered(
            at_s=0.0,
            principal=ME,
            resource=resource,
            tools=(ToolProfile(name=f"{resource}_do"),),
            remote=resource == FAR,
            start_s=8.0,
            start_cpu_s=6.0,
            memory_bytes=100,
        )
        estimates.registered(event)
        made.register(event)
    return made, books


def opened(made: Foresight, tool: str, *, session: SessionId | None = S, name: str = "g") -> list[Proposal]:
    belonging = Belonging(conversation=TALK, principal=ME, session=session)
    made.from_stream(GenerationStarted(at_s=0.0, generation=GenerationId(name), principal=ME), belonging)
    event = ToolCallOpened(at_s=1.0, generation=GenerationId(name), index=0, tool=tool)
    return made.from_stream(event, belonging)


def next_after(made: Foresight, *, session: SessionId | None = S, track: SessionId | None = None) -> list[Proposal]:
    return made.from_history(principal=ME, session=session, backer=session or TALK, track=track, now_s=5.0)


def test_a_candidate_becomes_a_bet_with_what_its_start_takes() -> None:
    made, books = foresight()
    [proposal] = opened(made, "git__git_do")
    bet = proposal.bet
    assert (bet.kind, bet.resource, bet.session, proposal.backer) == (BetKind.PREWARM, GIT, S, S)
    assert bet.hidden_s == books.hidden_s(ME, PredictorName("tool-name"), 8.0) < 8.0
    assert (bet.waste_cpu_s, bet.waste_byte_s) == (6.0, 100 * (bet.expires_s - 1.0))


def test_a_miss_takes_from_others_what_they_cannot_have_meanwhile() -> None:
    for crowding, miss_s in ((0.0, 0.0), (0.5, 3.0), (4.0, 6.0)):
        made, _ = foresight(crowding=crowding)
        [proposal] = opened(made, "git__git_do")
        assert proposal.bet.miss_s == miss_s


def test_a_conversation_without_a_session_is_its_own_backer() -> None:
    [proposal] = opened(foresight()[0], "git__git_do", session=None)
    assert (proposal.bet.session, proposal.backer) == (None, TALK)


def test_nothing_is_proposed_for_a_remote_server() -> None:
    made, _ = foresight()
    assert opened(made, "far__far_do") == []


def test_habits_become_prefetch_bets_with_their_evidence() -> None:
    made, _ = foresight()
    for n in range(5):
        for resource in (GIT, EXCEL):
            made.called(ME, SessionId(f"before{n}"), resource)
    made.called(ME, S, GIT)
    [proposal] = next_after(made)
    assert (proposal.bet.kind, proposal.bet.predictor, proposal.bet.resource) == (BetKind.PREFETCH, TRANSITIONS, EXCEL)
    assert proposal.bet.because.startswith("after git")
    assert not proposal.trusted


def test_kin_lends_its_place_but_not_its_name() -> None:
    made, _ = foresight()
    for n in range(5):
        for resource in (GIT, EXCEL):
            made.called(ME, SessionId(f"before{n}"), resource)
    made.called(ME, S, GIT)
    [proposal] = next_after(made, session=None, track=S)
    assert (proposal.bet.resource, proposal.bet.session, proposal.backer) == (EXCEL, None, TALK)


def test_the_papers_policy_decides_for_itself() -> None:
    made, _ = foresight(paper=True)
    for n in range(9):
        for resource in (GIT, EXCEL):
            made.called(ME, SessionId(f"before{n}"), resource)
    made.called(ME, S, GIT)
    assert [each.trusted for each in next_after(made)] == [True]


def test_a_predictor_that_speaks_long_before_the_call_bets_for_longer() -> None:
    made, books = foresight()
    [short] = opened(made, "git__git_do")
    for _ in range(32):
        books.heard(short.bet, S, 0.0)
        books.called([S], GIT, 40.0)
    [long] = opened(made, "git__git_do", name="later")
    assert short.bet.expires_s == 1.0 + 8.0 + 10.0
    assert long.bet.expires_s == 1.0 + 8.0 + 60.0
