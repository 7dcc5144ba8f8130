"""The broker: streams, bets and calls meeting."""

from __future__ import annotations

import pytest

from headstart.core.actions import action_key
from headstart.core.bets import BetKind, PredictorName
from headstart.core.broker import Broker, BrokerPolicy
from headstart.core.events import (
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    Instruction,
    LimitCpu,
    Priority,
    RaisePriority,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxMeasured,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopReason,
    StopSandbox,
    TimerFired,
    ToolProfile,
)
from headstart.core.foresight import Foresight
from headstart.core.pool import Mode, PoolPolicy
from headstart.core.steps import Part, Preparation, SessionSummary, Step
from headstart.core.stream import (
    GenerationEnded,
    GenerationOutcome,
    GenerationStarted,
    TextArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import CallId, GenerationId, PrincipalId, ResourceId, SandboxId, SequentialIds, SessionId

ME = PrincipalId("me")
EXCEL, GIT = ResourceId("excel"), ResourceId("git")
S = SessionId("s")
TEXTS = {
    EXCEL: ("pivot_table", "make a pivot table in a spreadsheet workbook"),
    GIT: ("commit_log", "show the commits of a repository branch"),
}


class Driven:
    """A broker with two servers and one open session."""

    def __init__(self, policy: BrokerPolicy | None = None, *, memory_bytes: int = 100_000_000) -> None:
        self.broker = Broker(policy or BrokerPolicy(), SequentialIds())
        for resource, (tool, text) in TEXTS.items():
            profile = ToolProfile(name=tool, description=text, read_only=True)
            self.tell(
                ResourceRegistered(
                    at_s=0.0,
                    principal=ME,
                    resource=resource,
                    tools=(profile,),
                    start_s=1.0,
                    start_cpu_s=1.0,
                    memory_bytes=memory_bytes,
                )
            )
        self.tell(SessionOpened(at_s=0.0, session=S, principal=ME, resources=tuple(TEXTS)))

    def tell(self, event: Event) -> list[Instruction]:
        out = self.broker.handle(event)
        self.broker.check_invariants()
        return out

    def generation(self, name: str, at_s: float, *, session: SessionId | None = S, text: str = "") -> list[Instruction]:
        return self.tell(
            GenerationStarted(
                at_s=at_s, generation=GenerationId(name), principal=ME, session=session, text=text, opening="hello"
            )
        )

    def text(self, name: str, at_s: float, text: str) -> list[Instruction]:
        return self.tell(TextArrived(at_s=at_s, generation=GenerationId(name), text=text))

    def opens_call(self, name: str, at_s: float, resource: ResourceId = EXCEL) -> list[Instruction]:
        tool = f"{resource}__{TEXTS[resource][0]}"
        return self.tell(ToolCallOpened(at_s=at_s, generation=GenerationId(name), index=0, tool=tool))

    def closes_call(self, name: str, at_s: float, resource: ResourceId = EXCEL) -> list[Instruction]:
        tool = f"{resource}__{TEXTS[resource][0]}"
        generation = GenerationId(name)
        out = self.tell(ToolCallClosed(at_s=at_s, generation=generation, index=0, tool=tool, arguments="{}"))
        return out + self.tell(GenerationEnded(at_s=at_s, generation=generation, outcome=GenerationOutcome.COMPLETED))

    def call(
        self, name: str, at_s: float, resource: ResourceId = EXCEL, *, session: SessionId = S
    ) -> list[Instruction]:
        tool = TEXTS[resource][0]
        return self.tell(
            CallArrived(
                at_s=at_s,
                call=CallId(name),
                session=session,
                resource=resource,
                tool=tool,
                action=action_key(resource, tool, "{}"),
                read_only=True,
            )
        )

    def returns(self, name: str, at_s: float) -> list[Instruction]:
        return self.tell(CallReturned(at_s=at_s, call=CallId(name), sent_s=at_s - 0.2, answered_s=at_s - 0.1))

    def ready(
        self, sandbox: str, at_s: float, *, cpu_s: float = 1.0, memory_bytes: int = 100_000_000
    ) -> list[Instruction]:
        return self.tell(
            SandboxBecameReady(
                at_s=at_s, sandbox=SandboxId(sandbox), start_s=1.0, cpu_s=cpu_s, memory_bytes=memory_bytes
            )
        )

    def record(self, predictor: str) -> tuple[int, int, int]:
        found = self.broker.statistics(0.0).predictors.of(PredictorName(predictor))
        return found.hits, found.misses, found.voided


def starts(instructions: list[Instruction]) -> list[StartSandbox]:
    return [each for each in instructions if isinstance(each, StartSandbox)]


def limits(instructions: list[Instruction]) -> list[float | None]:
    return [each.cpu_s for each in instructions if isinstance(each, LimitCpu)]


def test_words_in_the_stream_start_a_sandbox_and_its_call_does_not_wait() -> None:
    d = Driven()
    d.generation("g", 1.0)
    out = d.text("g", 1.1, "I will build a pivot table in the workbook ")
    [start] = starts(out)
    assert (start.resource, start.priority, start.cause.kind) == (EXCEL, Priority.PREDICTED, BetKind.PREWARM)
    assert start.cause.because.startswith("keywords: ")
    d.ready(start.sandbox, 2.1)
    d.closes_call("g", 3.0)
    assert GrantLease(call=CallId("c"), sandbox=start.sandbox) in d.call("c", 3.0)
    assert d.record("keyword") == (1, 0, 0)


def test_a_guess_that_becomes_a_call_being_written_gets_the_machine() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    assert RaisePriority(sandbox=start.sandbox) in d.opens_call("g", 1.2)


def test_a_call_being_written_does_not_wait_behind_a_guess() -> None:
    d = Driven(BrokerPolicy(pool=PoolPolicy(starts_at_once=1)))
    d.generation("g", 1.0)
    assert starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))  # takes the only slot
    [start] = starts(d.opens_call("g", 1.2, GIT))
    assert (start.resource, start.priority) == (GIT, Priority.CONFIGURED)


def test_a_tool_calls_name_is_enough() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.opens_call("g", 1.1))
    assert (start.resource, start.cause.predictor) == (EXCEL, "tool-name")


def test_a_conversation_that_nobody_knows_prepares_unleased_and_the_call_claims_it() -> None:
    d = Driven()
    d.generation("g", 1.0, session=None)
    [start] = starts(d.opens_call("g", 1.1))
    assert start.session is None
    d.ready(start.sandbox, 2.1)
    d.closes_call("g", 2.2)
    assert GrantLease(call=CallId("c"), sandbox=start.sandbox) in d.call("c", 2.3)


def test_habits_prefetch_the_next_server_while_the_call_runs() -> None:
    d = Driven()
    for n in range(6):
        session = SessionId(f"habit{n}")
        at_s = 10.0 * n
        d.tell(SessionOpened(at_s=at_s, session=session, principal=ME, resources=tuple(TEXTS)))
        d.call(f"a{n}", at_s, GIT, session=session)
        d.call(f"b{n}", at_s + 1, EXCEL, session=session)
        d.tell(SessionClosed(at_s=at_s + 2, session=session))
        for each in d.broker.statistics(at_s).pool.sandboxes:
            d.tell(SandboxStopped(at_s=at_s + 3, sandbox=each.id))
    out = d.call("c", 100.0, GIT)
    assert [(each.resource, each.priority) for each in starts(out)] == [
        (GIT, Priority.CLAIMED),
        (EXCEL, Priority.PREDICTED),
    ]
    assert starts(out)[1].cause.kind is BetKind.PREFETCH


def test_no_mode_but_predictive_starts_anything_from_words() -> None:
    d = Driven(BrokerPolicy(pool=PoolPolicy(mode=Mode.ON_DEMAND)))
    d.generation("g", 1.0)
    assert starts(d.text("g", 1.1, "I will build a pivot table in the workbook ")) == []
    assert starts(d.opens_call("g", 1.2)) == []


def test_a_session_is_over_for_its_trace_once_its_last_guess_is_told() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    d.ready(start.sandbox, 2.1)
    d.broker.take_finished()
    d.tell(SessionClosed(at_s=5.0, session=S))
    assert not any(isinstance(one, Preparation | SessionSummary) for one in d.broker.take_finished())
    d.tell(SandboxStopped(at_s=5.2, sandbox=start.sandbox, cpu_s=0.7))
    told, summary = d.broker.take_finished()
    assert isinstance(told, Preparation)
    assert isinstance(summary, SessionSummary)
    assert (told.session, told.wasted_cpu_s) == (S, summary.wasted_cpu_s)
    assert (summary.closed, summary.last_s, summary.wasted_cpu_s > 0.0) == (True, 5.0, True)


def test_a_guess_that_another_session_has_claimed_holds_up_no_closed_one_for_ever() -> None:
    d = Driven()
    other = SessionId("other")
    d.tell(SessionOpened(at_s=0.5, session=other, principal=ME, resources=tuple(TEXTS)))
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    assert starts(d.call("c", 1.2, session=other)) == [], "it is given what is starting already"
    d.tell(SessionClosed(at_s=1.5, session=S))
    d.ready(start.sandbox, 2.1)
    closed = [one.session for one in d.broker.take_finished() if isinstance(one, SessionSummary)]
    assert (closed, d.broker.summary(S)) == ([S], None)


def test_a_session_that_opens_again_while_its_guesses_are_stopped_begins_anew() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    d.ready(start.sandbox, 2.1)
    d.tell(SessionClosed(at_s=5.0, session=S))
    d.broker.take_finished()
    d.tell(SessionOpened(at_s=5.1, session=S, principal=ME, resources=tuple(TEXTS)))
    [before] = d.broker.take_finished()
    assert isinstance(before, SessionSummary)
    assert (before.closed, before.last_s) == (True, 5.0)
    d.tell(SandboxStopped(at_s=5.2, sandbox=start.sandbox, cpu_s=0.7))
    again = d.broker.summary(S)
    assert again is not None
    assert (again.closed, again.opened_s) == (False, 5.1)


def test_a_guess_that_may_cost_more_than_may_be_wasted_is_not_taken() -> None:
    d = Driven(BrokerPolicy(waste_memory_bytes=50_000_000))
    d.generation("g", 1.0)
    assert starts(d.text("g", 1.1, "I will build a pivot table in the workbook ")) == []
    refused = dict(d.broker.statistics(2.0).predictors.of(PredictorName("keyword")).refused)
    assert [reason.name for reason in refused] == ["WASTE_MEMORY"]


def test_a_guess_that_holds_more_memory_than_may_be_wasted_is_stopped_when_that_is_known() -> None:
    d = Driven(BrokerPolicy(waste_memory_bytes=150_000_000))
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    out = d.ready(start.sandbox, 2.1, memory_bytes=200_000_000)
    assert StopSandbox(sandbox=start.sandbox, reason=StopReason.EVICTED) in out


def test_a_guess_that_grows_past_what_may_be_wasted_is_stopped_then() -> None:
    d = Driven(BrokerPolicy(waste_memory_bytes=150_000_000))
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    d.ready(start.sandbox, 2.1, memory_bytes=100_000_000)

    def grows(at_s: float, memory_bytes: int) -> list[Instruction]:
        return d.tell(SandboxMeasured(at_s=at_s, sandbox=start.sandbox, memory_bytes=memory_bytes, cpu_s=0.5))

    assert not any(isinstance(each, StopSandbox) for each in grows(2.2, 140_000_000))
    assert d.broker.statistics(2.2).waste.reserved_memory_bytes == 140_000_000
    assert StopSandbox(sandbox=start.sandbox, reason=StopReason.EVICTED) in grows(2.3, 160_000_000)


def test_what_a_call_has_claimed_may_grow() -> None:
    d = Driven(BrokerPolicy(waste_memory_bytes=150_000_000))
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    d.ready(start.sandbox, 2.1, memory_bytes=100_000_000)
    d.call("c", 2.2)
    out = d.tell(SandboxMeasured(at_s=2.3, sandbox=start.sandbox, memory_bytes=400_000_000, cpu_s=0.5))
    assert not any(isinstance(each, StopSandbox) for each in out)


def test_a_guess_may_use_the_cpu_that_was_reserved_for_it_and_its_call_lifts_the_limit() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    assert start.cpu_limit_s == pytest.approx(1.25), "the estimate and a little more"
    assert limits(d.ready(start.sandbox, 2.1, cpu_s=0.5)) == [pytest.approx(0.75)]
    assert limits(d.call("c", 3.0)) == [None]


def test_a_guess_that_is_measured_while_it_starts_keeps_the_memory_that_it_will_hold() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    d.tell(SandboxMeasured(at_s=1.5, sandbox=start.sandbox, memory_bytes=1_000_000, cpu_s=0.2))
    assert d.broker.statistics(1.5).waste.reserved_memory_bytes == 100_000_000
    d.ready(start.sandbox, 2.1, memory_bytes=30_000_000)
    assert d.broker.statistics(2.1).waste.reserved_memory_bytes == 30_000_000


def test_what_wants_more_cpu_than_may_be_wasted_stands_still_until_time_has_brought_some() -> None:
    d = Driven(BrokerPolicy(waste_cpu_share=0.1))
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))

    def asks(at_s: float, cpu_s: float) -> list[Instruction]:
        return d.tell(SandboxMeasured(at_s=at_s, sandbox=start.sandbox, memory_bytes=1, cpu_s=cpu_s))

    assert limits(asks(2.0, 19.5)) == [pytest.approx(19.75)]
    assert limits(asks(2.1, 19.9)) == [pytest.approx(20.0)]
    assert limits(asks(2.2, 19.95)) == [], "there is no more"
    assert limits(d.call("c", 2.3)) == [None]


def test_a_guess_that_has_used_all_its_cpu_is_not_stopped_for_that() -> None:
    d = Driven()
    d.generation("g", 1.0)
    [start] = starts(d.text("g", 1.1, "I will build a pivot table in the workbook "))
    assert not any(isinstance(each, StopSandbox) for each in d.ready(start.sandbox, 2.1, cpu_s=100.0))
    assert GrantLease(call=CallId("c"), sandbox=start.sandbox) in d.call("c", 3.0)


def test_nobody_came_the_sandbox_is_stopped_and_the_predictor_is_believed_less() -> None:
    d = Driven()
    d.generation("g", 1.0)
    out = d.text("g", 1.1, "I will build a pivot table in the workbook ")
    [start] = starts(out)
    [timer] = [each for each in out if isinstance(each, SetTimer)]
    d.ready(start.sandbox, 2.1)
    out = d.tell(TimerFired(at_s=timer.at_s))
    assert StopSandbox(sandbox=start.sandbox, reason=StopReason.EXPIRED) in out
    d.tell(SandboxStopped(at_s=timer.at_s + 0.1, sandbox=start.sandbox))
    assert d.record("keyword") == (0, 1, 0)
    d.tell(TimerFired(at_s=timer.at_s + 200.0))
    learned = d.broker.export_learned(ME)["predictors"]["keyword"]
    assert (sum(learned["hits"]), sum(learned["trials"])) == (0, 1)


def test_keeping_an_idle_sandbox_is_a_bet_and_its_hit_is_counted_apart() -> None:
    d = Driven()
    d.call("c1", 1.0)
    d.ready("sbx_1", 2.0)
    d.returns("c1", 3.0)
    d.call("c2", 8.0)
    assert d.record("keep-alive") == (1, 0, 0)
    summary = d.broker.summary(S)
    assert summary is not None
    assert (summary.hidden_s, summary.kept_s) == (0.0, 1.0)


def test_a_sandbox_that_is_not_worth_its_memory_is_stopped_as_soon_as_it_is_idle() -> None:
    d = Driven(BrokerPolicy(waste_price=1_000.0))
    d.call("c1", 1.0)
    d.ready("sbx_1", 2.0)
    assert StopSandbox(sandbox=SandboxId("sbx_1"), reason=StopReason.IDLE) in d.returns("c1", 3.0)


def test_a_step_is_traced_from_the_request_to_the_observation() -> None:
    d = Driven()
    d.generation("g", 1.0)
    d.text("g", 1.5, "I will build a pivot table in the workbook ")
    d.closes_call("g", 2.0)
    d.call("c", 2.25)
    d.ready("sbx_1", 2.5)
    d.returns("c", 4.0)
    [preparation, step] = d.broker.take_finished()
    assert isinstance(step, Step)
    assert [(each.part, each.start_s, each.end_s) for each in step.tiles] == [
        (Part.CONTEXT, 1.0, 1.5),
        (Part.DECODE, 1.5, 2.0),
        (Part.UNATTRIBUTED, 2.0, 2.25),
        (Part.ENV_PREP, 2.25, 2.5),
        (Part.DATA_IO, 2.5, 3.8),
        (Part.SANDBOX_EXEC, 3.8, 3.9),
        (Part.DATA_IO, 3.9, 4.0),
    ]
    assert (step.session, step.number, step.calls[0].predictor) == (S, 1, "keyword")
    assert isinstance(preparation, Preparation)
    assert (preparation.won, preparation.waited_s, preparation.hidden_s) == (True, 0.25, 0.75)
    d.tell(SessionClosed(at_s=5.0, session=S))
    [kept, summary] = d.broker.take_finished()
    assert isinstance(kept, Preparation)
    assert (kept.kind, kept.void) == (BetKind.KEEP, True)
    assert isinstance(summary, SessionSummary)
    assert summary.closed
    assert (summary.wall_s, summary.hidden_s) == pytest.approx((3.0, 0.75))


def test_a_step_before_the_join_becomes_its_sessions() -> None:
    d = Driven()
    d.generation("g", 1.0, session=None)
    d.closes_call("g", 2.0)
    d.call("c", 2.1)
    d.ready("sbx_1", 3.0)
    d.returns("c", 4.0)
    steps = [each for each in d.broker.take_finished() if isinstance(each, Step)]
    assert [(each.session, each.generation is not None, len(each.calls)) for each in steps] == [(S, True, 1)]


def test_a_call_that_no_generation_asked_for_is_a_step_of_its_own() -> None:
    d = Driven()
    d.call("c", 1.0)
    d.ready("sbx_1", 2.0)
    d.returns("c", 3.0)
    steps = [each for each in d.broker.take_finished() if isinstance(each, Step)]
    assert [(each.generation, each.calls[0].cold, each.wall_s) for each in steps] == [(None, True, 2.0)]


def test_a_session_that_closes_finishes_its_steps_as_they_are() -> None:
    d = Driven()
    d.generation("g", 1.0)
    d.closes_call("g", 2.0)
    d.call("c", 2.0)
    d.tell(SessionClosed(at_s=3.0, session=S))
    [step] = [each for each in d.broker.take_finished() if isinstance(each, Step)]
    assert (step.end_s, len(step.calls)) == (3.0, 1)


def test_learned_data_of_one_principal_stay_its_own() -> None:
    d = Driven()
    d.call("c", 1.0)
    d.ready("sbx_1", 2.0)
    assert d.broker.export_learned(ME)["transitions"] != {}
    assert d.broker.export_learned(PrincipalId("you"))["transitions"] == {}


@pytest.mark.parametrize("learn", [True, False])
def test_with_learn_off_nothing_is_added_but_what_a_start_takes(learn: bool) -> None:
    d = Driven(BrokerPolicy(learn=learn))
    d.generation("g", 1.0)
    d.text("g", 1.1, "I will build a pivot table in the workbook ")
    d.closes_call("g", 1.5)
    d.call("c1", 1.6)
    d.ready("sbx_1", 2.0, cpu_s=0.123)
    d.returns("c1", 3.0)
    d.call("c2", 8.0)
    d.tell(TimerFired(at_s=500.0))
    learned = d.broker.export_learned(ME)
    assert [name for name in ("transitions", "predictors", "keeping") if learned[name]] == (
        ["transitions", "predictors", "keeping"] if learn else []
    )
    assert "0.123" in str(learned["starts"])


def test_with_learn_off_a_text_that_led_to_a_call_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    confirmed: list[ResourceId] = []

    def note(_: Foresight, generation: GenerationId, resource: ResourceId) -> None:
        assert generation == "g"
        confirmed.append(resource)

    monkeypatch.setattr(Foresight, "confirmed", note)
    for learn in (False, True):
        d = Driven(BrokerPolicy(learn=learn))
        d.generation("g", 1.0)
        d.closes_call("g", 1.5)
        d.call("c1", 1.6)
        assert confirmed == ([EXCEL] if learn else [])


def test_damaged_learned_data_are_refused_and_another_versions_are_ignored() -> None:
    broker = Broker(BrokerPolicy(), SequentialIds())
    broker.import_learned(ME, {"version": 999})
    with pytest.raises(ValueError, match="damaged"):
        broker.import_learned(ME, {"version": 1})


def test_thousands_of_sessions_opened_and_abandoned_leave_nothing() -> None:
    d = Driven()
    for n in range(2_000):
        session, at_s = SessionId(f"many{n}"), 10.0 + n
        d.broker.handle(SessionOpened(at_s=at_s, session=session, principal=ME, resources=tuple(TEXTS)))
        for event in (
            GenerationStarted(at_s=at_s, generation=GenerationId(f"m{n}"), principal=ME, session=session),
            ToolCallOpened(at_s=at_s, generation=GenerationId(f"m{n}"), index=0, tool="excel__pivot_table"),
        ):
            d.broker.handle(event)
        d.broker.handle(SessionClosed(at_s=at_s + 0.5, session=session))
        for each in d.broker.statistics(at_s).pool.sandboxes:
            d.broker.handle(SandboxStopped(at_s=at_s + 0.6, sandbox=each.id))
    d.broker.check_invariants()
    left = d.broker.statistics(3_000.0)
    assert (left.pool.sessions, left.pool.sandboxes, left.waste.open_bets) == (1, (), 0)
    tracer = d.broker._tracer  # pyright: ignore[reportPrivateUsage] (that nothing stays is what is tested)
    assert tracer.open_steps == 0
    assert len(tracer._step_of_call) == len(tracer._started_s) == len(tracer._unjoined) == 0  # pyright: ignore[reportPrivateUsage]
