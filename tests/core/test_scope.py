"""Which conversation a stream belongs to, and which session a conversation belongs to."""

from __future__ import annotations

import itertools

import pytest

from headstart.core.actions import ActionKey
from headstart.core.events import CallArrived
from headstart.core.scope import Arrival, Belonging, Scope, ScopeLimits
from headstart.core.stream import GenerationStarted
from headstart.ids import CallId, GenerationId, PrincipalId, ResourceId, SessionId

ME, YOU = PrincipalId("me"), PrincipalId("you")
S1, S2, S3 = SessionId("s1"), SessionId("s2"), SessionId("s3")


class Talk:
    """A scope, told of generations and calls in few words."""

    def __init__(self, limits: ScopeLimits | None = None) -> None:
        self.scope = Scope(limits)
        self.now_s = 0.0
        self.numbers = itertools.count(1)
        self.wire_ids = itertools.count(1)

    def open(self, *sessions: SessionId, principal: PrincipalId = ME) -> None:
        for session in sessions:
            self.scope.session_opened(session, principal)

    def generation(
        self,
        *calls: str,
        session: SessionId | None = None,
        principal: PrincipalId = ME,
        hints: tuple[str, ...] = (),
        opening: str = "alike",
        answers: tuple[str, ...] = (),
        wire_ids: tuple[str, ...] | None = None,
    ) -> tuple[Belonging, tuple[str, ...]]:
        """Stream a generation that writes `calls`; return where it belongs and its calls' ids."""
        generation = GenerationId(f"g{next(self.numbers)}")
        belonging = self.scope.generation_started(
            GenerationStarted(
                at_s=self.now_s,
                generation=generation,
                principal=principal,
                session=session,
                hints=hints,
                opening=opening,
                answered_calls=answers,
            )
        )
        ids = wire_ids or tuple(f"call_{next(self.wire_ids)}" for _ in calls)
        for index, (call, wire_id) in enumerate(zip(calls, ids, strict=True)):
            self.scope.tool_call_closed(
                generation, index=index, wire_id=wire_id, action=ActionKey(call), at_s=self.now_s
            )
        self.scope.generation_ended(generation)
        return belonging, ids

    def arrives(self, call: str, session: SessionId) -> Arrival:
        return self.scope.call_arrived(
            CallArrived(
                at_s=self.now_s,
                call=CallId(f"c{next(self.numbers)}"),
                session=session,
                resource=ResourceId("git"),
                tool="t",
                action=ActionKey(call),
            )
        )


def test_a_generation_that_names_its_session_is_that_sessions_at_once() -> None:
    talk = Talk()
    talk.open(S1)
    belonging, _ = talk.generation(session=S1)
    assert belonging.session == S1


def test_a_name_that_only_the_model_url_uses_gives_way_to_the_session_that_calls() -> None:
    talk = Talk()
    talk.open(S1)
    named = SessionId("run-1")
    assert talk.generation("log", session=named)[0].session == named
    assert talk.arrives("log", S1).joined is not None
    assert talk.generation(session=named)[0].session == S1


def test_the_same_call_in_a_stream_and_at_the_gateway_joins_conversation_and_session() -> None:
    talk = Talk()
    talk.open(S1)
    first, ids = talk.generation("log")
    assert first.session is None
    arrival = talk.arrives("log", S1)
    assert arrival.joined is not None
    assert (arrival.joined.conversation, arrival.joined.session) == (first.conversation, S1)
    then, _ = talk.generation(answers=ids)
    assert (then.conversation, then.session) == (first.conversation, S1)


def test_a_call_of_another_principal_joins_nothing() -> None:
    talk = Talk()
    talk.open(S1, principal=YOU)
    talk.generation("log", principal=ME)
    assert talk.arrives("log", S1) == Arrival()


def test_a_call_that_no_stream_showed_joins_nothing() -> None:
    talk = Talk()
    talk.open(S1)
    talk.generation("log")
    assert talk.arrives("status", S1) == Arrival()


def test_a_call_that_arrives_after_the_window_joins_nothing() -> None:
    talk = Talk(ScopeLimits(window_s=10.0))
    talk.open(S1)
    talk.generation("log")
    talk.now_s = 11.0
    assert talk.arrives("log", S1) == Arrival()


def test_two_conversations_that_begin_alike_are_kept_apart() -> None:
    talk = Talk()
    talk.open(S1, S2)
    one, one_ids = talk.generation("log", opening="alike")
    two, two_ids = talk.generation("diff", opening="alike")
    assert one.conversation != two.conversation
    talk.arrives("diff", S2)
    talk.arrives("log", S1)
    assert talk.generation(answers=one_ids)[0].session == S1
    assert talk.generation(answers=two_ids)[0].session == S2


def test_an_equal_call_of_two_conversations_joins_neither_until_one_makes_a_call_of_its_own() -> None:
    talk = Talk()
    talk.open(S1, S2)
    one, one_ids = talk.generation("log")
    two, two_ids = talk.generation("log")
    assert talk.arrives("log", S1).joined is None
    assert talk.arrives("log", S2).joined is None
    again, _ = talk.generation("diff", answers=one_ids)
    assert again.conversation == one.conversation
    joined = talk.arrives("diff", S2).joined
    assert joined is not None
    assert joined.conversation == one.conversation
    assert talk.generation(answers=two_ids)[0].conversation == two.conversation
    assert talk.generation(answers=two_ids)[0].session is None


def test_a_shared_opening_is_a_hint_and_never_a_join() -> None:
    talk = Talk()
    talk.open(S1)
    talk.generation("log", opening="alike")
    talk.arrives("log", S1)
    stranger, _ = talk.generation(opening="alike")
    assert (stranger.session, stranger.kin) == (None, S1)
    assert talk.generation(opening="different")[0].kin is None


def test_kin_is_the_latest_that_began_alike_however_many_did() -> None:
    talk = Talk()
    for n in range(200):
        session = SessionId(f"rollout{n}")
        talk.open(session)
        talk.generation(f"call{n}")
        talk.arrives(f"call{n}", session)
    assert talk.generation()[0].kin == "rollout199"


def test_one_connection_may_carry_several_conversations() -> None:
    talk = Talk()
    talk.open(S1)
    one, one_ids = talk.generation("log", opening="one")
    two, two_ids = talk.generation("diff", opening="two")
    talk.arrives("log", S1)
    talk.arrives("diff", S1)
    assert one.conversation != two.conversation
    assert talk.generation(answers=one_ids)[0].session == S1
    assert talk.generation(answers=two_ids)[0].session == S1


def test_a_conversation_with_a_new_session_per_call_has_no_session_to_prepare_for() -> None:
    talk = Talk()
    talk.open(S1)
    first, ids = talk.generation("log")
    talk.arrives("log", S1)
    second, ids = talk.generation("diff", answers=ids)
    assert second.session == S1
    talk.open(S2)
    joined = talk.arrives("diff", S2).joined
    assert joined is not None
    assert joined.session == S2
    third, ids = talk.generation("blame", answers=ids)
    assert (third.conversation, third.session) == (first.conversation, None)
    talk.open(S3)
    assert talk.arrives("blame", S3).origin is not None


def test_a_conversation_follows_its_client_to_a_new_session_when_the_old_one_closed() -> None:
    talk = Talk()
    talk.open(S1)
    _, ids = talk.generation("log")
    talk.arrives("log", S1)
    talk.scope.session_closed(S1)
    talk.open(S2)
    _, ids = talk.generation("diff", answers=ids)
    talk.arrives("diff", S2)
    assert talk.generation(answers=ids)[0].session == S2


def test_a_call_is_taken_for_its_own_sessions_conversation_before_a_strangers() -> None:
    talk = Talk()
    talk.open(S1)
    mine, ids = talk.generation("log")
    talk.arrives("log", S1)
    talk.generation("diff", answers=ids)
    talk.generation("diff", opening="stranger")
    arrival = talk.arrives("diff", S1)
    assert arrival.joined is None
    assert arrival.origin is not None
    assert arrival.origin.conversation == mine.conversation


def test_equal_calls_of_one_conversation_are_matched_in_their_order() -> None:
    talk = Talk()
    talk.open(S1)
    talk.generation("log", "log")
    origins = [talk.arrives("log", S1).origin for _ in range(3)]
    assert [origin.index if origin else None for origin in origins] == [0, 1, None]


def test_ids_that_the_client_sent_join_generations() -> None:
    talk = Talk()
    assert talk.generation(hints=("metadata.thread_id=7",)) == talk.generation(hints=("metadata.thread_id=7",))
    one, _ = talk.generation(hints=("x-session-id=abc",))
    two, _ = talk.generation(hints=("x-session-id=abc",), opening="other")
    three, _ = talk.generation(hints=("x-session-id=def",))
    assert one.conversation == two.conversation != three.conversation


@pytest.mark.parametrize("hint", ["user=ann", "safety_identifier=ann", "metadata.user_id=ann", "metadata.run=7"])
def test_a_person_or_a_run_is_not_a_conversation(hint: str) -> None:
    talk = Talk()
    assert talk.generation(hints=(hint,))[0].conversation != talk.generation(hints=(hint,))[0].conversation


def test_call_ids_that_are_not_unique_join_only_what_began_alike() -> None:
    talk = Talk()
    one, ids = talk.generation("log", opening="one", wire_ids=("0",))
    two, _ = talk.generation("diff", opening="two", wire_ids=("0",))
    assert talk.generation(answers=ids, opening="one")[0].conversation == one.conversation
    assert talk.generation(answers=ids, opening="two")[0].conversation == two.conversation
    stranger, _ = talk.generation(answers=ids, opening="three")
    assert stranger.conversation not in {one.conversation, two.conversation}


def test_everything_is_bounded_and_forgotten_in_time() -> None:
    talk = Talk(ScopeLimits(conversations=10, forget_s=100.0))
    talk.open(S1)
    for n in range(1_000):
        talk.generation(f"call{n}", hints=(f"x={n}",))
        talk.arrives(f"call{n}", S1)
    assert len(talk.scope) == 10
    talk.now_s = 101.0
    talk.generation()
    assert len(talk.scope) == 1
    talk.scope.session_closed(S1)
    talk.scope.forget(ME)
    indexes = ("_conversations", "_of_generation", "_of_id", "_of_action", "_of_session", "_principals")
    assert {name: len(getattr(talk.scope, name)) for name in indexes} == dict.fromkeys(indexes, 0)
