"""The demo's conversations are what the demo says of them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from headstart.bench import demo
from headstart.bench.demo.finale import SECOND_THOUGHTS
from headstart.bench.demo.run import FULL, QUICK, TOUR, Size
from headstart.bench.demo.world import SERVERS, servers_called
from headstart.bench.replay_model import Recording, load_recordings
from headstart.bench.replay_model.playback import output_tokens

HERE = Path(demo.__file__).parent
MEASURED = tuple(one for one in load_recordings(HERE / "sessions.toml") if one.session != SECOND_THOUGHTS)
TRAINING = load_recordings(HERE / "training.toml")
LONG = MEASURED[-8:]
SIZES = pytest.mark.parametrize("size", [QUICK, TOUR, FULL], ids=["quick", "tour", "full"])
HEAVY = {"sympy", "powerpoint"}


def tools(recording: Recording) -> tuple[str, ...]:
    return tuple(call.name for step in recording.steps for call in step.calls)


def played(size: Size) -> tuple[Recording, ...]:
    return MEASURED[size.skipped : size.skipped + size.sessions]


def contents(recordings: tuple[Recording, ...]) -> set[str]:
    """All that a conversation says: its prompt, its texts, its calls with what they are given."""
    steps = [step for recording in recordings for step in recording.steps]
    calls = [f"{call.name} {json.dumps(call.arguments, sort_keys=True)}" for step in steps for call in step.calls]
    return {recording.user for recording in recordings} | {step.text for step in steps if step.text} | set(calls)


def test_nothing_that_is_learned_from_is_measured() -> None:
    assert contents(MEASURED) & contents(TRAINING) == set()


def test_no_conversation_that_is_learned_from_takes_the_course_of_a_measured_one() -> None:
    assert {tools(recording) for recording in MEASURED} & {tools(recording) for recording in TRAINING} == set()


@pytest.mark.parametrize("recording", MEASURED, ids=lambda recording: recording.session)
def test_users_name_no_tool_and_no_server(recording: Recording) -> None:
    prompt = recording.user.lower()
    known = {part for name in (*SERVERS, *tools(recording)) for part in name.lower().split("__")}
    named = sorted(name for name in known if name in prompt.split() or ("_" in name and name in prompt))
    assert named == []


@pytest.mark.parametrize("recording", LONG, ids=lambda recording: recording.session)
def test_the_long_ones_are_as_long_as_agents_sessions_are(recording: Recording) -> None:
    assert 5 <= len(tools(recording)) <= 8
    assert 60 <= statistics.median(output_tokens(step) for step in recording.steps) <= 120
    hidden = [step.hidden_tokens for step in recording.steps if step.hidden_tokens]
    assert hidden, "some of its steps show no text before their call"
    assert all(40 <= tokens <= 150 for tokens in hidden)


@SIZES
def test_what_the_chosen_conversations_call_is_configured(size: Size) -> None:
    assert len(played(size)) == size.sessions
    configured = {*(size.servers or SERVERS), *servers_called(played(size))}
    assert configured <= set(SERVERS)
    assert len(configured) >= (5 if size is QUICK else 8)


@SIZES
def test_some_steps_show_no_text_before_their_calls(size: Size) -> None:
    steps = {recording.session: recording.steps for recording in played(size)}
    hidden = {
        session: [step for step in each if step.calls and step.hidden_tokens and not (step.text or step.reasoning)]
        for session, each in steps.items()
    }
    assert any(hidden.values())
    if size is not FULL:  # where one session alone may be played at a pace, each has such a step
        assert all(hidden.values())
    for session, each in steps.items():
        assert len(hidden[session]) < sum(1 for step in each if step.calls), "and some do"


def test_a_tour_calls_five_of_its_eight_servers_and_heavy_ones_among_them() -> None:
    called = servers_called(played(TOUR))
    assert called == ["git", "files", "sympy", "powerpoint", "memory"]
    assert set(called) <= set(TOUR.servers)
    assert set(called) >= HEAVY


def test_the_one_that_changes_its_mind_is_not_measured_and_calls_nothing() -> None:
    *measured, last = load_recordings(HERE / "sessions.toml")
    assert (last.session, tools(last)) == (SECOND_THOUGHTS, ())
    assert len(measured) == FULL.skipped + FULL.sessions


def test_the_servers_that_conversations_call_are_named_once_in_order() -> None:
    assert servers_called(MEASURED[:2]) == ["time", "memory", "git", "files"]
    assert set(servers_called(played(FULL))) == set(SERVERS), "the full run calls every server"
