"""A day of agents in virtual time: what the pool's modes cost and save on the same traffic.

The world is small and honest: starts take their time, calls take theirs, the model writes
at 20 ms per token. Agents follow habits (a chain over servers); half of them think aloud,
half write nothing before a call. Nothing here is measured on a clock, so the numbers are
the same on every machine.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pytest

from headstart.core.actions import action_key
from headstart.core.bets import BetKind
from headstart.core.broker import Broker, BrokerPolicy
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    Instruction,
    RefuseLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxExited,
    SandboxStartFailed,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopSandbox,
    TimerFired,
    ToolProfile,
)
from headstart.core.pool import Mode, PoolPolicy
from headstart.core.steps import Preparation, SessionSummary, Step
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
MB = 1_000_000
TOKEN_S = 0.02


@dataclass(frozen=True)
class Server:
    start_s: float
    memory_bytes: int
    words: str
    then: tuple[str, ...]


SERVERS = {
    "workbook": Server(0.8, 90 * MB, "pivot table in the spreadsheet workbook cells", ("slides", "workbook")),
    "slides": Server(0.6, 80 * MB, "slide deck with a presentation layout", ("papers", "slides")),
    "papers": Server(2.5, 150 * MB, "arxiv papers with citations and abstracts", ("pdftext", "papers")),
    "pdftext": Server(0.7, 70 * MB, "extract the pdf pages as markdown", ("algebra", "workbook")),
    "algebra": Server(1.1, 110 * MB, "solve the symbolic equation and its integral", ("workbook", "algebra")),
    "notes": Server(4.0, 200 * MB, "remember notes in the knowledge graph memory", ("notes", "papers")),
}


Agent = Iterator[float | CallArrived]
"""Yields how long it pauses, or a call that it waits for."""


@dataclass
class World:
    """Carries out what a broker says, and lets agents live."""

    mode: Mode
    seed: int = 7
    memory_bytes: int = 2_000 * MB
    waste_cpu_share: float = 0.5
    faults: float = 0.0
    """The share of starts that fail, of warm sandboxes that die, of calls that are given up."""
    told: list[tuple[Event, tuple[Instruction, ...]]] = field(
        default_factory=list[tuple[Event, tuple[Instruction, ...]]], repr=False
    )

    def __post_init__(self) -> None:
        pool = PoolPolicy(mode=self.mode, memory_bytes=self.memory_bytes, starts_at_once=2)
        self.policy = BrokerPolicy(pool=pool, waste_cpu_share=self.waste_cpu_share)
        self.broker = Broker(self.policy, SequentialIds())
        self.random = random.Random(self.seed)
        self.now_s = 0.0
        self.order = itertools.count()
        self.agenda: list[tuple[float, int, Event | Agent]] = []
        self.timer_s: float | None = None
        self.running: dict[SandboxId, int] = {}
        self.starting: set[SandboxId] = set()
        self.stopped: set[SandboxId] = set()
        self.waits: dict[CallId, tuple[float, Agent]] = {}
        self.waited_s: list[float] = []
        self.peak_bytes = 0
        self.cpu_s = 0.0
        self.names = itertools.count(1)
        self.finished: list[Step | Preparation | SessionSummary] = []

    # ------------------------------------------------------------ the machine

    def tell(self, event: Event) -> None:
        instructions = self.broker.handle(event)
        if not isinstance(event, TextArrived):
            self.broker.check_invariants()
        self.told.append((event, tuple(instructions)))
        for each in instructions:
            self.carry_out(each)

    def at(self, at_s: float, what: Event | Agent) -> None:
        heapq.heappush(self.agenda, (at_s, next(self.order), what))

    def carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case StartSandbox():
                server = SERVERS[instruction.resource]
                self.running[instruction.sandbox] = server.memory_bytes
                self.starting.add(instruction.sandbox)
                self.cpu_s += server.start_s
                self.peak_bytes = max(self.peak_bytes, sum(self.running.values()))
                assert len(self.starting) <= 2 * self.policy.pool.starts_at_once
                assert sum(self.running.values()) <= self.memory_bytes
                if self.goes_wrong():
                    failed = SandboxStartFailed(
                        at_s=self.now_s + server.start_s / 2, sandbox=instruction.sandbox, message="no"
                    )
                    self.at(failed.at_s, failed)
                    return
                ready = SandboxBecameReady(
                    at_s=self.now_s + server.start_s,
                    sandbox=instruction.sandbox,
                    start_s=server.start_s,
                    cpu_s=server.start_s,
                    memory_bytes=server.memory_bytes,
                )
                self.at(ready.at_s, ready)
            case StopSandbox():
                self.stopped.add(instruction.sandbox)
                self.starting.discard(instruction.sandbox)
                gone = SandboxStopped(at_s=self.now_s + 0.01, sandbox=instruction.sandbox)
                self.at(gone.at_s, gone)
            case GrantLease():
                arrived_s, agent = self.waits.pop(instruction.call)
                self.waited_s.append(self.now_s - arrived_s)
                self.at(self.now_s, agent)
            case RefuseLease():
                _, agent = self.waits.pop(instruction.call)
                self.at(self.now_s, agent)
            case SetTimer():
                self.timer_s = instruction.at_s
            case _:
                pass

    def run(self) -> World:
        for name, server in SERVERS.items():
            self.tell(
                ResourceRegistered(
                    at_s=0.0,
                    principal=ME,
                    resource=ResourceId(name),
                    tools=(ToolProfile(name=f"{name}_run", description=server.words, read_only=True),),
                    start_s=server.start_s,
                    start_cpu_s=server.start_s,
                    memory_bytes=server.memory_bytes,
                )
            )
        while self.agenda:
            due_s = self.agenda[0][0]
            if self.timer_s is not None and self.timer_s <= due_s:
                self.now_s, self.timer_s = max(self.now_s, self.timer_s), None
                self.tell(TimerFired(at_s=self.now_s))
                continue
            self.now_s, _, what = heapq.heappop(self.agenda)
            if isinstance(what, Iterator):
                self.go_on(what)
            else:
                self.happen(what)
        self.finished += self.broker.take_finished()
        return self

    def happen(self, event: Event) -> None:
        match event:
            case SandboxBecameReady() | SandboxStartFailed() | SandboxExited() if event.sandbox in self.stopped:
                return  # it was stopped before
            case SandboxBecameReady():
                self.starting.discard(event.sandbox)
                if self.goes_wrong():
                    died = SandboxExited(at_s=self.now_s + 1.0, sandbox=event.sandbox, message="signal 9")
                    self.at(died.at_s, died)
            case SandboxStopped() | SandboxStartFailed() | SandboxExited():
                self.starting.discard(event.sandbox)
                self.running.pop(event.sandbox)
            case CallAbandoned():
                if event.call not in self.waits:
                    return  # it was granted or refused before
                _, agent = self.waits.pop(event.call)
                self.at(self.now_s, agent)
            case _:
                pass
        self.tell(event)

    def goes_wrong(self) -> bool:
        return self.faults > 0.0 and self.random.random() < self.faults

    def go_on(self, agent: Agent) -> None:
        wanted = next(agent, None)
        if isinstance(wanted, CallArrived):
            self.waits[wanted.call] = (self.now_s, agent)
            self.tell(wanted)
        elif wanted is not None:
            self.at(self.now_s + wanted, agent)

    # ------------------------------------------------------------ the agents

    def agents(self, count: int, *, every_s: float, known: bool = True) -> World:
        for n in range(count):
            self.at(n * every_s, self.agent(known=known))
        return self

    def agent(self, *, known: bool) -> Agent:
        session = SessionId(f"s{next(self.names)}")
        everything = tuple(map(ResourceId, SERVERS))
        self.tell(SessionOpened(at_s=self.now_s, session=session, principal=ME, resources=everything))
        server = self.random.choice(list(SERVERS))
        answered: tuple[str, ...] = ()
        for turn in range(6):
            wire_id = f"{session}-{turn}"
            yield from self.think(session if known else None, session, server, turn, answered, wire_id)
            yield from self.call(session, server, turn)
            if self.goes_wrong():
                break
            answered = (wire_id,)
            server = self.random.choices(SERVERS[server].then, weights=(4, 1))[0]
        self.tell(SessionClosed(at_s=self.now_s, session=session))

    def think(
        self,
        named: SessionId | None,
        session: SessionId,
        server: str,
        turn: int,
        answered: tuple[str, ...],
        wire_id: str,
    ) -> Agent:
        generation = GenerationId(f"g{next(self.names)}")
        self.tell(
            GenerationStarted(
                at_s=self.now_s,
                generation=generation,
                principal=ME,
                session=named,
                opening="the same for all",
                text="please go on",
                answered_calls=answered,
                turn=turn,
            )
        )
        yield 0.4
        words = SERVERS[server].words.split() if self.random.random() < 0.5 else []
        for word in [*["well"] * 20, *words, *["so"] * 40]:
            if words:
                self.tell(TextArrived(at_s=self.now_s, generation=generation, text=f"{word} "))
            yield TOKEN_S
        tool = f"{server}__{server}_run"
        self.tell(ToolCallOpened(at_s=self.now_s, generation=generation, index=0, tool=tool, wire_id=wire_id))
        yield 15 * TOKEN_S
        arguments = f'{{"n":"{session}-{turn}"}}'
        self.tell(
            ToolCallClosed(
                at_s=self.now_s, generation=generation, index=0, tool=tool, arguments=arguments, wire_id=wire_id
            )
        )
        self.tell(GenerationEnded(at_s=self.now_s, generation=generation, outcome=GenerationOutcome.COMPLETED))
        yield 0.01

    def call(self, session: SessionId, server: str, turn: int) -> Agent:
        call = CallId(f"c{next(self.names)}")
        arguments = f'{{"n":"{session}-{turn}"}}'
        if self.goes_wrong():
            self.at(self.now_s + 0.5, CallAbandoned(at_s=self.now_s + 0.5, call=call))
        yield CallArrived(
            at_s=self.now_s,
            call=call,
            session=session,
            resource=ResourceId(server),
            tool=f"{server}_run",
            action=action_key(server, f"{server}_run", arguments),
            read_only=True,
        )
        yield 0.3
        if self.goes_wrong():
            self.tell(CallAbandoned(at_s=self.now_s, call=call))
            return
        self.tell(CallReturned(at_s=self.now_s, call=call, sent_s=self.now_s - 0.3, answered_s=self.now_s))


@lru_cache
def day(mode: Mode, *, known: bool = True, memory_mb: int = 6_000) -> World:
    return World(mode, memory_bytes=memory_mb * MB).agents(24, every_s=8.0, known=known).run()


def mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def test_predictive_waits_several_times_less_than_on_demand_for_less_memory_than_reserved() -> None:
    on_demand, predictive, reserved = day(Mode.ON_DEMAND), day(Mode.PREDICTIVE), day(Mode.RESERVED)
    assert len(on_demand.waited_s) == len(predictive.waited_s) == len(reserved.waited_s) == 144
    assert mean(predictive.waited_s) * 4.5 < mean(on_demand.waited_s)
    assert predictive.peak_bytes < reserved.peak_bytes
    assert predictive.cpu_s < reserved.cpu_s


def test_conversations_that_nobody_named_are_joined_by_their_calls_and_served_almost_as_well() -> None:
    assert mean(day(Mode.PREDICTIVE, known=False).waited_s) * 4 < mean(day(Mode.ON_DEMAND, known=False).waited_s)


def test_waste_stays_within_its_budget() -> None:
    world = day(Mode.PREDICTIVE)
    waste = world.broker.statistics(world.now_s).waste
    assert waste.wasted_cpu_s <= world.policy.waste_cpu_burst_s + world.policy.waste_cpu_share * world.now_s
    assert waste.open_bets == 0


@pytest.mark.parametrize("mode", list(Mode))
def test_a_memory_budget_for_three_servers_is_never_exceeded_and_every_call_is_answered(mode: Mode) -> None:
    world = day(mode, memory_mb=450)  # the world itself asserts the budget at each start
    assert world.peak_bytes <= 450 * MB
    assert not world.waits


@pytest.mark.parametrize("mode", list(Mode))
def test_nothing_is_left_when_all_sessions_have_closed(mode: Mode) -> None:
    world = day(mode)
    left = world.broker.statistics(world.now_s).pool
    assert (left.sessions, left.calls, left.queued) == (0, 0, 0)
    reserved = len(SERVERS) if mode is Mode.RESERVED else 0
    assert len(left.sandboxes) == len(world.running) == reserved


@pytest.mark.parametrize("mode", list(Mode))
def test_a_replay_of_the_events_gives_the_same_instructions(mode: Mode) -> None:
    world = day(mode, memory_mb=450)
    broker = Broker(world.policy, SequentialIds())
    for event, instructions in world.told:
        assert tuple(broker.handle(event)) == instructions


@pytest.mark.parametrize("mode", list(Mode))
def test_starts_that_fail_sandboxes_that_die_and_agents_that_leave_break_no_promise(mode: Mode) -> None:
    world = World(mode, memory_bytes=450 * MB, faults=0.15, seed=3)
    world.agents(30, every_s=5.0).run()  # after every event the invariants are asserted
    assert any(isinstance(event, SandboxExited) for event, _ in world.told)
    assert not world.waits
    left = world.broker.statistics(world.now_s)
    assert (left.pool.sessions, left.pool.calls) == (0, 0)
    assert all(record.open == 0 for record in left.predictors.records)
    broker = Broker(world.policy, SequentialIds())
    assert all(tuple(broker.handle(event)) == instructions for event, instructions in world.told)


def test_the_record_and_the_trace_tell_the_same_story() -> None:
    world = day(Mode.PREDICTIVE)
    records = world.broker.statistics(world.now_s).predictors.records
    preparations = [each for each in world.finished if isinstance(each, Preparation)]
    summaries = [each for each in world.finished if isinstance(each, SessionSummary)]
    steps = [each for each in world.finished if isinstance(each, Step)]
    assert len(steps) == 144
    assert len(summaries) == 24
    assert all(record.open == 0 for record in records)
    assert sum(record.hits for record in records) == sum(each.won for each in preparations)
    hidden_s = sum(record.hidden_s for record in records)
    assert hidden_s == pytest.approx(sum(each.hidden_s for each in preparations))
    assert hidden_s == pytest.approx(sum(each.hidden_s + each.kept_s for each in summaries))
    waited_s = sum(call.waited_s for step in steps for call in step.calls)
    assert waited_s == pytest.approx(sum(world.waited_s))
    kept_s = sum(each.hidden_s for each in preparations if each.kind is BetKind.KEEP)
    assert kept_s > 0.0


def test_what_was_learned_today_helps_tomorrow_and_can_be_forgotten() -> None:
    learned = day(Mode.PREDICTIVE).broker.export_learned(ME)
    tomorrow = World(Mode.PREDICTIVE, memory_bytes=6_000 * MB, seed=8)
    tomorrow.broker.import_learned(ME, json.loads(json.dumps(learned)))
    assert tomorrow.broker.export_learned(ME) == learned
    unlearned = World(Mode.PREDICTIVE, memory_bytes=6_000 * MB, seed=8)
    knows, knows_not = (mean(world.agents(6, every_s=30.0).run().waited_s) for world in (tomorrow, unlearned))
    assert knows < knows_not
    tomorrow.broker.forget(ME)
    assert tomorrow.broker.export_learned(ME) == Broker(tomorrow.policy, SequentialIds()).export_learned(ME)
