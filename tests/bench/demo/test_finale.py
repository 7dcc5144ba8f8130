"""The conversation that changes its mind, decided by the real core on servers like the demo's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from headstart.bench import demo
from headstart.bench.demo.finale import SECOND_THOUGHTS
from headstart.bench.labelled import servers
from headstart.bench.replay_model import Recording, load_recordings
from headstart.bench.replay_model.playback import play
from headstart.core.broker import Broker, BrokerPolicy
from headstart.core.events import (
    Event,
    Priority,
    SandboxBecameReady,
    SandboxStopped,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopReason,
    StopSandbox,
    TimerFired,
)
from headstart.core.intent.candidates import KEYWORD_HINT
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, TextArrived
from headstart.ids import GenerationId, PrincipalId, SequentialIds, SessionId

ME, S = PrincipalId("me"), SessionId("s")
TPOT_S = 0.02


def second_thoughts() -> Recording:
    recordings = load_recordings(Path(demo.__file__).with_name("sessions.toml"))
    return next(one for one in recordings if one.session == SECOND_THOUGHTS)


def said(recording: Recording) -> Iterator[Event]:
    """The conversation as the proxy reads it, token by token."""
    [step] = recording.steps
    generation, at_s = GenerationId("g"), 1.0
    yield GenerationStarted(at_s=at_s, generation=generation, principal=ME, session=S, text=recording.user)
    for delta in play(step, SequentialIds()):
        at_s = 1.0 + delta.token * TPOT_S
        yield TextArrived(at_s=at_s, generation=generation, text=delta.content["content"])
    yield GenerationEnded(at_s=at_s, generation=generation, outcome=GenerationOutcome.COMPLETED)


def test_it_makes_the_keyword_predictor_prepare_powerpoint_and_nobody_comes_for_it() -> None:
    broker = Broker(BrokerPolicy(), SequentialIds())
    known = [replace(one, start_s=0.1, start_cpu_s=0.02, memory_bytes=50_000_000) for one in servers(ME)]
    for one in known:
        broker.handle(one)
    broker.handle(SessionOpened(at_s=0.0, session=S, principal=ME, resources=tuple(one.resource for one in known)))
    told = [instruction for event in said(second_thoughts()) for instruction in broker.handle(event)]
    [start] = [each for each in told if isinstance(each, StartSandbox)]
    assert (start.resource, start.cause.predictor, start.priority) == ("powerpoint", KEYWORD_HINT, Priority.PREDICTED)
    timer = [each for each in told if isinstance(each, SetTimer)][-1]
    broker.handle(SandboxBecameReady(at_s=3.0, sandbox=start.sandbox, start_s=0.1, cpu_s=0.02, memory_bytes=50_000_000))
    told = broker.handle(TimerFired(at_s=timer.at_s))
    assert StopSandbox(sandbox=start.sandbox, reason=StopReason.EXPIRED) in told
    broker.handle(SandboxStopped(at_s=timer.at_s, sandbox=start.sandbox))
    record = broker.statistics(timer.at_s).predictors.of(KEYWORD_HINT)
    assert (record.hits, record.misses, record.wasted_cpu_s) == (0, 1, 0.02)
