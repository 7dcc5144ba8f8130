"""Methods that MCP's core does not know: tasks, extensions, a server's own."""

from __future__ import annotations

import json

import pytest
from tests.gateway.conftest import Opened
from tests.gateway.raw import Raw, frames

from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of

pytestmark = pytest.mark.anyio


def _with_method(name: str) -> FakeRuntime:
    async def custom(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {"got": params}

    return FakeRuntime([FakeServer(catalogue=catalogue_of("srv", tools=["do"]), methods={name: custom})])


async def test_any_other_method_goes_through_to_a_single_server(opened: Opened) -> None:
    runtime = _with_method("acme/list")
    async with opened(runtime) as (url, _):
        async with Raw.opened(f"{url}/mcp/srv") as raw:
            await raw.initialize()
            assert (await raw.ask("acme/list", {"cursor": "c"})).json()["result"] == {"got": {"cursor": "c"}}
            await raw.send({"jsonrpc": "2.0", "method": "notifications/custom", "params": {"a": 1}})
            assert [(told.method, told.params) for told in runtime.told] == [("notifications/custom", {"a": 1})]
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.initialize()
            for asked in (await raw.ask("acme/list"), await raw.ask_modern("acme/list")):
                error = asked.json()["error"]
                assert error["code"] == -32601
                assert "on /mcp/<server>" in error["message"]
    assert [asked.method for asked in runtime.asked] == ["acme/list"]


def _with_tasks(**capabilities: JsonObject) -> FakeRuntime:
    """A server whose tool begins a task, that tells of it, asks something of its own and is asked for it."""

    async def begin(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        if "task" not in params:
            return {"content": []}
        await channel.notify("notifications/tasks/status", {"taskId": "t1", "status": "working"})
        await channel.request("acme/ask", {"of": "client"})
        return {"task": {"taskId": "t1", "status": "working"}}

    async def get(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {**params, "status": "completed", "ttl": None}

    catalogue = catalogue_of("srv", tools=["do"], capabilities={"tools": {}, **capabilities})
    return FakeRuntime([FakeServer(catalogue=catalogue, tools={"do": begin}, methods={"tasks/get": get})])


async def test_tasks_go_through_both_ways_to_a_server_that_declares_them(opened: Opened) -> None:
    task = {"name": "do", "arguments": {}, "task": {"ttl": 1000}}
    async with opened(_with_tasks(tasks={"requests": {"tools": {"call": {}}}})) as (url, _):
        async with Raw.opened(f"{url}/mcp/srv") as raw:
            told = (await raw.initialize()).json()["result"]["capabilities"]
            assert told["tasks"] == {"requests": {"tools": {"call": {}}}}
            messages: list[JsonObject] = []
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": task}).encode()
            async with raw.http.stream("POST", raw.url, content=body, headers=raw.headers) as answer:
                async for line in answer.aiter_lines():
                    messages += frames(line)
                    if '"acme/ask"' in line:
                        await raw.send({"jsonrpc": "2.0", "id": messages[-1]["id"], "result": {}})
            assert [one.get("method") for one in messages] == ["notifications/tasks/status", "acme/ask", None]
            assert messages[-1]["result"] == {"task": {"taskId": "t1", "status": "working"}}
            got = (await raw.ask("tasks/get", {"taskId": "t1"})).json()["result"]
            assert got == {"taskId": "t1", "status": "completed", "ttl": None}
        async with Raw.opened(f"{url}/mcp") as raw:
            assert "tasks" not in (await raw.initialize()).json()["result"]["capabilities"]
            plain = await raw.ask("tools/call", {**task, "name": "srv__do"})
            assert plain.json()["result"] == {"content": []}, "a task of the merged view could not be asked for"


async def test_tasks_of_a_server_that_has_none_are_refused_without_asking_it(opened: Opened) -> None:
    runtime = _with_tasks()
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        error = (await raw.ask("tasks/get", {"taskId": "t1"})).json()["error"]
    assert (error["code"], error["message"]) == (-32601, "Method not found: tasks/get. srv declares no tasks")
    assert runtime.asked == []
