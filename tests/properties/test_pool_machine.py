"""The pool against a tiny model: every promise that its essay makes, after every event."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headstart.core.actions import ActionKey
from headstart.core.bets import Bet, BetId, BetKind, PredictorName
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    DrainRequested,
    Event,
    GrantLease,
    HostedMemoryMeasured,
    Instruction,
    LeaseRefusal,
    Priority,
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
    StopSandbox,
    TimerFired,
)
from headstart.core.pool import Estimates, Mode, Pool, PoolPolicy, Stake, StakeLost, StakeWon
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SequentialIds, SessionId

ME = PrincipalId("me")
OTHER = PrincipalId("other")
MB = 1_000_000
MEMORY = {"light": 50 * MB, "heavy": 200 * MB, "own": 80 * MB, "shared": 60 * MB}
RESOURCES = tuple(ResourceId(name) for name in MEMORY)
SESSIONS = tuple(SessionId(f"s{n}") for n in range(4))
BUDGET = 280 * MB
SLOTS = 2
HOLDS_SLOT_S = 8.0
"""Four times what a start takes here; one that takes longer makes room for others."""


@dataclass
class Box:
    """What the model knows of a sandbox from the instructions alone."""

    resource: ResourceId
    priority: Priority
    session: SessionId | None
    began_s: float
    state: str = "starting"
    users: set[SessionId] = field(default_factory=set[SessionId])


class PoolMachine(RuleBasedStateMachine):
    """Drives a pool as a runtime would, late events included."""

    mode = Mode.PREDICTIVE

    @initialize()
    def open_pool(self) -> None:
        policy = PoolPolicy(mode=self.mode, memory_bytes=BUDGET, starts_at_once=SLOTS, claim_patience_s=5.0)
        self.now_s = 0.0
        self.pool = Pool(policy, SequentialIds(), Estimates())
        self.boxes: dict[SandboxId, Box] = {}
        self.open: set[SessionId] = set()
        self.calls: dict[CallId, tuple[SessionId, ResourceId]] = {}
        self.ended: dict[CallId, str] = {}
        self.in_flight: dict[CallId, SandboxId] = {}
        self.told_lost: list[tuple[SessionId, ResourceId]] = []
        self.staked: set[BetId] = set()
        self.settled: set[BetId] = set()
        self.hosted_bytes = 0
        self.next_call = 0
        self.next_bet = 0
        self.draining = False
        for resource in RESOURCES:
            self.register(resource)

    def register(self, resource: ResourceId) -> None:
        self.tell(
            ResourceRegistered(
                at_s=self.now_s,
                principal=ME,
                resource=resource,
                shared=resource == "shared",
                session_specific=resource == "own",
                start_s=2.0,
                memory_bytes=MEMORY[resource],
            )
        )

    def tell(self, event: Event) -> None:
        self.carry_out(self.pool.handle(event))

    def carry_out(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            match each:
                case StartSandbox():
                    self.started(each)
                case StopSandbox():
                    assert self.boxes[each.sandbox].state in {"starting", "warm"}
                    self.boxes[each.sandbox].state = "stopping"
                case GrantLease():
                    self.granted(each)
                case RefuseLease():
                    self.end(each.call, "refused")
                    if each.refusal is LeaseRefusal.STATE_LOST:
                        self.told_lost.append(self.calls[each.call])
                case _:
                    pass
        for fact in self.pool.take_facts():
            if isinstance(fact, StakeWon | StakeLost):
                assert fact.stake.id not in self.settled, "a bet is settled once"
                self.settled.add(fact.stake.id)

    def started(self, start: StartSandbox) -> None:
        assert start.sandbox not in self.boxes
        starting = (box for box in self.boxes.values() if box.state == "starting")
        running = [box for box in starting if self.now_s < box.began_s + HOLDS_SLOT_S]
        if start.priority is Priority.PREDICTED:
            assert len(running) < SLOTS
            assert not self.waiting_without_start(), "a prediction went before a call that waits"
        else:
            assert sum(box.priority is not Priority.PREDICTED for box in running) < SLOTS
        alive = [box.resource for box in self.boxes.values() if box.state != "stopping"]
        assert start.resource != "shared" or "shared" not in alive, "a second one of what is shared"
        self.boxes[start.sandbox] = Box(start.resource, start.priority, start.session, self.now_s)
        used = sum(MEMORY[box.resource] for box in self.boxes.values())
        assert used <= BUDGET, "an admitted start exceeds the memory budget"
        if start.priority is not Priority.CLAIMED:
            assert used + self.hosted_bytes <= BUDGET, "a guess has started on memory that hosted sandboxes use"

    def waiting_without_start(self) -> bool:
        return any(each.waiting for each in self.pool.inventory.queue(Priority.CLAIMED))

    def granted(self, grant: GrantLease) -> None:
        assert grant.sandbox is not None
        box = self.boxes[grant.sandbox]
        session, resource = self.calls[grant.call]
        assert box.state == "warm", "a call was granted a sandbox that is not warm"
        assert box.resource == resource
        box.users.add(session)
        assert box.resource == "shared" or len(box.users) == 1, "two sessions on one sandbox"
        assert box.session is None or box.session == session, "another session's identity"
        assert grant.call not in self.ended
        self.in_flight[grant.call] = grant.sandbox
        self.end(grant.call, "granted")

    def end(self, call: CallId, how: str) -> None:
        assert call not in self.ended, f"{call} was {self.ended[call]} and is now {how}"
        self.ended[call] = how

    def pick(self, data: st.DataObject, state: str) -> SandboxId | None:
        found = sorted(sandbox for sandbox, box in self.boxes.items() if box.state == state)
        return data.draw(st.sampled_from(found)) if found else None

    # ------------------------------------------------------------ what agents do

    @rule(session=st.sampled_from(SESSIONS))
    def open_session(self, session: SessionId) -> None:
        self.open.add(session)
        self.tell(SessionOpened(at_s=self.now_s, session=session, principal=ME, resources=RESOURCES))

    @rule(session=st.sampled_from(SESSIONS))
    def close_session(self, session: SessionId) -> None:
        self.open.discard(session)
        self.tell(SessionClosed(at_s=self.now_s, session=session))
        for call, (owner, _) in self.calls.items():
            if owner == session:
                assert call in self.ended, "a call of a closed session still waits"
                self.in_flight.pop(call, None)

    @rule(session=st.sampled_from(SESSIONS), resource=st.sampled_from(RESOURCES), read_only=st.booleans())
    def call(self, session: SessionId, resource: ResourceId, read_only: bool) -> None:
        self.next_call += 1
        call = CallId(f"c{self.next_call}")
        self.calls[call] = (session, resource)
        self.tell(
            CallArrived(
                at_s=self.now_s,
                call=call,
                session=session,
                resource=resource,
                tool="t",
                action=ActionKey("a"),
                read_only=read_only,
            )
        )
        if session not in self.open or self.draining:
            assert self.ended[call] == "refused"

    @rule(data=st.data())
    def call_returns(self, data: st.DataObject) -> None:
        if self.in_flight:
            call = data.draw(st.sampled_from(sorted(self.in_flight)))
            del self.in_flight[call]
            self.tell(CallReturned(at_s=self.now_s, call=call, sent_s=self.now_s, answered_s=self.now_s))

    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        waiting = sorted(set(self.calls) - set(self.ended)) or sorted(self.in_flight)
        if waiting:
            call = data.draw(st.sampled_from(waiting))
            self.in_flight.pop(call, None)
            self.ended.setdefault(call, "abandoned")
            self.tell(CallAbandoned(at_s=self.now_s, call=call))

    @rule(
        resource=st.sampled_from(RESOURCES),
        session=st.sampled_from([None, *SESSIONS]),
        probability=st.sampled_from([0.2, 0.9]),
        lasts_s=st.sampled_from([1.0, 20.0]),
    )
    def bet(self, resource: ResourceId, session: SessionId | None, probability: float, lasts_s: float) -> None:
        self.next_bet += 1
        bet = Bet(
            kind=BetKind.PREWARM,
            predictor=PredictorName("test"),
            principal=ME,
            session=session,
            resource=resource,
            probability=probability,
            hidden_s=2.0,
            expires_s=self.now_s + lasts_s,
        )
        backer = session or f"conversation-{self.next_bet % 3}"
        if self.pool.refusal_of(bet, backer) is not None:
            return
        stake = Stake(
            id=BetId(f"b{self.next_bet}"),
            bet=bet,
            probability=probability,
            backer=backer,
            worth_s=probability,
            placed_s=self.now_s,
            expires_s=bet.expires_s,
            cpu_s=1.0,
        )
        if self.pool.has_room(stake):
            self.staked.add(stake.id)
            self.carry_out(self.pool.place(stake))

    # ------------------------------------------------------------ what sandboxes do

    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        sandbox = self.pick(data, "starting")
        if sandbox is not None:
            self.boxes[sandbox].state = "warm"
            memory = MEMORY[self.boxes[sandbox].resource]
            self.tell(SandboxBecameReady(at_s=self.now_s, sandbox=sandbox, start_s=2.0, cpu_s=1.5, memory_bytes=memory))

    @rule(data=st.data())
    def start_fails(self, data: st.DataObject) -> None:
        sandbox = self.pick(data, "starting")
        if sandbox is not None:
            del self.boxes[sandbox]
            self.tell(SandboxStartFailed(at_s=self.now_s, sandbox=sandbox, message="no"))

    @rule(data=st.data())
    def exits(self, data: st.DataObject) -> None:
        sandbox = self.pick(data, "warm")
        if sandbox is not None:
            del self.boxes[sandbox]
            self.tell(SandboxExited(at_s=self.now_s, sandbox=sandbox, message="signal 9"))

    @rule(data=st.data(), late=st.sampled_from(["", "ready", "failed", "exited"]))
    def stop_completes(self, data: st.DataObject, late: str) -> None:
        sandbox = self.pick(data, "stopping")
        if sandbox is None:
            return
        memory = MEMORY[self.boxes[sandbox].resource]
        match late:
            case "ready":
                self.tell(SandboxBecameReady(at_s=self.now_s, sandbox=sandbox, start_s=2, cpu_s=1, memory_bytes=memory))
            case "failed":
                self.tell(SandboxStartFailed(at_s=self.now_s, sandbox=sandbox, message="late"))
            case "exited":
                self.tell(SandboxExited(at_s=self.now_s, sandbox=sandbox, message="late"))
            case _:
                pass
        del self.boxes[sandbox]
        self.tell(SandboxStopped(at_s=self.now_s, sandbox=sandbox, cpu_s=2.0))
        self.tell(SandboxMeasured(at_s=self.now_s, sandbox=sandbox, memory_bytes=memory, cpu_s=2.0))

    # ------------------------------------------------------------ what time and operators do

    @rule(seconds=st.sampled_from([0.01, 0.7, 6.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        due_s = self.pool.next_deadline_s()
        if due_s is not None and due_s <= self.now_s:
            self.tell(TimerFired(at_s=self.now_s))

    @rule(memory_bytes=st.sampled_from([0, 60 * MB, 200 * MB, 2 * BUDGET]))
    def hosted_sandboxes_use(self, memory_bytes: int) -> None:
        self.hosted_bytes = memory_bytes
        claimed = [each.id for each in self.pool.inventory if each.claimed and each.alive]
        self.tell(HostedMemoryMeasured(at_s=self.now_s, memory_bytes=memory_bytes))
        for sandbox in claimed:
            found = self.pool.inventory.find(sandbox)
            assert found is not None
            assert found.alive, "what is used was stopped for a hosted sandbox"

    @rule(resource=st.sampled_from(RESOURCES))
    def register_again(self, resource: ResourceId) -> None:
        self.register(resource)

    @precondition(lambda self: len(self.calls) > 8)
    @rule()
    def drain(self) -> None:
        self.draining = True
        self.tell(DrainRequested(at_s=self.now_s))
        assert set(self.calls) == set(self.ended), "a call still waits while the service stops"

    # ------------------------------------------------------------ what holds always

    @invariant()
    def the_pool_agrees_with_itself(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_invariants()

    @invariant()
    def waiting_calls_are_known_to_the_pool(self) -> None:
        if hasattr(self, "pool"):
            waiting = {call for each in self.pool.inventory for call in each.waiting}
            assert waiting == set(self.calls) - set(self.ended)

    @invariant()
    def the_pool_and_the_machine_have_the_same_sandboxes(self) -> None:
        if hasattr(self, "pool"):
            assert {e.id for e in self.pool.inventory if e.holds_memory} == set(self.boxes)

    def teardown(self) -> None:
        """Everything can be ended, and then nothing is left."""
        if not hasattr(self, "pool"):
            return
        for session in SESSIONS:
            self.close_session(session)
        self.tell(DrainRequested(at_s=self.now_s))
        for sandbox, box in list(self.boxes.items()):
            assert box.state == "stopping"
            del self.boxes[sandbox]
            self.tell(SandboxStopped(at_s=self.now_s, sandbox=sandbox))
        assert len(self.pool.inventory) == 0
        assert self.pool.book.open_calls == 0
        assert self.settled == self.staked, "every bet is settled in the end"
        self.pool.check_invariants()


class OnDemandMachine(PoolMachine):
    mode = Mode.ON_DEMAND


class EagerMachine(PoolMachine):
    mode = Mode.EAGER


class ReservedMachine(PoolMachine):
    mode = Mode.RESERVED


_EFFORT = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestPredictive = PoolMachine.TestCase
TestPredictive.settings = _EFFORT
TestOnDemand = OnDemandMachine.TestCase
TestOnDemand.settings = _EFFORT
TestEager = EagerMachine.TestCase
TestEager.settings = _EFFORT
TestReserved = ReservedMachine.TestCase
TestReserved.settings = _EFFORT
