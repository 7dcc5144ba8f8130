"""Steps as they are built from events."""

from __future__ import annotations

from headstart.core.actions import ActionKey
from headstart.core.events import CallAbandoned, CallArrived, CallReturned, LeaseRefusal, SessionClosed, SessionOpened
from headstart.core.scope import Belonging, ConversationId, Joined, Origin
from headstart.core.steps import Part, SessionSummary, Step
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted
from headstart.core.tracer import Tracer
from headstart.ids import CallId, GenerationId, PrincipalId, ResourceId, SandboxId, SessionId

ME, S, TALK = PrincipalId("me"), SessionId("s"), ConversationId("talk")


class Driven:
    """A tracer with an open session."""

    def __init__(self) -> None:
        self.tracer = Tracer()
        self.tracer.session_opened(SessionOpened(at_s=0.0, session=S, principal=ME, resources=()))

    def begins(self, name: str, at_s: float, *, session: SessionId | None = S) -> None:
        started = GenerationStarted(at_s=at_s, generation=GenerationId(name), principal=ME)
        self.tracer.generation_started(started, Belonging(conversation=TALK, principal=ME, session=session))

    def ends(self, name: str, at_s: float, *, written: int = 0) -> None:
        for _ in range(written):
            self.tracer.call_written(GenerationId(name))
        self.tracer.generation_ended(
            GenerationEnded(at_s=at_s, generation=GenerationId(name), outcome=GenerationOutcome.COMPLETED)
        )

    def arrives(self, call: str, at_s: float, generation: str | None = None) -> None:
        origin = None
        if generation is not None:
            origin = Origin(conversation=TALK, generation=GenerationId(generation), index=0, seen_s=at_s)
        event = CallArrived(
            at_s=at_s,
            call=CallId(call),
            session=S,
            resource=ResourceId("git"),
            tool="t",
            action=ActionKey("k"),
        )
        self.tracer.call_arrived(event, origin, ME)

    def granted(self, call: str, at_s: float) -> None:
        self.tracer.granted(CallId(call), SandboxId("sbx"), at_s)

    def returns(self, call: str, at_s: float, *, sent_s: float, answered_s: float) -> None:
        self.tracer.returned(CallReturned(at_s=at_s, call=CallId(call), sent_s=sent_s, answered_s=answered_s))

    def steps(self) -> list[Step]:
        return [each for each in self.tracer.take_finished() if isinstance(each, Step)]


def test_a_step_waits_for_every_call_that_it_wrote() -> None:
    d = Driven()
    d.begins("g", 0.0)
    d.ends("g", 1.0, written=2)
    d.arrives("a", 1.0, "g")
    d.granted("a", 1.0)
    d.returns("a", 2.0, sent_s=1.0, answered_s=2.0)
    assert d.steps() == []
    d.arrives("b", 2.0, "g")
    d.granted("b", 2.0)
    d.returns("b", 3.0, sent_s=2.0, answered_s=3.0)
    [step] = d.steps()
    assert (len(step.calls), step.wall_s) == (2, 3.0)


def test_of_parallel_calls_the_one_that_came_back_last_is_charged() -> None:
    d = Driven()
    d.begins("g", 0.0)
    d.ends("g", 1.0, written=2)
    d.arrives("quick", 1.0, "g")
    d.arrives("cold", 1.0, "g")
    d.granted("quick", 1.0)
    d.returns("quick", 4.0, sent_s=1.0, answered_s=4.0)
    d.granted("cold", 5.0)
    d.returns("cold", 6.0, sent_s=5.0, answered_s=6.0)
    [step] = d.steps()
    assert (step.seconds(Part.ENV_PREP), step.seconds(Part.SANDBOX_EXEC)) == (4.0, 1.0)
    assert sum(each.seconds for each in step.tiles) == step.wall_s


def test_an_answer_without_calls_is_a_finished_step() -> None:
    d = Driven()
    d.begins("g", 0.0)
    d.tracer.output_seen(GenerationId("g"), 0.5, text=True)
    d.ends("g", 1.0)
    [step] = d.steps()
    assert [(each.part, each.seconds) for each in step.tiles] == [(Part.CONTEXT, 0.5), (Part.DECODE, 0.5)]


def test_a_call_that_was_written_and_never_came_ends_with_the_next_generation() -> None:
    d = Driven()
    d.begins("g1", 0.0)
    d.ends("g1", 1.0, written=1)
    assert d.steps() == []
    d.begins("g2", 5.0)
    [step] = d.steps()
    assert (step.end_s, step.calls) == (1.0, ())


def test_a_refused_call_waited_and_an_abandoned_one_ran_until_it_was_given_up() -> None:
    d = Driven()
    d.arrives("refused", 0.0)
    d.tracer.refused(CallId("refused"), LeaseRefusal.START_FAILED, 2.0)
    d.arrives("left", 3.0)
    d.granted("left", 4.0)
    d.tracer.abandoned(CallAbandoned(at_s=6.0, call=CallId("left")))
    refused, left = d.steps()
    assert (refused.calls[0].refusal, refused.seconds(Part.ENV_PREP)) == (LeaseRefusal.START_FAILED, 2.0)
    assert (left.calls[0].abandoned, left.seconds(Part.ENV_PREP), left.seconds(Part.SANDBOX_EXEC)) == (True, 1.0, 2.0)


def test_times_that_are_a_little_out_of_order_still_tile() -> None:
    d = Driven()
    d.arrives("c", 1.0)
    d.granted("c", 1.2)
    d.returns("c", 2.0, sent_s=1.1, answered_s=2.5)
    [step] = d.steps()
    assert [(each.start_s, each.end_s) for each in step.tiles] == [(1.0, 1.2), (1.2, 2.0)]


def test_steps_of_an_unjoined_conversation_wait_for_the_join_a_few_at_most() -> None:
    d = Driven()
    for n in range(10):
        d.begins(f"g{n}", float(n), session=None)
        d.ends(f"g{n}", n + 0.5)
    assert [each.session for each in d.steps()] == [None, None]
    d.tracer.joined(Joined(conversation=TALK, session=S))
    assert [(each.session, each.number) for each in d.steps()] == [(S, n) for n in range(1, 9)]


def test_a_closed_session_leaves_its_last_summary_and_nothing_else() -> None:
    d = Driven()
    d.begins("g", 0.0)
    d.ends("g", 1.0, written=1)
    d.arrives("c", 1.0, "g")
    d.tracer.session_closed(SessionClosed(at_s=2.0, session=S))
    *_, summary = d.tracer.take_finished()
    assert isinstance(summary, SessionSummary)
    assert (summary.closed, summary.steps, summary.calls, summary.wall_s) == (True, 1, 1, 2.0)
    assert dict(summary.parts)[Part.ENV_PREP] == 1.0
    assert (d.tracer.open_steps, d.tracer.summary(S)) == (0, None)
    d.returns("c", 3.0, sent_s=2.0, answered_s=3.0)
    assert d.steps() == [], "late, and harmless"
