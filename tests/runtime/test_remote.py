"""Remote servers over streamable HTTP, on loopback."""

import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import uvicorn
from anyio.abc import TaskStatus
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from headstart.clock import SystemClock
from headstart.config.model import ServerSettings
from headstart.errors import CatalogueUnavailable, SandboxLost, ServerUnavailable, UnauthorizedUpstream
from headstart.ids import ResourceId
from headstart.runtime.contract import JsonObject
from headstart.runtime.remote import RemoteConnection, SessionForgotten
from headstart.runtime.rpc import Nobody
from headstart.runtime.service import Service

from .conftest import OpenService, RecordingChannel, call, scope, text_of

pytestmark = pytest.mark.anyio

FAR = ResourceId("far")
App = Callable[[Any, Any, Any], Awaitable[None]]


class Guard:
    """An ASGI app in front of another one that notes requests and may refuse them."""

    def __init__(self, app: App, *, token: str | None = None) -> None:
        self._app = app
        self._token = token
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.raw: list[list[tuple[bytes, bytes]]] = []
        self.forget_sessions = False
        self.overloaded = False
        self.deleted = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.seen.append((scope["method"], headers))
            self.raw.append(scope["headers"])
            if scope["method"] == "DELETE":
                self.deleted.set()
            if self._token is not None and headers.get("authorization") != f"Bearer {self._token}":
                await _refuse(send, 401, [(b"www-authenticate", b'Bearer resource_metadata="http://as/meta"')])
                return
            if self.overloaded:
                await _refuse(send, 503, [])
                return
            if self.forget_sessions and "mcp-session-id" in headers and scope["method"] == "POST":
                self.forget_sessions = False
                await _refuse(send, 404, [])
                return
        await self._app(scope, receive, send)


async def _refuse(send: Any, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def counter() -> MCPServer:
    server = MCPServer("counter")
    counts: dict[str, int] = {}

    @server.tool()
    async def count(name: str, ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        counts[name] = counts.get(name, 0) + 1
        return str(counts[name])

    @server.tool()
    async def wait(ctx: Context) -> str:
        await ctx.report_progress(1, 2)
        await anyio.sleep_forever()
        return ""

    return server


async def named_after_its_client(scope: Any, receive: Any, send: Any) -> None:
    """Serve MCP with one tool, which is called as the credentials are."""
    assert scope["type"] == "http"
    if scope["method"] != "POST":
        await _refuse(send, 405, [])
        return
    request = json.loads((await receive())["body"])
    who = dict(scope["headers"]).get(b"authorization", b"Bearer nobody").decode().removeprefix("Bearer ")
    if "id" in request:
        await _answer(send, request, tools=[{"name": f"for_{who}", "inputSchema": {"type": "object"}}])
    else:
        await _refuse(send, 202, [])


class ForgetsMeanwhile:
    """An app whose call `long` fails by itself after its call `gone` was told that its session is not known."""

    def __init__(self) -> None:
        self.long_began = anyio.Event()
        self._refused = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        if scope["method"] != "POST":
            await _refuse(send, 405, [])
            return
        request = json.loads((await receive())["body"])
        tool = request.get("params", {}).get("name")
        if tool == "gone":
            await _refuse(send, 404, [])
            self._refused.set()
        elif tool == "long":
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b": began\n\n", "more_body": True})
            self.long_began.set()
            await self._refused.wait()
            error = {"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32000, "message": "ran, and failed"}}
            await send({"type": "http.response.body", "body": f"data: {json.dumps(error)}\n\n".encode()})
        elif "id" in request:
            await _answer(send, request)
        else:
            await _refuse(send, 202, [])


async def _answer(send: Any, request: JsonObject, *, tools: Sequence[JsonObject] = ()) -> None:
    results: dict[str, JsonObject] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "far", "version": "1"},
        },
        "tools/list": {"tools": list(tools)},
    }
    body = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": results[request["method"]]}).encode()
    headers = [(b"content-type", b"application/json"), (b"mcp-session-id", b"one")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def remote(
    app: App | None = None, *, token: str | None = None, port: int = 0
) -> AsyncGenerator[tuple[str, Guard]]:
    """Serve an app, or `counter`, on loopback."""
    guard = Guard(app or counter().streamable_http_app(), token=token)
    with socket.create_server(("127.0.0.1", port)) as listener:
        config = uvicorn.Config(guard, log_level="warning", ws="none", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            with anyio.fail_after(10):
                while not server.started:
                    await anyio.lowlevel.checkpoint()
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", guard
            finally:
                server.should_exit = True


class Inconstant:
    """A remote server that goes away and comes back at its port, having forgotten everything; `run` is its task."""

    def __init__(self) -> None:
        self.url = ""
        self._leave = anyio.Event()
        self._left = anyio.Event()

    async def run(self, *, task_status: TaskStatus[str]) -> None:
        self._leave, self._left = anyio.Event(), anyio.Event()
        async with remote(port=urlsplit(self.url).port or 0) as (self.url, _):
            task_status.started(self.url)
            await self._leave.wait()
        self._left.set()

    async def go_away(self) -> None:
        self._leave.set()
        with anyio.fail_after(10):
            await self._left.wait()


def settings(url: str, **more: Any) -> ServerSettings:
    return ServerSettings(name=FAR, url=url, **more)


async def ask(
    service: Service, session: str = "ses", channel: RecordingChannel | None = None, **more: Any
) -> JsonObject:
    params = {**call("count", name="n"), "_meta": {"progressToken": "tok"}}
    return await service.request(scope(session, **more), FAR, "tools/call", params, channel or RecordingChannel())


async def test_a_remote_server_is_listed_and_called(open_service: OpenService) -> None:
    client = RecordingChannel()
    async with remote() as (url, _), open_service(settings(url)) as service:
        catalogue = await service.catalogue(FAR, scope())
        result = await ask(service, channel=client)
    assert [tool["name"] for tool in catalogue.tools] == ["count", "wait"]
    assert text_of(result) == "1"
    assert client.told == [("notifications/progress", {"progressToken": "tok", "progress": 1, "total": 2})]


async def test_each_session_has_its_own_connection_which_is_ended_with_it(open_service: OpenService) -> None:
    async with remote() as (url, guard), open_service(settings(url)) as service:
        await ask(service, "one")
        await ask(service, "two")
        await service.close_session(scope("one").session, reason="left")
        with anyio.fail_after(10):
            await guard.deleted.wait()
        sessions = {headers["mcp-session-id"] for _, headers in guard.seen if "mcp-session-id" in headers}
        assert len(sessions) == 2
        assert (await service.statistics()).remote_connections == 1


async def test_headers_of_the_config_and_of_the_client_go_to_the_server(open_service: OpenService) -> None:
    server = {"headers": {"X-Team": "blue"}}
    async with remote(token="secret") as (url, guard), open_service(settings(url, **server)) as service:
        await ask(service, passthrough_headers={"Authorization": "Bearer secret"}, credentials="digest")
    posted = next(headers for method, headers in guard.seen if method == "POST")
    assert (posted["x-team"], posted["authorization"]) == ("blue", "Bearer secret")
    assert {headers.get("mcp-protocol-version") for method, headers in guard.seen[1:] if method == "POST"} == {
        "2025-11-25"
    }


async def test_a_header_that_both_give_is_sent_once_and_the_clients_wins_while_it_gives_it(
    open_service: OpenService,
) -> None:
    server = {"headers": {"Authorization": "Bearer config"}}
    async with remote() as (url, guard), open_service(settings(url, **server)) as service:
        await ask(service, passthrough_headers={"Authorization": "Bearer client"}, credentials="digest")
        await ask(service)
    calls = [headers for (method, _), headers in zip(guard.seen, guard.raw, strict=True) if method == "POST"]
    sent = [[value for name, value in headers if name == b"authorization"] for headers in calls]
    assert [b"Bearer client"] in sent
    assert sent[-1] == [b"Bearer config"]
    assert all(len(values) == 1 for values in sent)


async def test_what_may_be_a_credential_in_a_url_is_not_told(open_service: OpenService) -> None:
    async with open_service(settings("http://me:hush@127.0.0.1:9/mcp?apiKey=hush")) as service:
        with pytest.raises(CatalogueUnavailable, match=r"far: http://127.0.0.1:9/mcp: ") as listing:
            await service.catalogue(FAR, scope())
        with pytest.raises(ServerUnavailable, match=r"far: http://127.0.0.1:9/mcp: ") as calling:
            await ask(service)
    assert "hush" not in f"{listing.value} {listing.value.hint} {calling.value} {calling.value.hint}"


async def test_a_challenge_reaches_the_client_as_it_is(open_service: OpenService) -> None:
    async with remote(token="secret") as (url, _), open_service(settings(url)) as service:
        with pytest.raises(UnauthorizedUpstream) as listing:
            await service.catalogue(FAR, scope())
        with pytest.raises(UnauthorizedUpstream) as calling:
            await ask(service)
        result = await ask(service, passthrough_headers={"Authorization": "Bearer secret"}, credentials="digest")
    for caught in (listing, calling):
        assert caught.value.status == 401
        assert caught.value.challenge == 'Bearer resource_metadata="http://as/meta"'
    assert text_of(result) == "1"


async def test_credentials_that_ran_out_in_a_session_are_told_too(open_service: OpenService) -> None:
    good: dict[str, Any] = {"passthrough_headers": {"Authorization": "Bearer secret"}, "credentials": "one"}
    async with remote(token="secret") as (url, _), open_service(settings(url)) as service:
        await ask(service, **good)
        with pytest.raises(UnauthorizedUpstream):
            await ask(service, passthrough_headers={"Authorization": "Bearer old"}, credentials="two")
        assert text_of(await ask(service, **good)) == "2"


async def test_a_session_that_the_server_has_forgotten_is_told_once_and_begun_again(open_service: OpenService) -> None:
    async with remote() as (url, guard), open_service(settings(url)) as service:
        await ask(service)
        for count in ("2", "3"):
            guard.forget_sessions = True
            with pytest.raises(SandboxLost, match="far: the remote server has ended this session"):
                await ask(service)
            assert text_of(await ask(service)) == count


async def test_a_forgotten_session_is_the_answer_to_the_call_that_met_it_and_to_no_other() -> None:
    app = ForgetsMeanwhile()
    errors: dict[str, MCPError] = {}

    async def calling(tool: str) -> None:
        with pytest.raises(MCPError) as caught:
            await connection.request("tools/call", {"name": tool}, None)
        errors[tool] = caught.value

    async with remote(app) as (url, _), anyio.create_task_group() as tasks:
        connection = RemoteConnection(settings(url), headers={}, owner=Nobody(), clock=SystemClock())
        tasks.start_soon(connection.live)
        with anyio.fail_after(10):
            await connection.ready()
            async with anyio.create_task_group() as calls:
                calls.start_soon(calling, "long")
                await app.long_began.wait()
                calls.start_soon(calling, "gone")
        connection.stop()
    assert isinstance(errors["gone"], SessionForgotten)
    assert not isinstance(errors["long"], SessionForgotten), "it would be sent again, though it has run"
    assert (errors["long"].code, errors["long"].message) == (-32000, "ran, and failed")


async def test_a_server_that_is_not_there_is_named_with_its_url(open_service: OpenService) -> None:
    async with open_service(settings("http://127.0.0.1:9/mcp")) as service:
        with pytest.raises(CatalogueUnavailable, match=r"far: http://127.0.0.1:9/mcp: .*connect") as listing:
            await service.catalogue(FAR, scope())
        with pytest.raises(ServerUnavailable, match=r"far: http://127.0.0.1:9/mcp: .*connect"):
            await ask(service)
    assert listing.value.hint == "check that the server is up and mcpServers.far.url is right"


async def test_a_remote_servers_own_error_is_passed_on(open_service: OpenService) -> None:
    async with remote() as (url, _), open_service(settings(url)) as service:
        with pytest.raises(MCPError):
            await service.request(scope(), FAR, "prompts/get", {"name": "none"}, RecordingChannel())


async def test_each_credential_has_lists_of_its_own_which_are_learned_once(open_service: OpenService) -> None:
    async def names(who: str, session: str) -> list[str]:
        given: dict[str, Any] = {"passthrough_headers": {"Authorization": f"Bearer {who}"}, "credentials": who}
        return [tool["name"] for tool in (await service.catalogue(FAR, scope(session, **given))).tools]

    async with remote(named_after_its_client) as (url, guard):
        for session in ("before", "after a restart"):
            async with open_service(settings(url)) as service:
                assert await names("ann", f"ann {session}") == ["for_ann"]
                assert await names("ben", f"ben {session}") == ["for_ben"]
    assert sum("mcp-protocol-version" not in headers for method, headers in guard.seen if method == "POST") == 2


async def test_a_server_that_was_away_is_reached_again_within_the_session(open_service: OpenService) -> None:
    far = Inconstant()
    async with anyio.create_task_group() as tasks, open_service(settings(await tasks.start(far.run))) as service:
        assert text_of(await ask(service)) == "1"
        await far.go_away()
        with pytest.raises(ServerUnavailable, match="the connection broke during the call") as told:
            await ask(service)
        assert str(told.value).startswith(f"far: {far.url}: ")
        assert "check that the server is up" in str(told.value.hint)
        assert "without what this one held" in str(told.value.hint)
        with pytest.raises(ServerUnavailable, match=rf"far: {far.url}: .*connect"):
            await ask(service)
        await tasks.start(far.run)
        assert text_of(await ask(service)) == "1"
        await far.go_away()


async def test_a_server_that_goes_away_in_a_call_ends_it_and_its_lost_state_is_told_by_the_next(
    open_service: OpenService,
) -> None:
    client, told = RecordingChannel(), list[str]()

    async def wait(service: Service) -> None:
        params = {**call("wait"), "_meta": {"progressToken": "tok"}}
        with pytest.raises(ServerUnavailable) as caught:
            await service.request(scope(), FAR, "tools/call", params, client)
        told.extend((str(caught.value), str(caught.value.hint)))

    far = Inconstant()
    async with anyio.create_task_group() as tasks, open_service(settings(await tasks.start(far.run))) as service:
        async with anyio.create_task_group() as calls:
            calls.start_soon(wait, service)
            await client.wait_for("notifications/progress")
            await far.go_away()
        assert told == [f"far: {far.url}: its answer broke off", "check that the server is up, and call again"]
        await tasks.start(far.run)
        with pytest.raises(SandboxLost, match="far: the remote server has ended this session, and its state is gone"):
            await ask(service)
        assert text_of(await ask(service)) == "1"
        await far.go_away()


async def test_a_server_behind_a_proxy_that_cannot_reach_it_is_named_and_its_session_goes_on(
    open_service: OpenService,
) -> None:
    async with remote() as (url, guard), open_service(settings(url)) as service:
        await ask(service)
        guard.overloaded = True
        with pytest.raises(ServerUnavailable, match=rf"far: {url}: it answered 503") as told:
            await ask(service)
        assert told.value.hint == "check that the server is up, and call again"
        guard.overloaded = False
        assert text_of(await ask(service)) == "2"


async def test_a_connection_that_broke_between_calls_is_told_once_and_made_again(open_service: OpenService) -> None:
    far = Inconstant()
    async with anyio.create_task_group() as tasks, open_service(settings(await tasks.start(far.run))) as service:
        assert text_of(await ask(service)) == "1"
        await far.go_away()
        await service.notify(scope(), FAR, "notifications/roots/list_changed", None)
        with anyio.fail_after(10):
            while (await service.statistics()).remote_connections:
                await anyio.lowlevel.checkpoint()
        await tasks.start(far.run)
        with pytest.raises(SandboxLost, match="far: the connection to the remote server broke, and its state is gone"):
            await ask(service)
        assert text_of(await ask(service)) == "1"
        await far.go_away()


async def test_a_server_that_was_started_again_between_calls_says_so_once_and_the_session_goes_on(
    open_service: OpenService,
) -> None:
    far = Inconstant()
    async with anyio.create_task_group() as tasks, open_service(settings(await tasks.start(far.run))) as service:
        assert text_of(await ask(service)) == "1"
        await far.go_away()
        await tasks.start(far.run)
        with pytest.raises(SandboxLost, match="far: the remote server has ended this session, and its state is gone"):
            await ask(service)
        assert text_of(await ask(service)) == "1"
        await far.go_away()
