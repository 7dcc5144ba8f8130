"""What the pool does for sessions and calls, one story at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headstart.core.actions import ActionKey
from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    DrainRequested,
    Event,
    GrantLease,
    Instruction,
    LeaseRefusal,
    PrepareForm,
    Priority,
    RaisePriority,
    RefuseLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxExited,
    SandboxMeasured,
    SandboxStartFailed,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    StartSandbox,
    StopReason,
    StopSandbox,
    TimerFired,
)
from headstart.core.policy import Refusal
from headstart.core.pool import (
    Estimates,
    Mode,
    Pool,
    PoolPolicy,
    SandboxFellIdle,
    SandboxState,
    Stake,
    StakeLost,
    StakeWon,
)
from headstart.errors import InvalidTransition
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SequentialIds, SessionId

ME, YOU = PrincipalId("me"), PrincipalId("you")
GIT, EXCEL = ResourceId("git"), ResourceId("excel")
A, B = SessionId("a"), SessionId("b")
MB = 1_000_000


@dataclass
class Driven:
    """A pool and the clock that it is told."""

    pool: Pool
    now_s: float = 0.0
    calls: int = 0
    bets: int = 0
    out: list[Instruction] = field(default_factory=list[Instruction])

    def tell(self, event: Event) -> list[Instruction]:
        self.out = self.pool.handle(event)
        self.pool.check_invariants()
        return self.out

    def register(
        self,
        resource: ResourceId = GIT,
        *,
        shared: bool = False,
        session_specific: bool = False,
        remote: bool = False,
        memory_bytes: int = 100 * MB,
        start_s: float = 1.0,
    ) -> list[Instruction]:
        return self.tell(
            ResourceRegistered(
                at_s=self.now_s,
                principal=ME,
                resource=resource,
                shared=shared,
                session_specific=session_specific,
                remote=remote,
                memory_bytes=memory_bytes,
                start_s=start_s,
            )
        )

    def open(
        self, *sessions: SessionId, principal: PrincipalId = ME, lost: tuple[ResourceId, ...] = ()
    ) -> list[Instruction]:
        out: list[Instruction] = []
        for session in sessions:
            out += self.tell(
                SessionOpened(at_s=self.now_s, session=session, principal=principal, resources=(GIT, EXCEL), lost=lost)
            )
        return out

    def close(self, session: SessionId) -> list[Instruction]:
        return self.tell(SessionClosed(at_s=self.now_s, session=session))

    def call(self, session: SessionId = A, resource: ResourceId = GIT, *, read_only: bool = True) -> list[Instruction]:
        self.calls += 1
        return self.tell(
            CallArrived(
                at_s=self.now_s,
                call=CallId(f"c{self.calls}"),
                session=session,
                resource=resource,
                tool="t",
                action=ActionKey("k"),
                read_only=read_only,
            )
        )

    def returns(self, call: int) -> list[Instruction]:
        now_s = self.now_s
        return self.tell(CallReturned(at_s=now_s, call=CallId(f"c{call}"), sent_s=now_s, answered_s=now_s))

    def abandons(self, call: int) -> list[Instruction]:
        return self.tell(CallAbandoned(at_s=self.now_s, call=CallId(f"c{call}")))

    def ready(self, sandbox: int, *, memory_bytes: int = 100 * MB, start_s: float = 1.0) -> list[Instruction]:
        return self.tell(
            SandboxBecameReady(
                at_s=self.now_s, sandbox=sbx(sandbox), start_s=start_s, cpu_s=0.8, memory_bytes=memory_bytes
            )
        )

    def fails(self, sandbox: int) -> list[Instruction]:
        return self.tell(SandboxStartFailed(at_s=self.now_s, sandbox=sbx(sandbox), message="exit code 1"))

    def exits(self, sandbox: int) -> list[Instruction]:
        return self.tell(SandboxExited(at_s=self.now_s, sandbox=sbx(sandbox), message="signal 9"))

    def stopped(self, sandbox: int, *, cpu_s: float = 0.0) -> list[Instruction]:
        return self.tell(SandboxStopped(at_s=self.now_s, sandbox=sbx(sandbox), cpu_s=cpu_s))

    def pass_time(self, seconds: float) -> list[Instruction]:
        self.now_s += seconds
        due_s = self.pool.next_deadline_s()
        return self.tell(TimerFired(at_s=self.now_s)) if due_s is not None and due_s <= self.now_s else []

    def bet(
        self,
        resource: ResourceId = GIT,
        session: SessionId | None = A,
        *,
        backer: str | None = None,
        lasts_s: float = 10.0,
        worth_s: float = 1.0,
        probability: float = 0.5,
    ) -> Refusal | list[Instruction]:
        self.bets += 1
        stake = Stake(
            id=BetId(f"bet{self.bets}"),
            bet=Bet(
                kind=BetKind.PREWARM,
                predictor=PredictorName("keyword"),
                principal=ME,
                session=session,
                resource=resource,
                probability=probability,
                hidden_s=1.0,
                expires_s=self.now_s + lasts_s,
                because="words",
            ),
            probability=probability,
            backer=backer or session or "",
            worth_s=worth_s,
            placed_s=self.now_s,
            expires_s=self.now_s + lasts_s,
        )
        refusal = self.pool.refusal_of(stake.bet, stake.backer)
        if refusal is not None:
            return refusal
        if not self.pool.has_room(stake):
            return Refusal.POOL_MEMORY
        self.out = self.pool.place(stake)
        self.pool.check_invariants()
        return self.out

    def state(self, sandbox: int) -> SandboxState:
        found = self.pool.inventory.find(sbx(sandbox))
        return SandboxState.GONE if found is None else found.state


def sbx(number: int) -> SandboxId:
    return SandboxId(f"sbx_{number}")


def driven(
    mode: Mode = Mode.PREDICTIVE,
    *,
    memory_bytes: int = 1_000 * MB,
    starts_at_once: int = 2,
    reserved_sets: int = 1,
) -> Driven:
    policy = PoolPolicy(
        mode=mode, memory_bytes=memory_bytes, starts_at_once=starts_at_once, reserved_sets=reserved_sets
    )
    return Driven(Pool(policy, SequentialIds(), Estimates()))


def started(instructions: list[Instruction]) -> list[StartSandbox]:
    return [each for each in instructions if isinstance(each, StartSandbox)]


def refusal(instructions: list[Instruction]) -> RefuseLease:
    [found] = [each for each in instructions if isinstance(each, RefuseLease)]
    return found


def granted(call: int, sandbox: int) -> GrantLease:
    return GrantLease(call=CallId(f"c{call}"), sandbox=sbx(sandbox))


def stop(sandbox: int, reason: StopReason) -> StopSandbox:
    return StopSandbox(sandbox=sbx(sandbox), reason=reason)


# ---------------------------------------------------------------- leases


def test_a_first_call_starts_a_sandbox_and_later_ones_run_in_it_side_by_side() -> None:
    d = driven(Mode.ON_DEMAND)
    d.register()
    d.open(A)
    [start] = started(d.call())
    assert (start.sandbox, start.session, start.priority) == (sbx(1), A, Priority.CLAIMED)
    assert d.call() == [], "the second waits for the same start"
    assert d.ready(1) == [granted(1, 1), granted(2, 1)]
    assert d.call() == [granted(3, 1)]
    assert d.pool.statistics(d.now_s).sandboxes[0].running == 3


def test_two_sessions_never_share_a_sandbox() -> None:
    d = driven(Mode.ON_DEMAND)
    d.register()
    d.open(A, B)
    d.call(A)
    d.ready(1)
    d.returns(1)
    [start] = started(d.call(B))
    assert start.sandbox == sbx(2)


def test_a_shared_server_has_one_sandbox_for_all_sessions_of_its_principal() -> None:
    d = driven(Mode.ON_DEMAND)
    d.register(shared=True)
    d.open(A, B)
    [start] = started(d.call(A))
    assert start.session is None
    d.call(B)
    assert d.ready(1) == [granted(1, 1), granted(2, 1)]
    d.close(A)
    assert d.call(B) == [granted(3, 1)]


def test_a_remote_server_is_granted_at_once_and_needs_no_sandbox() -> None:
    d = driven()
    d.register(remote=True)
    d.open(A)
    assert d.call() == [GrantLease(call=CallId("c1"), sandbox=None)]
    assert d.returns(1) == []
    assert d.pool.book.open_calls == 0


def test_a_call_for_an_unknown_server_or_session_is_refused_by_name() -> None:
    d = driven()
    d.register()
    d.open(A)
    assert refusal(d.call(A, ResourceId("nope"))).refusal is LeaseRefusal.UNKNOWN_RESOURCE
    assert "'nope'" in refusal(d.out).message
    assert refusal(d.call(B)).refusal is LeaseRefusal.SESSION_CLOSED


def test_a_session_cannot_reach_another_principals_servers() -> None:
    d = driven()
    d.register()
    d.open(A, principal=YOU)
    assert refusal(d.call(A)).refusal is LeaseRefusal.UNKNOWN_RESOURCE


def test_a_call_that_arrives_twice_is_a_bug() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call()
    d.calls = 0
    with pytest.raises(InvalidTransition):
        d.call()


# ---------------------------------------------------------------- modes


def test_eager_starts_all_of_a_sessions_servers_when_it_opens() -> None:
    d = driven(Mode.EAGER)
    d.register(GIT)
    d.register(EXCEL)
    starts = started(d.open(A))
    assert [(each.resource, each.session, each.priority) for each in starts] == [
        (GIT, A, Priority.CONFIGURED),
        (EXCEL, A, Priority.CONFIGURED),
    ]


def test_reserved_leases_a_complete_set_at_open_and_refills_it() -> None:
    d = driven(Mode.RESERVED)
    assert [each.session for each in started(d.register(GIT))] == [None]
    d.ready(1)
    [refill] = started(d.open(A))
    assert refill.session is None
    assert d.state(1) is SandboxState.LEASED
    assert d.call(A) == [granted(1, 1)]


def test_on_demand_keeps_an_idle_sandbox_until_its_session_ends() -> None:
    d = driven(Mode.ON_DEMAND)
    d.register()
    d.open(A)
    d.call()
    d.ready(1)
    d.returns(1)
    assert d.pass_time(100_000.0) == []
    assert d.close(A) == [stop(1, StopReason.SESSION_CLOSED)]


def test_bets_are_refused_unless_the_pool_is_predictive() -> None:
    d = driven(Mode.EAGER)
    d.register()
    d.open(A)
    assert d.bet() is Refusal.NOT_PREDICTIVE


# ---------------------------------------------------------------- bets


def test_a_bet_starts_a_sandbox_that_nobody_owns_until_a_call_claims_it() -> None:
    d = driven()
    d.register()
    d.open(A)
    out = d.bet()
    assert isinstance(out, list)
    [start] = started(out)
    assert (start.priority, start.session, start.cause.because) == (Priority.PREDICTED, None, "words")
    d.now_s = 1.0
    d.ready(1)
    assert d.state(1) is SandboxState.READY
    assert d.call() == [granted(1, 1)]
    [won] = d.pool.take_facts()
    assert isinstance(won, StakeWon)
    assert (won.session, won.waited_s, won.hidden_s) == (A, 0.0, 1.0)


def test_a_call_claims_a_start_under_way_and_hides_what_is_behind_it() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet()
    d.now_s = 0.75
    assert d.call() == [RaisePriority(sandbox=sbx(1))]
    d.now_s = 1.0
    assert d.ready(1) == [granted(1, 1)]
    [won] = d.pool.take_facts()
    assert isinstance(won, StakeWon)
    assert (won.waited_s, won.hidden_s) == (0.25, 0.75)


def test_a_claimed_bet_no_longer_expires() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet(lasts_s=2.0)
    d.now_s = 1.0
    d.call()
    assert d.pass_time(60.0) == []
    assert granted(1, 1) in d.ready(1)


def test_a_shared_sandbox_that_a_bet_prepared_serves_all_sessions() -> None:
    d = driven()
    d.register(shared=True)
    d.open(A, B)
    d.bet(session=A)
    assert d.bet(session=B) is Refusal.ALREADY_THERE
    d.ready(1)
    assert d.call(A) == [granted(1, 1)]
    assert d.call(B) == [granted(2, 1)]


def test_a_fresh_sandbox_goes_to_whichever_session_of_the_principal_asks_first() -> None:
    d = driven()
    d.register()
    d.open(A, B)
    d.bet(session=A)
    d.ready(1)
    assert d.call(B) == [granted(1, 1)]
    [start] = started(d.call(A))
    assert start.sandbox == sbx(2), "and then to no other"


def test_a_session_gets_what_was_prepared_for_it_rather_than_anothers() -> None:
    d = driven()
    d.register()
    d.open(A, B)
    d.bet(session=A)
    d.bet(session=B)
    d.ready(1)
    d.ready(2)
    assert d.call(B) == [granted(1, 2)]


def test_a_session_specific_sandbox_is_its_sessions_only() -> None:
    d = driven()
    d.register(session_specific=True)
    d.open(A, B)
    assert d.bet(session=None, backer="talk") is Refusal.UNKNOWN
    out = d.bet(session=A)
    assert isinstance(out, list)
    assert started(out)[0].session == A
    d.ready(1)
    assert started(d.call(B))[0].sandbox == sbx(2)
    assert d.call(A) == [granted(2, 1)]


def test_a_bet_that_nobody_claims_expires_and_is_counted_as_waste() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet(lasts_s=10.0)
    d.now_s = 1.0
    d.ready(1)
    assert d.pass_time(9.0) == [stop(1, StopReason.EXPIRED)]
    d.now_s = 10.5
    d.stopped(1, cpu_s=0.9)
    [lost] = d.pool.take_facts()
    assert isinstance(lost, StakeLost)
    assert (lost.void, lost.cpu_s, lost.byte_s) == (False, 0.9, 10.5 * 100 * MB)


def test_a_second_bet_for_the_same_backer_makes_the_first_run_longer() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet(lasts_s=10.0)
    d.now_s = 5.0
    assert d.bet(lasts_s=10.0) is Refusal.ALREADY_THERE
    assert d.pass_time(6.0) == []
    assert d.pass_time(4.0) == [stop(1, StopReason.EXPIRED)]


def test_a_bet_for_nobody_known_is_refused_when_every_open_session_has_the_server() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call(A)
    assert d.bet(session=None, backer="talk") is Refusal.ALREADY_THERE
    d.open(B)
    assert isinstance(d.bet(session=None, backer="talk"), list)


def test_what_was_prepared_for_a_conversation_is_its_sessions_after_the_join() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet(session=None, backer="talk")
    d.pool.rebind(ME, "talk", A)
    assert d.bet(session=A) is Refusal.ALREADY_THERE
    assert d.close(A) == [stop(1, StopReason.SESSION_CLOSED)]


def test_an_idle_sandbox_without_state_is_offered_for_a_keep_bet_and_stopped_at_the_latest() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call()
    d.ready(1)
    d.returns(1)
    [idle] = d.pool.take_facts()
    assert isinstance(idle, SandboxFellIdle)
    assert d.pass_time(600.0) == [stop(1, StopReason.IDLE)]
    d.stopped(1)
    assert started(d.call()), "no state was lost, so a new one simply starts"


def test_an_idle_sandbox_with_state_is_kept_while_its_session_lives() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call(read_only=False)
    d.ready(1)
    d.returns(1)
    assert d.pool.take_facts() == []
    assert d.pass_time(100_000.0) == []


# ---------------------------------------------------------------- start slots


def test_claimed_starts_go_before_configured_before_predicted_and_dearer_bets_before_cheaper() -> None:
    d = driven(starts_at_once=1)
    for name in ("one", "two", "three", "four"):
        d.register(ResourceId(name))
    d.open(A)
    d.call(A, ResourceId("one"))
    d.bet(ResourceId("two"), worth_s=0.1)
    d.bet(ResourceId("three"), worth_s=0.9)
    d.call(A, ResourceId("four"))
    order = [started(d.ready(1))[0].resource]
    order += [each.resource for each in started(d.ready(4))]
    order += [each.resource for each in started(d.ready(3))]
    assert order == ["four", "three", "two"]


def test_a_claimed_start_does_not_wait_for_a_predicted_one() -> None:
    d = driven(starts_at_once=1)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A)
    d.bet(GIT)
    assert started(d.call(A, EXCEL))[0].priority is Priority.CLAIMED


def test_a_predicted_start_uses_only_the_slots_that_claimed_starts_leave() -> None:
    d = driven(starts_at_once=2)
    for name in ("one", "two", "three"):
        d.register(ResourceId(name))
    d.open(A)
    d.call(A, ResourceId("one"))
    assert started(d.bet(ResourceId("two")) or [])  # type: ignore[arg-type]
    assert d.bet(ResourceId("three")) == []
    assert started(d.ready(1))[0].resource == "three"


def test_a_prediction_does_not_start_while_a_call_waits_even_if_only_the_call_lacks_memory() -> None:
    d = driven(memory_bytes=250 * MB)
    d.register(GIT, memory_bytes=200 * MB)
    d.register(EXCEL, memory_bytes=40 * MB)
    d.open(A, B)
    d.call(A, GIT)
    d.ready(1, memory_bytes=200 * MB)
    d.call(B, GIT)
    assert d.bet(EXCEL) == []
    assert started(d.abandons(2))[0].resource == EXCEL


# ---------------------------------------------------------------- memory


def test_a_start_that_a_call_waits_for_is_never_evicted() -> None:
    d = driven(memory_bytes=150 * MB)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A, B)
    d.call(A, GIT)
    assert d.call(B, EXCEL) == []
    assert granted(1, 1) in d.ready(1)


def test_a_server_that_can_never_fit_is_refused_with_both_numbers_and_the_cure() -> None:
    d = driven(memory_bytes=500 * MB)
    d.register(memory_bytes=900 * MB)
    d.open(A)
    told = refusal(d.call())
    assert told.refusal is LeaseRefusal.NO_MEMORY
    assert told.message == (
        "git needs about 900 MB, but the memory budget for all sandboxes is 500 MB; "
        "set memory_mb of [pool] to at least 900"
    )


def test_a_claimed_start_evicts_the_cheapest_bet_and_starts_when_it_is_gone() -> None:
    d = driven(memory_bytes=250 * MB)
    for name in ("cheap", "dear", "git"):
        d.register(ResourceId(name))
    d.open(A)
    d.bet(ResourceId("cheap"), probability=0.1)
    d.bet(ResourceId("dear"), probability=0.9)
    assert d.call(A, GIT) == [stop(1, StopReason.EVICTED)]
    assert started(d.stopped(1))[0].resource == GIT


def test_a_bet_displaces_only_what_is_worth_less_per_byte_second() -> None:
    d = driven(memory_bytes=100 * MB)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A)
    d.bet(GIT, probability=0.5)
    assert d.bet(EXCEL, probability=0.5) is Refusal.POOL_MEMORY
    assert d.bet(EXCEL, probability=0.9) == [stop(1, StopReason.EVICTED)]


def test_state_is_evicted_only_for_a_waiting_agent_and_its_owner_is_told_once() -> None:
    d = driven(memory_bytes=100 * MB)
    d.register()
    d.open(A, B)
    d.call(A, read_only=False)
    d.ready(1)
    d.returns(1)
    assert d.bet(session=B) is Refusal.POOL_MEMORY
    assert d.call(B) == [stop(1, StopReason.EVICTED)]
    d.stopped(1)
    d.ready(2)
    d.returns(2)
    told = refusal(d.call(A))
    assert told.refusal is LeaseRefusal.STATE_LOST
    assert "empty" in told.message
    assert d.call(A) == [stop(2, StopReason.EVICTED)], "and then it gets a new one"


def test_a_sandbox_that_answers_a_call_is_never_evicted_and_the_waiting_call_is_told_in_the_end() -> None:
    d = driven(memory_bytes=100 * MB)
    d.register()
    d.open(A, B)
    d.call(A)
    d.ready(1)
    assert d.call(B) == []
    told = refusal(d.pass_time(30.0))
    assert (told.refusal, told.retry_after_s) == (LeaseRefusal.NO_MEMORY, 30.0)
    assert "answering calls" in told.message
    assert d.state(1) is SandboxState.LEASED


def test_a_call_that_waits_for_memory_gets_it_when_the_other_call_has_returned() -> None:
    d = driven(memory_bytes=100 * MB)
    d.register()
    d.open(A, B)
    d.call(A)
    d.ready(1)
    d.call(B)
    assert d.returns(1) == [stop(1, StopReason.EVICTED)]
    assert started(d.stopped(1))[0].session == B


def test_measured_memory_over_the_budget_lets_go_of_bets_but_never_of_state() -> None:
    d = driven(memory_bytes=250 * MB)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A)
    d.call(A, GIT, read_only=False)
    d.ready(1)
    d.returns(1)
    d.bet(EXCEL)
    d.ready(2)
    out = d.tell(SandboxMeasured(at_s=d.now_s, sandbox=sbx(1), memory_bytes=200 * MB, cpu_s=1.0))
    assert out == [stop(2, StopReason.EVICTED)]
    out = d.tell(SandboxMeasured(at_s=d.now_s, sandbox=sbx(1), memory_bytes=300 * MB, cpu_s=1.0))
    assert out == []


def test_what_starts_really_take_replaces_the_estimate() -> None:
    estimates = Estimates()
    d = Driven(Pool(PoolPolicy(), SequentialIds(), estimates))
    d.register(start_s=9.0, memory_bytes=500 * MB)
    d.open(A, B)
    d.call(A)
    d.ready(1, memory_bytes=40 * MB, start_s=0.5)
    assert d.pool.statistics(0.0).used_bytes == 40 * MB
    d.call(B)
    assert d.pool.statistics(0.0).used_bytes == 80 * MB
    assert estimates.of(ME, GIT, PrepareForm.COLD).start_s == 0.5


# ---------------------------------------------------------------- failures


def test_a_failed_start_refuses_everyone_who_waits_and_backs_off() -> None:
    d = driven()
    d.register()
    d.open(A, B)
    d.call(A)
    d.call(A)
    out = d.fails(1)
    told = [each for each in out if isinstance(each, RefuseLease)]
    assert [each.refusal for each in told] == [LeaseRefusal.START_FAILED] * 2
    assert told[0].message == "git did not start: exit code 1"
    assert told[0].retry_after_s is not None
    again = refusal(d.call(B))
    assert again.refusal is LeaseRefusal.BACKING_OFF
    assert d.bet(session=B) is Refusal.BACKING_OFF
    d.now_s += told[0].retry_after_s
    assert started(d.call(B))


def test_a_failure_refuses_also_those_who_wait_for_a_slot_to_start_the_same_server() -> None:
    d = driven(starts_at_once=1)
    d.register()
    d.open(A, B)
    d.call(A)
    d.call(B)
    told = [each for each in d.fails(1) if isinstance(each, RefuseLease)]
    assert [each.refusal for each in told] == [LeaseRefusal.START_FAILED, LeaseRefusal.BACKING_OFF]
    assert d.state(2) is SandboxState.GONE


def test_a_claimed_bet_whose_start_fails_was_right_and_hid_nothing() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet()
    d.call()
    d.fails(1)
    [won] = d.pool.take_facts()
    assert isinstance(won, StakeWon)
    assert (won.session, won.call, won.hidden_s) == (A, None, 0.0)


def test_after_a_back_off_one_start_goes_ahead_and_the_others_stand_behind_it() -> None:
    d = driven(starts_at_once=4)
    d.register()
    d.open(A, B)
    d.call(A)
    d.fails(1)
    d.now_s += 1.0
    assert started(d.call(A))
    assert d.call(B) == []
    assert started(d.ready(2))[0].session == B


def test_whoever_hears_of_a_death_from_its_own_call_is_not_told_again() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call(read_only=False)
    d.ready(1)
    d.exits(1)
    d.returns(1)
    assert started(d.call())


def test_a_warm_sandbox_that_dies_is_restarted_once_at_once_and_its_state_is_told_lost() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call(read_only=False)
    d.ready(1)
    d.returns(1)
    d.exits(1)
    assert refusal(d.call()).refusal is LeaseRefusal.STATE_LOST
    assert started(d.call())
    d.ready(2)
    d.exits(2)
    d.returns(3)
    assert refusal(d.call()).refusal is LeaseRefusal.BACKING_OFF, "the second death waits"


def test_a_warm_sandbox_without_state_that_dies_is_simply_replaced() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call(read_only=True)
    d.ready(1)
    d.returns(1)
    d.exits(1)
    assert started(d.call())


def test_a_reserved_set_is_refilled_when_its_back_off_is_over_and_not_before() -> None:
    d = driven(Mode.RESERVED)
    d.register()
    assert started(d.fails(1)) == []
    due_s = d.pool.next_deadline_s()
    assert due_s is not None
    assert started(d.pass_time(due_s)) != []


def test_a_failed_bet_says_nothing_about_the_prediction() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet()
    d.fails(1)
    [lost] = d.pool.take_facts()
    assert isinstance(lost, StakeLost)
    assert lost.void


def test_a_session_that_lost_its_state_in_a_restart_of_the_service_is_told_once() -> None:
    d = driven()
    d.register()
    d.open(A, lost=(GIT,))
    assert refusal(d.call()).refusal is LeaseRefusal.STATE_LOST
    assert started(d.call())


# ---------------------------------------------------------------- ends


def test_a_closed_session_stops_its_sandboxes_and_its_waiting_calls_are_told() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call()
    out = d.close(A)
    assert refusal(out).refusal is LeaseRefusal.SESSION_CLOSED
    assert stop(1, StopReason.UNWANTED) in out
    assert d.close(A) == []
    assert d.returns(1) == [], "late, and harmless"


def test_an_abandoned_call_leaves_a_queued_start_unwanted() -> None:
    d = driven(starts_at_once=1)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A)
    d.call(A, GIT)
    d.call(A, EXCEL)
    d.abandons(2)
    assert d.state(2) is SandboxState.GONE
    d.abandons(1)
    assert d.state(1) is SandboxState.STARTING, "what is under way is the session's"


def test_draining_refuses_who_waits_stops_what_is_idle_and_lets_running_calls_finish() -> None:
    d = driven(starts_at_once=1)
    d.register(GIT)
    d.register(EXCEL)
    d.open(A, B)
    d.call(A, GIT)
    d.ready(1)
    d.call(B, EXCEL)
    out = d.tell(DrainRequested(at_s=d.now_s))
    assert refusal(out).refusal is LeaseRefusal.DRAINING
    assert stop(2, StopReason.DRAINING) in out
    assert d.state(1) is SandboxState.LEASED
    assert refusal(d.call(A)).refusal is LeaseRefusal.DRAINING
    assert d.returns(1) == [stop(1, StopReason.DRAINING)]


def test_late_events_of_a_stopping_sandbox_change_nothing() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call()
    d.close(A)
    assert d.ready(1) == []
    assert d.exits(1) == []
    assert d.state(1) is SandboxState.STOPPING
    d.stopped(1)
    assert d.tell(SandboxMeasured(at_s=1.0, sandbox=sbx(1), memory_bytes=1, cpu_s=1.0)) == []


def test_an_impossible_event_raises_with_the_sandboxs_story() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.call()
    d.ready(1)
    with pytest.raises(InvalidTransition) as caught:
        d.ready(1)
    assert caught.value.state == "leased"
    assert "queued → starting (start admitted)" in str(caught.value)
    assert "starting → leased (became ready)" in str(caught.value)
    d.close(A)
    d.stopped(1)
    with pytest.raises(InvalidTransition, match="gone") as late:
        d.stopped(1)
    assert "session closed" in str(late.value)


def test_a_thousand_sessions_opened_and_abandoned_leave_nothing() -> None:
    d = driven(starts_at_once=2)
    d.register()
    for n in range(1_000):
        session = SessionId(f"s{n}")
        d.pool.handle(SessionOpened(at_s=n, session=session, principal=ME, resources=(GIT,)))
        d.pool.handle(
            CallArrived(at_s=n, call=CallId(f"c{n}"), session=session, resource=GIT, tool="t", action=ActionKey("k"))
        )
    open_now = len(d.pool.inventory)
    assert open_now == 1_000
    for n in range(1_000):
        d.pool.handle(SessionClosed(at_s=2_000.0, session=SessionId(f"s{n}")))
    d.pool.check_invariants()
    left = d.pool.statistics(2_000.0)
    assert (left.sessions, left.calls, left.queued) == (0, 0, 0)
    assert {each.state for each in left.sandboxes} == {SandboxState.STOPPING}
    for each in left.sandboxes:
        d.pool.handle(SandboxStopped(at_s=2_000.0, sandbox=each.id))
    assert len(d.pool.inventory) == 0
    assert d.pool.next_deadline_s() is None
