"""What the pool does for sessions and calls, one story at a time: leases, modes and bets."""

from __future__ import annotations

import pytest

from headstart.core.events import (
    GrantLease,
    LeaseRefusal,
    Priority,
    RaisePriority,
    StopReason,
)
from headstart.core.policy import Refusal
from headstart.core.pool import (
    Mode,
    SandboxFellIdle,
    SandboxState,
    StakeLost,
    StakeWon,
)
from headstart.errors import InvalidTransition
from headstart.ids import CallId, ResourceId

from .driving import (
    EXCEL,
    GIT,
    MB,
    ME,
    YOU,
    A,
    B,
    driven,
    granted,
    refusal,
    sbx,
    started,
    stop,
    unlimited,
)

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


def test_state_that_a_server_without_a_sandbox_of_ours_has_lost_is_told_once() -> None:
    d = driven()
    d.register(remote=True)
    d.open(A, lost=(GIT,))
    assert refusal(d.call()).refusal is LeaseRefusal.STATE_LOST
    assert d.call() == [GrantLease(call=CallId("c2"), sandbox=None)]


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
    assert d.call() == [unlimited(1), granted(1, 1)]
    [won] = d.pool.take_facts()
    assert isinstance(won, StakeWon)
    assert (won.session, won.waited_s, won.hidden_s) == (A, 0.0, 1.0)


def test_a_call_claims_a_start_under_way_and_hides_what_is_behind_it() -> None:
    d = driven()
    d.register()
    d.open(A)
    d.bet()
    d.now_s = 0.75
    assert d.call() == [unlimited(1), RaisePriority(sandbox=sbx(1))]
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


def test_a_bet_whose_call_comes_before_it_starts_is_started_without_a_limit() -> None:
    d = driven(starts_at_once=1)
    d.register()
    d.register(EXCEL)
    d.open(A)
    d.bet()
    out = d.bet(resource=EXCEL)
    assert isinstance(out, list)
    assert not started(out), "the slot is taken"
    [start] = started(d.call(resource=EXCEL))
    assert start.cpu_limit_s is None
    assert unlimited(2) not in d.out, "it has begun without one"


def test_a_shared_sandbox_that_a_bet_prepared_serves_all_sessions() -> None:
    d = driven()
    d.register(shared=True)
    d.open(A, B)
    d.bet(session=A)
    assert d.bet(session=B) is Refusal.ALREADY_THERE
    d.ready(1)
    assert d.call(A) == [unlimited(1), granted(1, 1)]
    assert d.call(B) == [granted(2, 1)]


def test_a_fresh_sandbox_goes_to_whichever_session_of_the_principal_asks_first() -> None:
    d = driven()
    d.register()
    d.open(A, B)
    d.bet(session=A)
    d.ready(1)
    assert d.call(B) == [unlimited(1), granted(1, 1)]
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
    assert d.call(B) == [unlimited(2), granted(1, 2)]


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
    assert d.call(A) == [unlimited(1), granted(2, 1)]


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
