"""What has to go when memory is needed."""

from __future__ import annotations

from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.events import Cause, Priority
from headstart.core.pool.eviction import Standing, cheapest_first, standing_of, value_density, victims_for
from headstart.core.pool.sandboxes import Sandbox, SandboxState, Stake
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

ME, S = PrincipalId("me"), SessionId("s")
MB = 1_000_000


def sandbox(
    name: str,
    *,
    state: SandboxState = SandboxState.READY,
    priority: Priority = Priority.PREDICTED,
    memory_bytes: int = 100 * MB,
    p: float | None = None,
    expires_s: float = 10.0,
    idle_since_s: float | None = None,
) -> Sandbox:
    made = Sandbox(
        id=SandboxId(name),
        principal=ME,
        resource=ResourceId(name),
        priority=priority,
        cause=Cause(),
        created_s=0.0,
        memory_bytes=memory_bytes,
        state=state,
        claimed=state is SandboxState.LEASED,
        idle_since_s=idle_since_s,
    )
    if p is not None:
        bet = Bet(
            kind=BetKind.PREWARM,
            predictor=PredictorName("keyword"),
            principal=ME,
            session=S,
            resource=made.resource,
            probability=p,
            hidden_s=1.0,
            expires_s=expires_s,
        )
        made.stake = Stake(
            id=BetId(name), bet=bet, probability=p, backer=S, worth_s=p, placed_s=0.0, expires_s=expires_s, cpu_s=1.0
        )
    return made


def claimed_newcomer() -> Sandbox:
    return sandbox("new", state=SandboxState.QUEUED, priority=Priority.CLAIMED)


def names(found: list[Sandbox]) -> list[str]:
    return [each.id for each in found]


def test_the_order_is_bets_by_value_then_reserves_then_idle_then_state() -> None:
    stateful = sandbox("stateful", state=SandboxState.LEASED, idle_since_s=0.0)
    stateful.stateful_for[S] = None
    everything = [
        stateful,
        sandbox("idle", state=SandboxState.LEASED, idle_since_s=5.0),
        sandbox("idle longer", state=SandboxState.LEASED, idle_since_s=1.0),
        sandbox("reserve"),
        sandbox("likely", p=0.9),
        sandbox("unlikely", p=0.1),
    ]
    order = ["unlikely", "likely", "reserve", "idle longer", "idle", "stateful"]
    assert names(victims_for(claimed_newcomer(), everything, need_bytes=600 * MB, now_s=6.0)) == order
    assert names(cheapest_first(everything, 6.0)) == order[:-1], "state never goes for its price"


def test_victims_are_chosen_all_or_none_and_no_more_than_needed() -> None:
    two = [sandbox("a", p=0.1), sandbox("b", p=0.2)]
    assert victims_for(claimed_newcomer(), two, need_bytes=300 * MB, now_s=0.0) == []
    assert names(victims_for(claimed_newcomer(), two, need_bytes=50 * MB, now_s=0.0)) == ["a"]


def test_what_runs_or_awaits_a_call_is_untouchable() -> None:
    busy = sandbox("busy", state=SandboxState.LEASED)
    busy.running[CallId("c")] = None
    awaited = sandbox("awaited", state=SandboxState.STARTING)
    awaited.waiting[CallId("c")] = None
    assert {standing_of(busy), standing_of(awaited)} == {Standing.UNTOUCHABLE}
    assert standing_of(sandbox("stopping", state=SandboxState.STOPPING)) is Standing.UNTOUCHABLE


def test_a_bet_about_to_end_is_dearer_to_evict_than_one_that_asks_for_much_more() -> None:
    assert value_density(sandbox("late", p=0.5, expires_s=11.0), 10.0) > value_density(
        sandbox("early", p=0.5, expires_s=60.0), 10.0
    )


def test_a_bet_displaces_neither_state_nor_reserves_nor_its_equal() -> None:
    newcomer = sandbox("new", state=SandboxState.QUEUED, p=0.5)
    stateful = sandbox("stateful", state=SandboxState.LEASED)
    stateful.stateful_for[S] = None
    others = [stateful, sandbox("reserve"), sandbox("equal", p=0.5)]
    assert victims_for(newcomer, others, need_bytes=1, now_s=0.0) == []
    assert names(victims_for(newcomer, [*others, sandbox("less", p=0.2)], need_bytes=1, now_s=0.0)) == ["less"]


def test_a_configured_start_displaces_bets_only() -> None:
    newcomer = sandbox("new", state=SandboxState.QUEUED, priority=Priority.CONFIGURED)
    others = [sandbox("idle", state=SandboxState.LEASED), sandbox("reserve"), sandbox("bet", p=0.9)]
    assert names(victims_for(newcomer, others, need_bytes=1, now_s=0.0)) == ["bet"]
