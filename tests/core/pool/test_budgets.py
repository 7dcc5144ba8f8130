"""What the pool may use at once: start slots and memory."""

from __future__ import annotations

import pytest

from headstart.core.events import (
    HostedMemoryMeasured,
    Instruction,
    LeaseRefusal,
    PrepareForm,
    Priority,
    SandboxMeasured,
    StopReason,
)
from headstart.core.policy import Refusal
from headstart.core.pool import (
    Estimates,
    Mode,
    Pool,
    PoolPolicy,
    SandboxState,
)
from headstart.core.pool.refusals import too_little_memory
from headstart.ids import ResourceId, SequentialIds

from .driving import (
    EXCEL,
    GIT,
    MB,
    ME,
    A,
    B,
    Driven,
    driven,
    granted,
    refusal,
    sbx,
    started,
    stop,
)

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


def test_starts_that_hang_give_up_their_slots_to_whoever_waits() -> None:
    d = driven(starts_at_once=2)
    for name in ("silent", "mute", "good"):
        d.register(ResourceId(name))
    d.open(A)
    d.call(A, ResourceId("silent"))
    d.call(A, ResourceId("mute"))
    assert started(d.call(A, ResourceId("good"))) == []
    assert d.pool.next_deadline_s() == 5.0
    assert started(d.pass_time(4.5)) == []
    assert [each.resource for each in started(d.pass_time(0.5))] == ["good"]
    assert d.pool.next_deadline_s() is None, "nothing waits any more"


def test_a_start_keeps_its_slot_for_as_long_as_such_starts_usually_take() -> None:
    d = driven(starts_at_once=1)
    d.register(ResourceId("slow"), start_s=10.0)
    d.register(ResourceId("good"))
    d.open(A)
    d.call(A, ResourceId("slow"))
    d.call(A, ResourceId("good"))
    assert started(d.pass_time(39.5)) == []
    assert [each.resource for each in started(d.pass_time(0.5))] == ["good"]


def test_what_hangs_does_not_keep_predictions_from_starting_either() -> None:
    d = driven(starts_at_once=1)
    d.register(ResourceId("silent"))
    d.register(GIT)
    d.open(A)
    d.call(A, ResourceId("silent"))
    d.bet(GIT, lasts_s=100.0)
    assert [each.resource for each in started(d.pass_time(5.0))] == [GIT]


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


@pytest.mark.parametrize(("aside", "cure"), [(0, 900), (125, 1125), (167, 1201)])
def test_the_budget_that_is_named_as_the_cure_is_one_in_which_the_server_fits(aside: int, cure: int) -> None:
    policy = PoolPolicy(memory_bytes=500 * MB, set_aside_bytes=aside * MB)
    told = too_little_memory(GIT, 900 * MB, policy)
    assert told.endswith(f"at least {cure}")
    assert cure * 500 / (500 + aside) >= 900


def test_servers_that_can_never_fit_are_told_before_anybody_calls_them() -> None:
    d = driven(memory_bytes=500 * MB)
    d.register(EXCEL, memory_bytes=90 * MB)
    assert d.pool.statistics(0.0).too_large == ()
    d.register(memory_bytes=900 * MB)
    (told,) = d.pool.statistics(0.0).too_large
    assert told.startswith("git needs about 900 MB")


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


def hosted(d: Driven, memory_bytes: int) -> list[Instruction]:
    return d.tell(HostedMemoryMeasured(at_s=d.now_s, memory_bytes=memory_bytes))


def test_what_is_guessed_does_not_start_on_memory_that_hosted_sandboxes_use() -> None:
    d = driven(memory_bytes=250 * MB)
    d.register(GIT)
    d.open(A)
    hosted(d, 200 * MB)
    assert d.bet(GIT) is Refusal.POOL_MEMORY
    hosted(d, 150 * MB)
    assert started(d.bet(GIT) or [])  # type: ignore[arg-type]
    assert d.pool.statistics(0.0).hosted_bytes == 150 * MB


def test_a_mode_s_own_starts_wait_until_hosted_sandboxes_leave_memory_for_them() -> None:
    d = driven(Mode.EAGER, memory_bytes=250 * MB)
    d.register(GIT)
    hosted(d, 200 * MB)
    assert started(d.open(A)) == []
    assert started(hosted(d, 0))[0].resource == GIT


def test_a_call_does_not_wait_for_memory_that_hosted_sandboxes_use() -> None:
    d = driven(memory_bytes=250 * MB)
    d.register(GIT)
    d.open(A)
    hosted(d, 1_000 * MB)
    assert started(d.call(A, GIT))[0].priority is Priority.CLAIMED


def test_hosted_sandboxes_that_grow_displace_guesses_and_nothing_that_was_used() -> None:
    d = driven(memory_bytes=450 * MB)
    for name in (GIT, EXCEL, ResourceId("other")):
        d.register(name)
    d.open(A, B)
    for number, (session, is_read_only) in enumerate(((A, True), (B, False)), 1):
        d.call(session, GIT, read_only=is_read_only)
        d.ready(number)
        d.returns(number)
    d.bet(EXCEL, worth_s=2.0, probability=0.9)
    d.bet(ResourceId("other"), worth_s=0.1, probability=0.1)
    d.ready(3)
    d.ready(4)
    assert hosted(d, 50 * MB) == []
    assert hosted(d, 60 * MB) == [stop(4, StopReason.EVICTED)]
    d.stopped(4)
    assert hosted(d, 2_000 * MB) == [stop(3, StopReason.EVICTED)]
    assert hosted(d, 3_000 * MB) == []
    assert (d.state(1), d.state(2)) == (SandboxState.LEASED, SandboxState.LEASED)


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
