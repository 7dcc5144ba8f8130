"""A client of the 2025 protocols through the gateway, over real HTTP."""

import pytest
from mcp import Client
from tests.gateway.conftest import Opened, text_of

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
