"""What clients and models are told when something fails."""

from __future__ import annotations

import pytest
from mcp import Client, MCPError
from tests.gateway.conftest import Opened, served, text_of
from tests.gateway.raw import Raw

from headstart.errors import BudgetExceeded, HeadstartError, SandboxLost, ServerUnavailable, UnauthorizedUpstream
from headstart.gateway.app import open_gateway
from headstart.gateway.wire import Receive, Scope, Send, encode, send_json
from headstart.ids import ResourceId
from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of

pytestmark = pytest.mark.anyio

CHALLENGE = 'Bearer resource_metadata="https://up.example/.well-known/oauth-protected-resource"'


def failing(exc: Exception) -> FakeRuntime:
    async def fail(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        raise exc

    server = FakeServer(
        catalogue=catalogue_of("srv", tools=["do"], prompts=[{"name": "p"}]),
        tools={"do": fail},
        methods={"prompts/get": fail},
    )
    return FakeRuntime([server])


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/srv"])
@pytest.mark.parametrize(
    ("exc", "told"),
    [
        (
            ServerUnavailable("srv exited at once with code 3", server="srv", retry_after_s=4.2),
            "srv exited at once with code 3\nhint: it is tried again in 4 s",
        ),
        (
            SandboxLost("its sandbox died", server="srv", hint="log in again"),
            "srv: its sandbox died\nhint: log in again",
        ),
        (BudgetExceeded("memory_mb leaves no room", hint="raise it"), "srv: memory_mb leaves no room\nhint: raise it"),
    ],
)
async def test_a_model_is_told_in_a_tool_result_what_happened_and_the_cure(
    exc: HeadstartError, told: str, path: str, mode: str, opened: Opened
) -> None:
    async with opened(failing(exc)) as (url, _), Client(f"{url}{path}", mode=mode) as client:
        result = await client.call_tool("srv__do" if path == "/mcp" else "do", {})
        assert result.is_error
        assert text_of(result).startswith(told)
        with pytest.raises(MCPError, match="srv"):
            await client.get_prompt("srv__p" if path == "/mcp" else "p")


async def test_a_client_that_shares_its_session_for_want_of_a_name_is_told_whose_the_lost_state_may_be(
    opened: Opened,
) -> None:
    lost = SandboxLost("its sandbox died", server="srv", hint="log in again")
    async with opened(failing(lost)) as (url, _):
        async with Raw.opened(f"{url}/mcp/srv") as raw:
            unnamed = (await raw.ask_modern("tools/call", {"name": "do"})).json()["result"]
        async with Raw.opened(f"{url}/s/mine/mcp/srv") as raw:
            named = (await raw.ask_modern("tools/call", {"name": "do"})).json()["result"]
    assert "X-Headstart-Session" in unnamed["content"][0]["text"]
    assert named["content"][0]["text"] == "srv: its sandbox died\nhint: log in again"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_an_error_of_the_server_goes_through_as_it_is(mode: str, opened: Opened) -> None:
    exc = MCPError(-31999, "mine", {"detail": [1, 2]})
    async with opened(failing(exc)) as (url, _), Client(f"{url}/mcp", mode=mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("srv__do", {})
    assert (caught.value.code, caught.value.message, caught.value.data) == (-31999, "mine", {"detail": [1, 2]})


async def test_a_fault_of_ours_is_logged_and_not_shown(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(failing(ZeroDivisionError("secret"))) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        answer = (await raw.ask("tools/call", {"name": "srv__do"})).json()
    assert answer["error"]["code"] == -32603
    assert "secret" not in str(answer)
    assert "ZeroDivisionError: secret" in caplog.text


async def test_an_unknown_tool_is_refused_here_only_where_its_server_is_unknown(opened: Opened) -> None:
    runtime = failing(ZeroDivisionError())
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        answer = (await raw.ask("tools/call", {"name": "nobody__do"})).json()
        assert answer["error"] == {"code": -32602, "message": "Unknown tool: nobody__do"}
        assert runtime.asked == []
        await raw.ask("tools/call", {"name": "srv__hidden"})
        assert runtime.asked[0].params == {"name": "hidden"}


@pytest.mark.parametrize("modern", [False, True])
async def test_a_remote_servers_challenge_reaches_the_client_on_its_own_route(modern: bool, opened: Opened) -> None:
    runtime = failing(UnauthorizedUpstream("srv wants a token", status=401, challenge=CHALLENGE))
    runtime["srv"].remote = True
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/s/run/mcp/srv") as raw:
        await raw.initialize()
        ask = raw.ask_modern if modern else raw.ask
        answer = await ask("tools/call", {"name": "do"})
        assert answer.status_code == 401
        ours = f"{url}/.well-known/oauth-protected-resource/s/run/mcp/srv"
        assert answer.headers["www-authenticate"] == f'Bearer resource_metadata="{ours}"'
        raw.headers["Authorization"] = "Bearer fresh"
        await ask("tools/call", {"name": "do"})
    assert runtime.asked[-1].scope.passthrough_headers == {"Authorization": "Bearer fresh"}
    assert runtime.asked[-1].scope.credentials not in {"", runtime.asked[0].scope.credentials}
    assert "fresh" not in repr(runtime.asked[-1].scope)


async def test_learning_a_remote_server_that_wants_credentials_is_a_challenge_at_once(opened: Opened) -> None:
    runtime = failing(ZeroDivisionError())
    runtime["srv"].refuses = UnauthorizedUpstream("srv wants a token", status=401, challenge=CHALLENGE)
    async with opened(runtime) as (url, gateway):
        async with Raw.opened(f"{url}/mcp/srv") as raw:
            answer = await raw.initialize()
            assert answer.status_code == 401
            assert "www-authenticate" in answer.headers
            assert len(gateway.sessions) == 0
        async with Raw.opened(f"{url}/mcp") as raw:
            hello = (await raw.initialize()).json()["result"]
            assert "connect to /mcp/srv to sign in" in hello["instructions"]
            assert (await raw.ask("tools/list")).json()["result"]["tools"] == []


async def test_in_the_merged_view_a_challenge_is_a_tool_error_with_the_cure(opened: Opened) -> None:
    runtime = failing(UnauthorizedUpstream("srv wants a token", status=401, challenge=CHALLENGE))
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp", Authorization="Bearer not-for-servers") as raw:
        await raw.initialize()
        answer = await raw.ask("tools/call", {"name": "srv__do"})
    assert answer.status_code == 200
    assert answer.json()["result"]["isError"] is True
    assert "/mcp/srv" in answer.json()["result"]["content"][0]["text"]
    assert runtime.asked[0].scope.passthrough_headers == {}


async def test_a_remote_servers_metadata_is_served_as_about_our_own_url() -> None:
    asked: list[str] = []

    async def upstream(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        metadata = {"resource": "https://up.example/mcp", "authorization_servers": ["https://as.example"], "x": 1}
        found = scope["path"] == "/.well-known/oauth-protected-resource/deep/mcp"
        await send_json(send, 200 if found else 404, encode(metadata))

    runtime = failing(ZeroDivisionError())
    async with served(upstream) as up:
        remotes = {ResourceId("srv"): f"{up}/deep/mcp"}
        async with open_gateway(runtime, remotes=remotes) as gateway, served(gateway) as url, Raw.opened(url) as raw:
            path = "/.well-known/oauth-protected-resource/mcp/srv"
            found = (await raw.http.get(f"{url}{path}")).json()
            assert found == {"resource": f"{url}/mcp/srv", "authorization_servers": ["https://as.example"], "x": 1}
            assert (await raw.http.get(f"{url}{path}-not")).status_code == 404
            assert gateway.serves(path)
    assert asked == ["/.well-known/oauth-protected-resource/deep/mcp"]


async def test_metadata_is_only_fetched_from_the_servers_own_origin() -> None:
    """A challenge must not make the service fetch what its author likes."""
    fetched: list[str] = []

    async def elsewhere(scope: Scope, receive: Receive, send: Send) -> None:
        fetched.append(scope["path"])
        await send_json(send, 404)

    async with served(elsewhere) as other, served(elsewhere) as own:
        challenge = f'Bearer resource_metadata="{other}/internal"'
        runtime = failing(UnauthorizedUpstream("srv wants a token", status=401, challenge=challenge))
        remotes = {ResourceId("srv"): f"{own}/mcp"}
        async with (
            open_gateway(runtime, remotes=remotes) as gateway,
            served(gateway) as url,
            Raw.opened(f"{url}/mcp/srv") as raw,
        ):
            await raw.initialize()
            assert (await raw.ask("tools/call", {"name": "do"})).status_code == 401
            metadata = await raw.http.get(f"{url}/.well-known/oauth-protected-resource/mcp/srv")
    assert metadata.status_code == 502
    assert "/internal" not in fetched
