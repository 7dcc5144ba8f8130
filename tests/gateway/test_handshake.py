"""A client of the 2025 protocols through the gateway, over real HTTP."""

import anyio
import pytest
from mcp import Client
from mcp_types import INVALID_REQUEST
from tests.gateway.conftest import Opened, text_of
from tests.gateway.raw import Raw
from tests.gateway.test_pass_through import hold, with_tool

from headstart.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio


async def test_the_merged_view_lists_all_tools_by_server_and_calls_the_right_one(
    runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, _), Client(f"{url}/mcp", mode="legacy") as client:
        listed = await client.list_tools()
        result = await client.call_tool("git__status", {"short": True})
    assert [tool.name for tool in listed.tools] == ["git__status", "git__log", "time__now"]
    assert text_of(result) == '{"short": true}'
    assert [(a.server, a.params) for a in runtime.asked] == [("git", {"name": "status", "arguments": {"short": True}})]


async def test_one_server_keeps_its_own_names_and_what_it_says_of_itself(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Client(f"{url}/mcp/git", mode="legacy") as client:
        listed = await client.list_tools()
        await client.call_tool("log", {})
        assert client.server_info is not None
        assert client.server_info.name == "git-server"
        assert client.instructions == "Ask git."
    assert [tool.name for tool in listed.tools] == ["status", "log"]


async def test_an_id_in_use_is_refused_and_free_again_once_it_is_answered(opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw, anyio.create_task_group() as tasks:
        await raw.initialize()

        async def call() -> None:
            await raw.ask("tools/call", {"name": "srv__do"}, request_id=7)

        tasks.start_soon(call)
        await runtime.until(lambda: len(runtime.asked) == 1)
        refused = await raw.ask("tools/call", {"name": "srv__do"}, request_id=7)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, INVALID_REQUEST)
        assert (await raw.ask("ping", request_id="7")).json()["result"] == {}
        await raw.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        await runtime.until(lambda: len(runtime.cancelled) == 1)
        assert (await raw.ask("ping", request_id=7)).json()["result"] == {}
    assert len(runtime.asked) == 1


async def test_an_id_is_used_once_in_a_batch(opened: Opened) -> None:
    ping = {"jsonrpc": "2.0", "id": 7, "method": "ping"}
    async with opened(with_tool(hold)) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize("2025-03-26")
        one, other = (await raw.send([ping, ping])).json()
    assert one["result"] == {}
    assert other["error"]["code"] == INVALID_REQUEST


async def test_clients_that_share_a_session_may_use_the_same_ids_and_are_counted(opened: Opened) -> None:
    runtime = with_tool(hold)
    async with (
        opened(runtime, requests_at_once=2) as (url, _),
        Raw.opened(f"{url}/s/shared/mcp") as raw,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(2):
            tasks.start_soon(lambda: raw.ask("tools/call", {"name": "srv__do"}, request_id=7))
        await runtime.until(lambda: len(runtime.asked) == 2)
        assert (await raw.ask("ping", request_id=7)).status_code == 429
        tasks.cancel_scope.cancel()
