"""With `learn` off a broker may see anything: what it knows of a principal stays as it was."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headstart.core.actions import action_key
from headstart.core.broker import Broker, BrokerPolicy
from headstart.core.events import (
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    StartSandbox,
    StopSandbox,
    TimerFired,
    ToolProfile,
)
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, TextArrived, ToolCallClosed
from headstart.ids import CallId, GenerationId, PrincipalId, ResourceId, SequentialIds, SessionId

ME = PrincipalId("me")
TEXTS = {"excel": "pivot table in a spreadsheet workbook", "git": "commits of a branch", "pdf": "pages of a document"}
DOINGS = st.tuples(st.sampled_from(["open", "close", "think", "call", "wait"]), st.sampled_from(sorted(TEXTS)))
COURSE = st.lists(st.tuples(DOINGS, st.sampled_from("ab"), st.sampled_from([0.1, 2.0, 40.0, 200.0])), max_size=40)


class World:
    """Agents of two sessions, and a runtime that does at once what it is told."""

    def __init__(self, *, learn: bool, known: dict[str, Any] | None = None) -> None:
        self.broker = Broker(BrokerPolicy(learn=learn), SequentialIds())
        self.now_s, self.made = 0.0, 0
        self.open: set[SessionId] = set()
        for name, text in TEXTS.items():
            tools = (ToolProfile(name=f"{name}_do", description=text, read_only=True),)
            self.tell(ResourceRegistered(at_s=0.0, principal=ME, resource=ResourceId(name), tools=tools))
        if known is not None:
            self.broker.import_learned(ME, known)

    def tell(self, event: Event) -> None:
        for each in self.broker.handle(event):
            match each:
                case StartSandbox():
                    ready = SandboxBecameReady(
                        at_s=self.now_s, sandbox=each.sandbox, start_s=0.7, cpu_s=0.5, memory_bytes=10_000_000
                    )
                    self.tell(ready)
                case StopSandbox():
                    self.tell(SandboxStopped(at_s=self.now_s, sandbox=each.sandbox))
                case GrantLease():
                    done = CallReturned(at_s=self.now_s, call=each.call, sent_s=self.now_s, answered_s=self.now_s)
                    self.tell(done)
                case _:
                    pass

    def run(self, course: list[tuple[tuple[str, str], str, float]]) -> None:
        for (what, name), who, after_s in course:
            self.now_s += after_s
            self.do(what, ResourceId(name), SessionId(who))

    def do(self, what: str, resource: ResourceId, session: SessionId) -> None:
        self.made += 1
        match what:
            case "open" if session not in self.open:
                self.open.add(session)
                servers = tuple(ResourceId(name) for name in TEXTS)
                self.tell(SessionOpened(at_s=self.now_s, session=session, principal=ME, resources=servers))
            case "close" if session in self.open:
                self.open.remove(session)
                self.tell(SessionClosed(at_s=self.now_s, session=session))
            case "think":
                self.think(resource, session)
            case "call" if session in self.open:
                call, tool = CallId(f"c{self.made}"), f"{resource}_do"
                action = action_key(resource, tool, "{}")
                arrived = CallArrived(
                    at_s=self.now_s,
                    call=call,
                    session=session,
                    resource=resource,
                    tool=tool,
                    action=action,
                    read_only=True,
                )
                self.tell(arrived)
            case _:
                self.tell(TimerFired(at_s=self.now_s))

    def think(self, resource: ResourceId, session: SessionId) -> None:
        generation = GenerationId(f"g{self.made}")
        self.tell(GenerationStarted(at_s=self.now_s, generation=generation, principal=ME, session=session))
        self.tell(TextArrived(at_s=self.now_s, generation=generation, text=f"I need the {TEXTS[resource]}. "))
        tool = f"{resource}__{resource}_do"
        self.tell(ToolCallClosed(at_s=self.now_s, generation=generation, index=0, tool=tool, arguments="{}"))
        self.tell(GenerationEnded(at_s=self.now_s, generation=generation, outcome=GenerationOutcome.COMPLETED))


def known_of(broker: Broker) -> dict[str, Any]:
    """What was learned, without what starts took: that is measured in any case."""
    return {name: value for name, value in broker.export_learned(ME).items() if name != "starts"}


@given(before=COURSE, course=COURSE)
def test_whatever_happens_what_is_known_stays_as_it_was(
    before: list[tuple[tuple[str, str], str, float]], course: list[tuple[tuple[str, str], str, float]]
) -> None:
    taught = World(learn=True)
    taught.run(before)
    known = taught.broker.export_learned(ME)
    world = World(learn=False, known=known)
    at_first = known_of(world.broker)
    world.run(course)
    world.now_s += 1_000.0
    world.tell(TimerFired(at_s=world.now_s))
    assert known_of(world.broker) == at_first == known_of(taught.broker)


def test_the_same_course_does_teach_what_learns() -> None:
    world = World(learn=True)
    world.run([(("open", "git"), "a", 0.1), (("think", "git"), "a", 0.1), (("call", "git"), "a", 0.1)])
    world.tell(TimerFired(at_s=500.0))
    assert all(known_of(world.broker)[name] for name in ("transitions", "predictors"))
