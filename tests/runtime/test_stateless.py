"""Servers that speak only the stateless protocol, over HTTP and over stdio: real ones, written with the SDK."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError

from headstart.config.model import ServerSettings
from headstart.errors import UnauthorizedUpstream
from headstart.ids import ResourceId
from headstart.runtime.contract import JsonObject
from headstart.runtime.service import Service
from headstart.runtime.stateless import MAX_ASKED_BYTES, MAX_QUESTIONS

from .conftest import OpenService, RecordingChannel, call, scope, stdio_server, text_of
from .servers.stateless import build

pytestmark = pytest.mark.anyio

FAR = ResourceId("far")
NEWEST = b"2026-07-28"


class StatelessOnly:
    """An ASGI app in front of the SDK's that has no other protocol, and notes the methods that were posted."""

    def __init__(self, server: MCPServer) -> None:
        self._app = server.streamable_http_app(stateless_http=True)
        self.methods: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.token: str | None = None
        self.listening: list[anyio.CancelScope] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            told = {name.decode(): value.decode() for name, value in headers.items()}
            self.headers.append(told)
            self.methods.append(told.get("mcp-method", "?"))
            if self.token is not None and told.get("authorization") != f"Bearer {self.token}":
                refusal = [(b"www-authenticate", b"Bearer realm=far")]
                await send({"type": "http.response.start", "status": 401, "headers": refusal})
                await send({"type": "http.response.body", "body": b""})
                return
            scope = {**scope, "headers": [*{b"mcp-protocol-version": NEWEST, **headers}.items()]}
        with anyio.CancelScope() as broken:
            if self.methods[-1:] == ["subscriptions/listen"]:
                self.listening.append(broken)
            await self._app(scope, receive, send)


@asynccontextmanager
async def remote(
    cancelled: anyio.Event | None = None,
) -> AsyncGenerator[tuple[ServerSettings, StatelessOnly, MCPServer]]:
    inner = build(cancelled)
    app = StatelessOnly(inner)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            with anyio.fail_after(10):
                while not server.started:
                    await anyio.lowlevel.checkpoint()
            try:
                yield ServerSettings(name=FAR, url=f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), app, inner
            finally:
                server.should_exit = True


@asynccontextmanager
async def stdio() -> AsyncGenerator[tuple[ServerSettings, None, None]]:
    yield stdio_server("stateless.py", name=FAR), None, None


both = pytest.mark.parametrize("served", [remote, stdio], ids=["http", "stdio"])


async def ask(service: Service, tool: str, channel: RecordingChannel | None = None, **arguments: object) -> str:
    params = {**call(tool, **arguments), "_meta": {"progressToken": "tok"}}
    return text_of(await service.request(scope(), FAR, "tools/call", params, channel or RecordingChannel()))


@both
async def test_it_is_listed_and_called_with_progress(served: Any, open_service: OpenService) -> None:
    client = RecordingChannel()
    async with served() as (settings, _, _), open_service(settings) as service:
        catalogue = await service.catalogue(FAR, scope())
        told = await service.request(
            scope(), FAR, "tools/call", {**call("count", upto=2), "_meta": {"progressToken": "tok"}}, client
        )
    assert {tool["name"] for tool in catalogue.tools} >= {"count", "name_it"}
    assert catalogue.initialize["serverInfo"]["name"] == "stateless"
    assert catalogue.initialize["instructions"] == "Ask away."
    assert text_of(told) == "counted to 2"
    assert "resultType" not in told
    assert client.told == [
        ("notifications/progress", {"progressToken": "tok", "progress": 1, "total": 2}),
        ("notifications/progress", {"progressToken": "tok", "progress": 2, "total": 2}),
    ]


@both
async def test_what_it_asks_about_a_call_is_answered_by_the_client(served: Any, open_service: OpenService) -> None:
    client = RecordingChannel(answers={"elicitation/create": {"action": "accept", "content": {"name": "Ada"}}})
    async with served() as (settings, _, _), open_service(settings) as service:
        assert await ask(service, "name_it", client) == "named Ada"
    assert [method for method, _ in client.told] == ["elicitation/create"]


@both
async def test_a_client_that_refuses_to_answer_ends_the_call_with_its_refusal(
    served: Any, open_service: OpenService
) -> None:
    class Refusing(RecordingChannel):
        async def request(self, *_: Any, **__: Any) -> Any:
            raise MCPError(-1, "not today", None)

    async with served() as (settings, _, _), open_service(settings) as service:
        with pytest.raises(MCPError, match="not today"):
            await ask(service, "name_it", Refusing())


@both
@pytest.mark.parametrize(
    ("questions", "size", "told"),
    [
        (MAX_QUESTIONS + 1, 1, "asked 65 questions at once; at most 64 are passed on"),
        (2, MAX_ASKED_BYTES // 2, "in a message of 16.0 MiB; at most 16 MiB are passed on"),
    ],
    ids=["many", "large"],
)
async def test_a_server_that_asks_too_much_at_once_is_told_of_and_asks_nothing(
    served: Any, questions: int, size: int, told: str, open_service: OpenService
) -> None:
    client = RecordingChannel()
    async with served() as (settings, _, _), open_service(settings) as service:
        with pytest.raises(MCPError, match=told):
            await ask(service, "flood", client, questions=questions, size=size)
    assert client.told == []


@both
async def test_as_many_questions_as_may_be_are_all_asked(served: Any, open_service: OpenService) -> None:
    client = RecordingChannel(answers={"elicitation/create": {"action": "decline"}})
    async with served() as (settings, _, _), open_service(settings) as service:
        with pytest.raises(MCPError, match="asked for more input 10 times"):
            await ask(service, "flood", client, questions=MAX_QUESTIONS, size=1)
    assert len(client.told) == 10 * MAX_QUESTIONS


@both
async def test_changed_lists_reach_the_session_that_listens(served: Any, open_service: OpenService) -> None:
    ears = RecordingChannel()
    async with served() as (settings, _, _), open_service(settings) as service:
        await ask(service, "count", upto=0)
        service.listen(scope().session, ears)
        assert await ask(service, "grow") == "grew"
        await ears.wait_for("notifications/tools/list_changed")
        catalogue = await service.catalogue(FAR, scope())
    assert "grown" in {tool["name"] for tool in catalogue.tools}


async def test_a_broken_subscription_is_opened_again_and_what_it_may_have_missed_is_read(
    open_service: OpenService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.runtime.subscription.PAUSES_S", (0.0,))
    ears = RecordingChannel()
    async with remote() as (settings, app, inner), open_service(settings) as service:
        service.listen(scope().session, ears)
        await ask(service, "count", upto=0)
        with anyio.fail_after(10):
            while not app.listening:
                await anyio.lowlevel.checkpoint()
        inner.add_tool(lambda: "there", name="unheard")
        app.listening[0].cancel()
        await ears.wait_for("notifications/tools/list_changed")
        assert "unheard" in {tool["name"] for tool in (await service.catalogue(FAR, scope())).tools}


@both
async def test_a_subscribed_resource_is_told_of_until_it_is_left(served: Any, open_service: OpenService) -> None:
    ears = RecordingChannel()
    uri = {"uri": "note://one"}
    async with served() as (settings, _, _), open_service(settings) as service:
        service.listen(scope().session, ears)
        await service.request(scope(), FAR, "resources/subscribe", uri, RecordingChannel())
        await ask(service, "touch")
        assert await ears.wait_for("notifications/resources/updated") == uri
        await service.request(scope(), FAR, "resources/unsubscribe", uri, RecordingChannel())
        ears.told.clear()
        await ask(service, "touch")
        await ask(service, "grow")
        await ears.wait_for("notifications/tools/list_changed")
    assert "notifications/resources/updated" not in {method for method, _ in ears.told}


async def test_a_cancelled_call_is_cancelled_at_the_remote_server(open_service: OpenService) -> None:
    client, cancelled = RecordingChannel(), anyio.Event()
    async with remote(cancelled) as (settings, _, _), open_service(settings) as service:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, service, "wait", client)
            await client.wait_for("notifications/progress")
            tasks.cancel_scope.cancel()
        with anyio.fail_after(10):
            await cancelled.wait()


async def test_what_it_speaks_is_remembered_over_a_restart(open_service: OpenService) -> None:
    async with remote() as (settings, app, _):
        async with open_service(settings) as service:
            await service.catalogue(FAR, scope())
        assert app.methods[:2] == ["?", "server/discover"], "initialize first, to a server that was never met"
        app.methods.clear()
        async with open_service(settings) as service:
            await ask(service, "count", upto=0)
        assert app.methods[0] == "server/discover"
        assert "?" not in app.methods


async def test_its_challenge_reaches_the_client_whether_it_was_met_before_or_not(open_service: OpenService) -> None:
    async with remote() as (settings, app, _), open_service(settings) as service:
        for _met in range(2):
            app.token = "secret"
            with pytest.raises(UnauthorizedUpstream) as refused:
                await service.request(scope(), FAR, "tools/call", call("count", upto=0), RecordingChannel())
            assert refused.value.challenge == "Bearer realm=far"
            app.token = None
            await service.catalogue(FAR, scope())
            await service.close_session(scope().session, reason="left")


async def test_the_client_s_own_abilities_and_log_level_go_along_with_its_requests(open_service: OpenService) -> None:
    async with remote() as (settings, _, inner), open_service(settings) as service:
        seen: list[Any] = []

        @inner.tool()
        async def tell(ctx: Context) -> str:
            seen.append(ctx.request_context.meta)
            return "told"

        able: JsonObject = {"sampling": {}, "extensions": {"com.example/x": {}}}
        assert await ask(service, "tell", RecordingChannel(capabilities=able, log_level="warning")) == "told"
    (meta,) = seen
    assert meta["io.modelcontextprotocol/clientCapabilities"] == able
    assert meta["io.modelcontextprotocol/logLevel"] == "warning"
