"""A stdio client through the shim, a process of its own, to a real gateway."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from tests.gateway.conftest import Opened, eventually, streams_open, text_of
from tests.gateway.raw import CLIENT
from tests.gateway.test_pass_through import ask_twice, elicit, hold, sample, with_tool

from headstart.gateway.stdio import StdioRoute, StdioShim, bridge
from headstart.ids import ResourceId
from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of

pytestmark = pytest.mark.anyio

SHIM = """
import sys
from headstart.gateway.stdio import StdioRoute, bridge
route = StdioRoute(base_url=sys.argv[1], server=sys.argv[2] or None, session=sys.argv[3] or None)
sys.exit(bridge(route, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer, stderr=sys.stderr))
"""


def shim(url: str, *, server: str = "", session: str = "") -> StdioServerParameters:
    return StdioServerParameters(command=sys.executable, args=["-c", SHIM, url, server, session])


both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


@both_eras
async def test_a_stdio_client_lists_and_calls_and_its_session_ends_with_it(
    mode: str, runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, gateway):
        async with Client(shim(url), mode=mode) as client:
            assert next(tool.name for tool in (await client.list_tools()).tools) == "git__status"
            assert text_of(await client.call_tool("git__status", {"n": 1})) == '{"n": 1}'
        await runtime.until(lambda: len(runtime.closed) == 1)
        assert len(gateway.sessions) == 0


@both_eras
async def test_a_shim_that_joins_a_session_leaves_it_to_others(mode: str, runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, gateway):
        async with Client(shim(url, server="git", session="run"), mode=mode) as client:
            await client.call_tool("log", {})
        assert [session.id for session in gateway.sessions.live()] == ["run"]
    assert runtime.closed == []


@both_eras
async def test_questions_and_progress_reach_a_stdio_client(mode: str, opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await channel.progress({"progressToken": 0, "progress": 1})
        return await ask_twice(scope, params, channel)

    heard: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with (
        opened(with_tool(do)) as (url, _),
        Client(shim(url), mode=mode, sampling_callback=sample, elicitation_callback=elicit) as client,
    ):
        result = await client.call_tool("srv__do", {}, progress_callback=on_progress)
    assert text_of(result) == "heard hello; Ada"
    assert heard == [1]


@both_eras
async def test_a_stdio_client_cancels_a_call(mode: str, opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime) as (url, _), Client(shim(url), mode=mode) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "srv__do")
            await runtime.until(lambda: len(runtime.asked) == 1)
            tasks.cancel_scope.cancel()
        await runtime.until(lambda: len(runtime.cancelled) == 1)


async def test_changes_reach_a_stdio_client_outside_of_any_request(runtime: FakeRuntime, opened: Opened) -> None:
    heard: list[Any] = []

    async def on_message(message: Any) -> None:
        heard.append(message)

    async with (
        opened(runtime) as (url, gateway),
        Client(shim(url), mode="legacy", message_handler=on_message) as client,
    ):
        await client.list_tools()
        await streams_open(gateway, 1)
        await runtime.change("time", catalogue_of("time", tools=["later"]))
        await eventually(lambda: bool(heard))
    assert heard[0].method == "notifications/tools/list_changed"


async def test_a_stateless_stdio_client_subscribes(opened: Opened) -> None:
    async def accept(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {}

    resource = {"uri": "file:///a", "name": "a"}
    methods = {"resources/subscribe": accept, "resources/unsubscribe": accept}
    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("x", resources=[resource]), methods=methods)])
    async with (
        opened(runtime) as (url, _),
        Client(shim(url), mode="auto") as client,
        client.listen(resource_subscriptions=["file:///a"]) as events,
    ):
        (channel,) = runtime.channels.values()
        await channel.notify("notifications/resources/updated", {"uri": "file:///a"}, server=ResourceId("x"))
        with anyio.fail_after(5):
            assert getattr(await anext(events), "uri", None) == "file:///a"


async def test_bytes_go_through_as_they_are(runtime: FakeRuntime, opened: Opened) -> None:
    init = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": "a", "method": "initialize", "params": init}).encode(),
        b"{not json",
        b'{"jsonrpc":"2.0","id":"\xc3\xa9\\n","method":"tools/call","params":{"name":"git__log","arguments":{"z":1.50,"a":"\xe2\x82\xac"}}}',
    ]
    out = io.BytesIO()
    async with opened(runtime) as (url, _):
        code = await anyio.to_thread.run_sync(
            lambda: bridge(StdioRoute(base_url=url), stdin=io.BytesIO(b"\n".join(lines)), stdout=out, stderr=sys.stderr)
        )
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert code == 0
    assert [answer["id"] for answer in answers] == ["a", "é\n"]
    assert json.loads(answers[1]["result"]["content"][0]["text"]) == {"z": 1.5, "a": "€"}


def test_the_stream_for_everything_else_is_opened_again_until_there_is_none() -> None:
    statuses = [200, 503, 200, 404]
    refused = threading.Event()

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(202)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            left, status = len(statuses), statuses.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"data: {%d}\r\n\r\n" % left if status == 200 else b"")
            if status == 404:
                refused.set()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
            pass

    out = io.BytesIO()
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as service:
        threading.Thread(target=service.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        client = StdioShim(StdioRoute(base_url=f"http://127.0.0.1:{service.server_port}", session="s"), out)
        client.take(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        assert refused.wait(10)
        client.end()
        service.shutdown()
    assert out.getvalue() == b"{4}\n{2}\n"


def test_a_service_that_is_not_there_is_one_clear_line() -> None:
    err = io.StringIO()
    route = StdioRoute(base_url="http://127.0.0.1:9")
    assert bridge(route, stdin=io.BytesIO(b"{}"), stdout=io.BytesIO(), stderr=err) == 1
    assert err.getvalue().startswith("headstart mcp: no service at http://127.0.0.1:9 (")
    assert err.getvalue().endswith("hint: start it with headstart serve\n")


def test_the_shim_starts_without_anything_heavy() -> None:
    script = "import sys, headstart.gateway.stdio; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert {"anyio", "asyncio", "mcp", "pydantic", "httpx2", "starlette"}.isdisjoint(loaded)
