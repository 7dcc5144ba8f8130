"""A client of the stateless 2026-07-28 protocol through the gateway, over real HTTP."""

import pytest
from mcp import Client
from tests.gateway.conftest import Opened, text_of

from headstart.testing.fake_runtime import FakeRuntime

pytestmark = pytest.mark.anyio


async def test_a_stateless_client_discovers_lists_and_calls(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Client(f"{url}/mcp", mode="auto") as client:
        assert client.protocol_version == "2026-07-28"
        assert client.server_info is not None
        assert client.server_info.name == "headstart"
        listed = await client.list_tools()
        result = await client.call_tool("git__status", {"short": True})
    assert [tool.name for tool in listed.tools] == ["git__status", "git__log", "time__now"]
    assert text_of(result) == '{"short": true}'


async def test_a_stateless_client_sees_one_server_as_it_is(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Client(f"{url}/mcp/git", mode="auto") as client:
        assert client.server_info is not None
        assert client.server_info.name == "git-server"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["status", "log"]
        await client.call_tool("log", {})
    assert runtime.asked[0].params == {"name": "log", "arguments": {}}
