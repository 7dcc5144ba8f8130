from __future__ import annotations

import anyio.lowlevel
import pytest

from headstart.clock import SystemClock
from headstart.core.events import CallAbandoned, Event, Instruction, StopReason, StopSandbox
from headstart.ids import CallId, SandboxId
from headstart.runtime.driver import Driver

pytestmark = pytest.mark.anyio


class Log:
    """Journal and broker in one: notes in which order both were given events."""

    def __init__(self) -> None:
        self.journalled: list[str] = []
        self.decided: list[str] = []
        self.bugs: set[str] = set()

    def append(self, event: Event) -> None:
        assert isinstance(event, CallAbandoned)
        self.journalled.append(event.call)

    def handle(self, event: Event) -> list[Instruction]:
        assert isinstance(event, CallAbandoned)
        self.decided.append(event.call)
        if event.call in self.bugs:
            raise RuntimeError("a bug")
        return [StopSandbox(sandbox=SandboxId(event.call), reason=StopReason.DRAINING)]


def driver_of(log: Log, carried_out: list[Instruction] | None = None) -> Driver:
    execute = (carried_out if carried_out is not None else []).append
    return Driver(decider=log, journal=log, clock=SystemClock(), execute=execute)


def event(name: str) -> CallAbandoned:
    return CallAbandoned(at_s=1.0, call=CallId(name))


async def test_an_event_for_soon_waits_until_the_task_pauses() -> None:
    log, carried_out = Log(), list[Instruction]()
    driver = driver_of(log, carried_out)
    driver.handle_soon(event("a"))
    assert log.decided == []
    await anyio.lowlevel.checkpoint()
    assert (log.journalled, log.decided, driver.handled) == (["a"], ["a"], 1)
    assert [type(one) for one in carried_out] == [StopSandbox]


async def test_the_next_event_is_handled_after_what_was_reported_before_it() -> None:
    log = Log()
    driver = driver_of(log)
    driver.handle_soon(event("a"))
    driver.handle_soon(event("b"))
    driver.handle(event("c"))
    assert log.journalled == log.decided == ["a", "b", "c"]
    await anyio.lowlevel.checkpoint()
    assert log.decided == ["a", "b", "c"]


async def test_whoever_looks_can_have_everything_settled_first() -> None:
    log = Log()
    driver = driver_of(log)
    driver.handle_soon(event("a"))
    driver.settle()
    assert log.decided == ["a"]
    driver.handle_soon(event("b"))
    await anyio.lowlevel.checkpoint()
    assert log.decided == ["a", "b"]


async def test_a_bug_met_later_is_counted_and_is_not_the_next_event_s(caplog: pytest.LogCaptureFixture) -> None:
    log = Log()
    log.bugs = {"a", "c"}
    driver = driver_of(log)
    driver.handle_soon(event("a"))
    driver.handle(event("b"))
    assert (log.decided, driver.broken) == (["a", "b"], 1)
    assert "the broker could not handle CallAbandoned" in caplog.text
    with pytest.raises(RuntimeError, match="a bug"):
        driver.handle(event("c"))


async def test_an_event_reported_while_another_is_carried_out_comes_after_it() -> None:
    log = Log()

    def execute(instruction: Instruction) -> None:
        if isinstance(instruction, StopSandbox) and instruction.sandbox == "a":
            driver.handle(event("b"))
            assert log.decided == ["a"]

    driver = Driver(decider=log, journal=log, clock=SystemClock(), execute=execute)
    driver.handle(event("a"))
    assert log.journalled == log.decided == ["a", "b"]


async def test_a_bug_met_in_a_report_is_told_and_counted_and_its_reporter_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
    log.bugs = {"a"}
    driver = driver_of(log)
    driver.report(event("a"))
    driver.report(event("b"))
    assert (log.decided, driver.broken) == (["a", "b"], 1)
    assert "RuntimeError: a bug" in caplog.text
