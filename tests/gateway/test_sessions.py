"""When sessions begin, whose they are, and how they end."""

from __future__ import annotations

import gc
from typing import Any

import anyio
import pytest
from mcp import Client
from tests.gateway.conftest import Opened, served
from tests.gateway.raw import Raw

from headstart.clock import ManualClock
from headstart.gateway.guard import PortGuard
from headstart.gateway.sessions import ForgetfulMemory
from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of, text_result

pytestmark = pytest.mark.anyio


async def test_every_handshake_without_a_name_is_a_session_of_its_own(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, gateway):
        async with Raw.opened(f"{url}/mcp") as one, Raw.opened(f"{url}/mcp") as two:
            await one.initialize()
            await two.initialize()
            await one.ask("tools/call", {"name": "time__now", "arguments": {}})
            await two.ask("tools/call", {"name": "time__now", "arguments": {}})
        assert len(gateway.sessions) == 2
    first, second = (asked.scope.session for asked in runtime.asked)
    assert first != second


async def test_all_connections_under_one_url_belong_to_one_session(runtime: FakeRuntime, opened: Opened) -> None:
    """One conversation that opens a new MCP session per call keeps its sandboxes."""
    async with opened(runtime) as (url, gateway):
        for mode in ("legacy", "auto", "legacy"):
            async with Client(f"{url}/s/run-1/mcp", mode=mode) as client:
                await client.call_tool("time__now", {})
            async with Client(f"{url}/s/run-1/mcp/git", mode=mode) as client:
                await client.call_tool("status", {})
        assert {asked.scope.session for asked in runtime.asked} == {"run-1"}
        assert len(gateway.sessions) == 1
    assert runtime.closed == []


async def test_the_header_names_the_session_where_the_url_does_not(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _):
        async with Raw.opened(f"{url}/mcp", X_Headstart_Session="run-2") as raw:
            await raw.initialize()
            await raw.ask("tools/call", {"name": "time__now"})
        async with Raw.opened(f"{url}/s/run-3/mcp", X_Headstart_Session="run-2") as raw:
            await raw.ask("tools/call", {"name": "time__now"})
            await raw.ask_modern("tools/call", {"name": "time__now"})
    assert [asked.scope.session for asked in runtime.asked] == ["run-2", "run-3", "run-3"]


async def test_a_stateless_client_without_a_name_gets_one_session_per_credential(
    runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        for authorization in ("Bearer a", "Bearer b", "Bearer a"):
            raw.headers["Authorization"] = authorization
            await raw.ask_modern("tools/call", {"name": "time__now"})
    first, second, third = (asked.scope.session for asked in runtime.asked)
    assert first == third != second


async def test_delete_ends_a_session_of_its_own_at_once(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, gateway), Raw.opened(f"{url}/mcp") as raw:
        session = (await raw.initialize()).headers["mcp-session-id"]
        answer = await raw.http.delete(raw.url, headers=raw.headers)
        assert answer.status_code == 200
        assert runtime.closed == [(session, "its client ended it")]
        assert (await raw.ask("tools/list")).status_code == 404
        assert len(gateway.sessions) == 0


async def test_a_named_session_lingers_after_its_last_connection(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    async with opened(runtime, linger_s=30.0) as (url, gateway):
        async with Raw.opened(f"{url}/s/run/mcp") as one, Raw.opened(f"{url}/s/run/mcp/git") as two:
            for raw in (one, two):
                await raw.initialize()
                await raw.http.delete(raw.url, headers=raw.headers)
        clock.advance(29)
        await gateway.sessions.sweep()
        assert runtime.closed == []
        clock.advance(2)
        await gateway.sessions.sweep()
        assert runtime.closed == [("run", "nobody used it")]


async def test_delete_of_a_named_session_without_a_connection_id_ends_it(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, gateway), Raw.opened(f"{url}/s/run/mcp") as raw:
        await raw.ask_modern("tools/call", {"name": "time__now"})
        assert (await raw.http.delete(raw.url)).status_code == 200
        assert runtime.closed == [("run", "its client ended it")]
        assert len(gateway.sessions) == 0
        assert (await raw.http.delete(raw.url)).status_code == 404


async def test_an_idle_session_ends_and_one_in_use_does_not(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    async with opened(runtime, idle_s=60.0) as (url, gateway), Raw.opened(f"{url}/mcp") as idle:
        await idle.initialize()
        async with Client(f"{url}/mcp", mode="legacy") as client:
            await client.list_tools()
            await runtime.until(lambda: len(runtime.channels) == 2)
            clock.advance(59)
            await gateway.sessions.sweep()
            assert len(gateway.sessions) == 2
            clock.advance(2)
            await gateway.sessions.sweep()
            assert len(gateway.sessions) == 1
            await client.list_tools()
        assert next(reason for _, reason in runtime.closed) == "nobody used it"
        assert (await idle.ask("tools/list")).status_code == 404


async def test_at_the_cap_the_session_unused_longest_makes_room(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    async with opened(runtime, cap=2) as (url, gateway):
        ids: list[str] = []
        for _ in range(3):
            async with Raw.opened(f"{url}/mcp") as raw:
                ids.append((await raw.initialize()).headers["mcp-session-id"])
            clock.advance(1)
        assert runtime.closed == [(ids[0], "the cap on sessions was reached")]
        assert len(gateway.sessions) == 2


async def test_a_cap_of_busy_sessions_refuses_the_next_and_says_why(opened: Opened) -> None:
    released, answers = anyio.Event(), list[Any]()

    async def wait(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await released.wait()
        return text_result("done")

    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("slow", tools=["wait"]), tools={"wait": wait})])
    async with opened(runtime, cap=1) as (url, _), Raw.opened(f"{url}/mcp") as busy:
        await busy.initialize()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy.ask, "tools/call", {"name": "slow__wait"})
            await runtime.until(lambda: len(runtime.asked) == 1)
            async with Raw.opened(f"{url}/mcp") as late:
                answers.append(await late.initialize())
            released.set()
    assert answers[0].status_code == 503
    assert "session_cap" in answers[0].json()["error"]["message"]


async def test_a_thousand_abandoned_sessions_leave_nothing(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    async with opened(runtime, idle_s=60.0, cap=2_000) as (url, gateway):
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.initialize()
            tasks_before = anyio.get_running_tasks()
            for _ in range(1_000):
                raw.headers.pop("Mcp-Session-Id", None)
                await raw.initialize()
                await raw.ask("tools/list")
            assert len(anyio.get_running_tasks()) <= len(tasks_before) + 1
        assert len(gateway.sessions) == 1_001
        views = {id(c.view) for s in gateway.sessions.live() for c in s.connections.values()}
        assert len(views) <= 2  # None, and the one that all share
        clock.advance(61)
        await gateway.sessions.sweep()
        gc.collect()
        assert len(gateway.sessions) == 0
        assert len(runtime.closed) == 1_001
        assert runtime.channels == {}


async def test_a_restart_of_the_service_does_not_strand_a_client(runtime: FakeRuntime, opened: Opened) -> None:
    memory = ForgetfulMemory()
    async with opened(runtime, memory=memory) as (url, _), Raw.opened(f"{url}/s/run/mcp/git") as raw:
        await raw.initialize(roots={})
        carried = dict(raw.headers)
    again = FakeRuntime([FakeServer(catalogue=catalogue_of("git", tools=["status", "log"]))])
    async with opened(again, memory=memory) as (url, gateway), Raw.opened(f"{url}/s/run/mcp/git") as raw:
        raw.headers = carried
        answer = await raw.ask("tools/call", {"name": "status", "arguments": {}})
        assert answer.json()["result"]["isError"] is False
        (session,) = gateway.sessions.live()
        (connection,) = session.connections.values()
        assert connection.capabilities == {"roots": {}}
        assert connection.protocol_version == "2025-11-25"
    assert again.asked[0].scope.session == "run"
    assert again.closed == []


async def test_a_client_that_comes_back_at_the_cap_pushes_out_the_session_unused_longest(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    memory = ForgetfulMemory()
    async with opened(runtime, memory=memory) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        session = (await raw.initialize()).headers["mcp-session-id"]
        carried = dict(raw.headers)
    async with opened(runtime, memory=memory, cap=2) as (url, gateway), Raw.opened(f"{url}/mcp") as raw:
        others: list[str] = []
        for _ in range(2):
            async with Raw.opened(f"{url}/mcp") as other:
                others.append((await other.initialize()).headers["mcp-session-id"])
            clock.advance(1)
        raw.headers = carried
        answers: list[Any] = []

        async def ask(request_id: int) -> None:
            answers.append(await raw.ask("tools/call", {"name": "time__now", "arguments": {}}, request_id=request_id))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, 1)
            tasks.start_soon(ask, 2)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert {session.id for session in gateway.sessions.live()} == {session, others[1]}
    assert runtime.closed == [(others[0], "the cap on sessions was reached")]


async def test_a_client_that_comes_back_to_a_cap_of_busy_sessions_is_told_to_wait_and_not_that_it_is_unknown(
    opened: Opened,
) -> None:
    released, answers = anyio.Event(), list[Any]()

    async def wait(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await released.wait()
        return text_result("done")

    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("slow", tools=["wait"]), tools={"wait": wait})])
    memory = ForgetfulMemory()
    async with opened(runtime, memory=memory) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        carried = dict(raw.headers)
    async with opened(runtime, memory=memory, cap=1) as (url, _), Raw.opened(f"{url}/mcp") as busy:
        await busy.initialize()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy.ask, "tools/call", {"name": "slow__wait"})
            await runtime.until(lambda: len(runtime.asked) == 1)
            async with Raw.opened(f"{url}/mcp") as raw:
                raw.headers = dict(carried)
                answers.append(await raw.ask("tools/list"))
            released.set()
    assert answers[0].status_code == 503
    assert "session_cap" in answers[0].json()["error"]["message"]


async def test_a_remembered_client_is_forgotten_when_it_stays_away(
    runtime: FakeRuntime, opened: Opened, clock: ManualClock
) -> None:
    memory = ForgetfulMemory()
    async with opened(runtime, memory=memory) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        carried = dict(raw.headers)
    clock.advance(7_200)
    async with opened(runtime, memory=memory) as (url, gateway), Raw.opened(f"{url}/mcp") as raw:
        await gateway.sessions.sweep()
        raw.headers = carried
        assert (await raw.ask("tools/list")).status_code == 404
    assert memory.clients == {}


async def test_an_id_is_only_good_for_its_own_principal_and_route(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (_, gateway), served(PortGuard(gateway, host="127.0.0.1", keys=["a", "b"])) as url:
        async with Raw.opened(f"{url}/mcp/git", X_Headstart_Key="a") as mine:
            await mine.initialize()
            assert (await mine.ask("tools/list")).status_code == 200
            mine.url = f"{url}/mcp/time"
            assert (await mine.ask("tools/list")).status_code == 404
            mine.url = f"{url}/s/another/mcp/git"
            assert (await mine.ask("tools/list")).status_code == 404
            mine.url = f"{url}/mcp/git"
            mine.headers["X-Headstart-Key"] = "b"
            assert (await mine.ask("tools/list")).status_code == 404
        for key in ("a", "b"):
            async with Raw.opened(f"{url}/s/run/mcp", X_Headstart_Key=key) as named:
                await named.ask_modern("tools/call", {"name": "time__now"})
    first, second = (asked.scope for asked in runtime.asked)
    assert first.session != second.session
    assert first.principal != second.principal


async def test_a_request_without_a_session_is_told_to_begin(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        answer = await raw.ask("tools/list")
        assert answer.status_code == 400
        assert "initialize" in answer.json()["error"]["message"]
        raw.headers["Mcp-Session-Id"] = "mcp_never_was"
        assert (await raw.ask("tools/list")).status_code == 404


async def test_draining_ends_open_streams_and_lets_requests_finish(opened: Opened) -> None:
    released = anyio.Event()

    async def wait(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await released.wait()
        return text_result("done")

    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("slow", tools=["wait"]), tools={"wait": wait})])
    answers: list[Any] = []
    async with opened(runtime) as (url, gateway), Raw.opened(f"{url}/mcp/slow") as raw:
        await raw.initialize()

        async def call() -> None:
            answers.append(await raw.ask("tools/call", {"name": "wait"}))

        async with anyio.create_task_group() as tasks, raw.http.stream("GET", raw.url, headers=raw.headers) as stream:
            tasks.start_soon(call)
            await runtime.until(lambda: len(runtime.asked) == 1)
            gateway.drain()
            with anyio.fail_after(5):
                assert (await stream.aread()).startswith(b": ping")
            released.set()
    assert answers[0].json()["result"] == text_result("done")
