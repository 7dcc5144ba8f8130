"""How sandboxes, calls and sessions end in the pool: failures, back-off, draining."""

from __future__ import annotations

import pytest

from headstart.core.actions import ActionKey
from headstart.core.events import (
    CallArrived,
    DrainRequested,
    LeaseRefusal,
    RefuseLease,
    SandboxMeasured,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    StopReason,
)
from headstart.core.policy import Refusal
from headstart.core.pool import (
    Mode,
    SandboxState,
    StakeLost,
    StakeWon,
)
from headstart.errors import InvalidTransition
from headstart.ids import CallId, SessionId

from .driving import (
    EXCEL,
    GIT,
    ME,
    A,
    B,
    driven,
    refusal,
    sbx,
    started,
    stop,
)

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
        d.pool.handle(SessionOpened(at_s=0.0, session=session, principal=ME, resources=(GIT,)))
        d.pool.handle(
            CallArrived(at_s=0.0, call=CallId(f"c{n}"), session=session, resource=GIT, tool="t", action=ActionKey("k"))
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
