"""Whose sandbox a call reaches: conversations that begin alike never meet, whatever the client does with sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client
from openai import AsyncOpenAI

from headstart.bench.replay_model import Recording

from .clients import ERAS, RawClient, said, tools
from .running import Place, Running, scripted, service

pytestmark = pytest.mark.anyio

CallTool = Callable[[str, dict[str, Any]], Awaitable[str]]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, model: str, isolation: str) -> Generator[Running]:
    place = Place(folder=tmp_path_factory.mktemp("scope")).configure(
        {"ledger": scripted("good"), "common": scripted("good", shared=True)},
        f"""
[upstreams]
default = "{model}"
[service]
backend = "{isolation}"
[pool]
zygotes = false
""",
    )
    with service(place) as started, RawClient(f"{started.url}/s/first/mcp") as client:
        assert client.request("tools/list")["result"]["tools"]  # from here on its tools are known
        yield started


@pytest.fixture
def alike(recordings: tuple[Recording, ...]) -> tuple[Recording, Recording]:
    """Two conversations that begin with the same words and keep different secrets."""
    one, other = (each for each in recordings if each.session.startswith("alike-"))
    assert one.user == other.user
    return one, other


@asynccontextmanager
async def talking(url: str) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as model:
        yield model


async def converse(model: AsyncOpenAI, call_tool: CallTool, recording: Recording) -> list[str]:
    """Run a conversation as agents do that do not stream; returns what the tools said."""
    messages: list[Any] = [{"role": "user", "content": recording.user}]
    heard: list[str] = []
    for _ in recording.steps:
        answer = (await model.chat.completions.create(model=recording.model, messages=messages)).choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls or ():
            assert call.type == "function"
            heard.append(await call_tool(call.function.name, json.loads(call.function.arguments)))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": heard[-1]})
    return heard


def through(client: Client) -> CallTool:
    async def call_tool(name: str, arguments: dict[str, Any]) -> str:
        return said(await client.call_tool(name, arguments))

    return call_tool


async def side_by_side(*conversations: Callable[[], Awaitable[list[str]]]) -> list[list[str]]:
    heard: dict[int, list[str]] = {}

    async def run(number: int) -> None:
        heard[number] = await conversations[number]()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(len(conversations)):
                tasks.start_soon(run, number)
    return [heard[number] for number in range(len(conversations))]


def generations_with_calls(trace: dict[str, Any]) -> int:
    return sum(1 for step in trace["steps"] if step["generation"] and step["calls"])


@pytest.mark.parametrize("era", ERAS)
async def test_named_conversations_that_begin_alike_keep_their_own_state(
    running: Running, alike: tuple[Recording, Recording], era: str
) -> None:
    def one(recording: Recording) -> Callable[[], Awaitable[list[str]]]:
        root = f"{running.url}/s/{recording.session}-{era}"

        async def run() -> list[str]:
            async with talking(f"{root}/v1") as model, tools(f"{root}/mcp", era=era) as client:
                return await converse(model, through(client), recording)

        return run

    heard = await side_by_side(one(alike[0]), one(alike[1]))
    assert heard == [["1 notes", "a secret of A"], ["1 notes", "a secret of B"]]
    for recording in alike:
        assert generations_with_calls(running.trace(f"{recording.session}-{era}")) == 2


async def test_conversations_without_a_name_are_joined_by_the_calls_that_their_models_wrote(
    running: Running, alike: tuple[Recording, Recording]
) -> None:
    sessions: list[str] = []

    def one(recording: Recording) -> Callable[[], Awaitable[list[str]]]:
        async def run() -> list[str]:
            async with talking(f"{running.url}/v1") as model, tools(f"{running.url}/mcp", era="legacy") as client:
                heard = await converse(model, through(client), recording)
                trace = running.trace("last")
                assert generations_with_calls(trace) >= 1
                sessions.append(trace["session"])
                return heard

        return run

    heard = await side_by_side(one(alike[0]))
    heard += await side_by_side(one(alike[1]))
    assert heard == [["1 notes", "a secret of A"], ["1 notes", "a secret of B"]]
    assert len(set(sessions)) == 2


async def test_one_connection_that_carries_several_conversations_serves_them_all(
    running: Running, alike: tuple[Recording, Recording]
) -> None:
    async with talking(f"{running.url}/v1") as model, tools(f"{running.url}/mcp", era="legacy") as client:
        first = await converse(model, through(client), alike[0])
        second = await converse(model, through(client), alike[1])
        assert first == ["1 notes", "a secret of A"]
        assert second == ["2 notes", "a secret of A\na secret of B"]  # one tool client, one state: as without us
        trace = running.trace("last")
    conversations = {step["conversation"] for step in trace["steps"] if step["generation"]}
    assert len(conversations) == 2
    assert trace["summary"]["calls"] == 4


async def test_a_conversation_that_opens_a_connection_per_call_finds_its_state_only_by_name(
    running: Running, alike: tuple[Recording, Recording]
) -> None:
    def per_call(url: str) -> CallTool:
        async def call_tool(name: str, arguments: dict[str, Any]) -> str:
            async with tools(url, era="legacy") as client:
                return said(await client.call_tool(name, arguments))

        return call_tool

    named = f"{running.url}/s/per-call"
    async with talking(f"{named}/v1") as model:
        assert await converse(model, per_call(f"{named}/mcp"), alike[0]) == ["1 notes", "a secret of A"]
    async with talking(f"{running.url}/v1") as model:
        assert await converse(model, per_call(f"{running.url}/mcp"), alike[1]) == ["1 notes", ""]
    assert running.status()["runtime"]["events_broken"] == 0


def test_sessions_meet_in_the_one_instance_of_a_shared_server_and_in_no_other(running: Running) -> None:
    heard: dict[str, list[str]] = {"common": [], "ledger": []}
    for session in ("shares-1", "shares-2"):
        with RawClient(f"{running.url}/s/{session}/mcp") as client:
            for server, told in heard.items():
                told.append(client.call(f"{server}__add", text=session)[0])
    assert heard == {"common": ["1 notes", "2 notes"], "ledger": ["1 notes", "1 notes"]}
