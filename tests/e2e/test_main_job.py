"""The main job: an agent with two URLs finds its sandboxes warm, and people can see why."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import anyio
import httpx2
import pytest

from headstart.bench.demo.agent import SessionRecord, run_session
from headstart.bench.replay_model import Recording

from .running import Place, Running, scripted, service

START_S = 0.8
HARBOUR = "Ask the harbour register of moorings for vessels: every vessel at its mooring."


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: str, isolation: str) -> Generator[Running]:
    """A service in front of the model and two servers, one of which is slow to start."""
    place = Place(folder=tmp_path_factory.mktemp("main")).configure(
        {
            "harbour": scripted("good", args=(f"start_s={START_S}", f"about={HARBOUR}")),
            "ledger": scripted("good"),
        },
        f"""
[upstreams]
default = "{model}"
[service]
backend = "{isolation}"
[pool]
zygotes = false
""",
    )
    with service(place) as started:
        yield started


def converse(running: Running, recording: Recording, *, session: str) -> SessionRecord:
    async def run() -> SessionRecord:
        root = f"{running.url}/s/{session}"
        with anyio.fail_after(60):
            return await run_session(
                session=session,
                prompt=recording.user,
                model=recording.model,
                model_url=f"{root}/v1",
                mcp_url=f"{root}/mcp",
            )

    return anyio.run(run)


@pytest.fixture(scope="module")
def lived(running: Running, recordings: tuple[Recording, ...]) -> SessionRecord:
    """One conversation, run to its end by an ordinary agent."""
    return converse(running, recordings[0], session="research-1")


def test_the_agent_gets_every_answer(lived: SessionRecord) -> None:
    assert [call.tool for call in lived.calls] == ["harbour__echo", "ledger__add", "ledger__notes"]
    assert [call.is_error for call in lived.calls] == [False, False, False]
    assert lived.calls[0].said.startswith("twelve boats from ")
    assert [call.said for call in lived.calls[1:]] == ["1 notes", "twelve boats"]


def test_a_prediction_starts_the_sandbox_before_the_call_arrives(running: Running, lived: SessionRecord) -> None:
    trace = running.trace("research-1")
    won = [one for one in trace["preparations"] if one["won"] and one["resource"] == "harbour"]
    assert won, trace["preparations"]
    (call,) = [call for step in trace["steps"] for call in step["calls"] if call["resource"] == "harbour"]
    assert won[0]["started_s"] < call["start_s"]
    start_s = won[0]["ready_s"] - won[0]["started_s"]
    assert won[0]["waited_s"] < start_s
    assert start_s >= START_S
    assert call["hidden_s"] > 0
    assert not call["cold"]


def test_the_parts_of_each_step_add_up_to_it(running: Running, lived: SessionRecord) -> None:
    steps = running.trace("research-1")["steps"]
    assert len(steps) == lived.steps
    for step in steps:
        told_s = sum(tile["end_s"] - tile["start_s"] for tile in step["tiles"])
        assert told_s == pytest.approx(step["end_s"] - step["start_s"], abs=1e-6)


def test_trace_last_prints_the_conversation(running: Running, lived: SessionRecord) -> None:
    told = running.command("trace", "last")
    assert told.returncode == 0, told.stderr
    assert "research-1" in told.stdout
    assert "harbour" in told.stdout
    assert told.stderr == ""


def test_status_shows_the_pool_the_predictors_and_what_was_not_read(running: Running, lived: SessionRecord) -> None:
    body = {"model": "embed", "input": "boats"}
    httpx2.post(f"{running.url}/v1/embeddings", json=body, trust_env=False)
    told = running.command("status")
    assert told.returncode == 0, told.stderr
    assert "predictor" in told.stdout
    assert "keyword" in told.stdout
    assert "1 times POST /embeddings (not a generation)" in told.stdout
    found: dict[str, Any] = running.status()
    assert found["runtime"]["events_broken"] == 0
    records = {record["predictor"]: record for record in found["predictors"]}
    assert sum(record["hits"] for record in records.values()) >= 1
