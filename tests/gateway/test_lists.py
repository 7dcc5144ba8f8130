"""What clients see: stable, complete, and changing only when they are told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from mcp import Client
from tests.gateway.conftest import Opened, eventually, streams_open
from tests.gateway.raw import Raw, frames

from headstart.errors import CatalogueUnavailable
from headstart.gateway.sessions import ForgetfulMemory
from headstart.gateway.view import Missing, merge, single
from headstart.ids import ResourceId
from headstart.runtime.contract import Catalogue, ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, catalogue_of

pytestmark = pytest.mark.anyio


def listed(view_catalogues: Sequence[Catalogue], method: str = "tools/list", key: str = "tools") -> list[JsonObject]:
    body = merge(view_catalogues).list_bytes(method, modern=False)
    assert body is not None
    return json.loads(body)[key]


def test_names_stay_within_what_models_take_and_lead_back() -> None:
    long = "x" * 80
    catalogues = [
        catalogue_of("git", tools=["status", "a.b", "a_b", long]),
        catalogue_of("my.server", tools=["go/now"]),
        catalogue_of("git__a", tools=["b"]),
    ]
    view = merge(catalogues)
    names = [tool["name"] for tool in listed(catalogues)]
    assert names[0] == "git__status"
    assert names[1] == "git__a_b"
    assert names[2].startswith("git__a_b_")  # taken already: marked with its digest
    assert names[4] == "my_server__go_now"
    assert names[5] != "git__a__b" or names.count("git__a__b") == 1
    assert len(set(names)) == len(names)
    assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() for name in names)
    targets = [view.tool(name) for name in names]
    assert [(t.server, t.name) for t in targets if t] == [
        ("git", "status"), ("git", "a.b"), ("git", "a_b"), ("git", long), ("my.server", "go/now"), ("git__a", "b"),
    ]  # fmt: skip


def test_a_tool_that_is_not_listed_is_still_found_by_its_servers_name() -> None:
    """One real server accepts a tool that it does not list."""
    target = merge([catalogue_of("git", tools=["status"])]).tool("git__hidden")
    assert target is not None
    assert (target.server, target.name) == ("git", "hidden")


def test_a_tool_of_a_server_that_could_not_be_learned_leads_to_it_and_its_error() -> None:
    target = merge([], [Missing(server=ResourceId("down"), reason="exits at once")]).tool("down__do")
    assert target is not None
    assert (target.server, target.name) == ("down", "do")


def test_a_uri_is_kept_while_it_is_unique_and_named_by_its_server_when_not() -> None:
    same, own = {"uri": "file:///readme", "name": "r", "x-extra": 1}, {"uri": "note://1", "name": "n"}
    template = {"uriTemplate": "db://{table}/{row}", "name": "t"}
    view = merge(
        [
            catalogue_of("one", resources=[same], resource_templates=[template]),
            catalogue_of("two", resources=[same, own], resource_templates=[template]),
        ]
    )
    shown = json.loads(view.list_bytes("resources/list", modern=False) or b"")["resources"]
    assert shown == [same, {**same, "uri": "headstart://two/file:///readme"}, own]
    found = {uri: view.resource(uri) for uri in ("file:///readme", "note://1", "headstart://two/file:///readme")}
    assert {uri: target.server for uri, target in found.items() if target} == {
        "file:///readme": "one", "note://1": "two", "headstart://two/file:///readme": "two",
    }  # fmt: skip
    assert view.shown_uri(ResourceId("two"), "file:///readme") == "headstart://two/file:///readme"
    by_template = view.resource("db://users/7")
    qualified = view.resource("headstart://two/db://users/7")
    assert by_template is not None
    assert by_template.server == "one"
    assert qualified is not None
    assert (qualified.server, qualified.name) == ("two", "db://users/7")
    assert view.resource("unknown://x") is None


def test_a_single_server_shows_only_the_lists_that_it_has() -> None:
    view = single(catalogue_of("git", tools=["status"]))
    assert view.list_bytes("tools/list", modern=False) is not None
    assert view.list_bytes("prompts/list", modern=False) is None


async def test_lists_are_the_same_bytes_in_every_session_and_after_a_restart(opened: Opened) -> None:
    def make() -> FakeRuntime:
        tools: list[JsonObject | str] = [{"name": "b", "zeta": {"y": 1, "x": 2}, "inputSchema": {}}, "a"]
        return FakeRuntime(
            [FakeServer(catalogue=catalogue_of("s", tools=tools)), FakeServer(catalogue=catalogue_of("t"))]
        )

    bodies: set[bytes] = set()
    for runtime in (make(), make()):
        async with opened(runtime, memory=ForgetfulMemory()) as (url, _):
            for path in ("/mcp", "/s/one/mcp", "/mcp"):
                async with Raw.opened(f"{url}{path}") as raw:
                    await raw.initialize()
                    bodies |= {(await raw.ask("tools/list")).content for _ in range(2)}
    (body,) = bodies
    assert body == (
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"s__b","zeta":{"y":1,"x":2},"inputSchema":{}},'
        b'{"name":"s__a","inputSchema":{"type":"object"}}]}}'
    )


async def test_lists_stay_as_they_are_for_a_client_that_cannot_be_told_of_changes(
    runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as old, Raw.opened(f"{url}/mcp") as new:
        await old.initialize()
        before = (await old.ask("tools/list")).content
        await runtime.change("time", catalogue_of("time", tools=["now", "zones"]))
        assert (await old.ask("tools/list")).content == before
        await new.initialize()
        assert b"time__zones" in (await new.ask("tools/list")).content
        async with old.http.stream("GET", old.url, headers=old.headers) as stream:
            with anyio.fail_after(5):
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        assert json.loads(line[6:])["method"] == "notifications/tools/list_changed"
                        break
        assert b"time__zones" in (await old.ask("tools/list")).content


@pytest.mark.parametrize(("path", "sees_change"), [("/mcp", True), ("/s/run/mcp", False)])
async def test_a_stateless_client_keeps_its_lists_only_where_a_conversation_is_known(
    path: str, sees_change: bool, runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}{path}") as raw:
        before = (await raw.ask_modern("tools/list")).content
        await runtime.change("time", catalogue_of("time", tools=["now", "zones"]))
        after = (await raw.ask_modern("tools/list")).content
    assert (b"time__zones" in after) is sees_change
    assert (after == before) is not sees_change


@pytest.mark.parametrize("path", ["/mcp", "/mcp/time"])
async def test_a_listening_client_is_told_only_of_what_really_changed(
    path: str, runtime: FakeRuntime, opened: Opened
) -> None:
    heard: list[Any] = []

    async def on_message(message: Any) -> None:
        heard.append(message)

    async with (
        opened(runtime) as (url, gateway),
        Client(f"{url}{path}", mode="legacy", message_handler=on_message) as client,
    ):
        await client.list_tools()
        await streams_open(gateway, 1)
        await runtime.change("time", catalogue_of("time", tools=["now"]), kinds=["tools", "prompts"])
        await runtime.change("git", catalogue_of("git", tools=["other"])) if path == "/mcp/time" else None
        await runtime.change("time", catalogue_of("time", tools=["later"]), kinds=["tools", "prompts"])
        await eventually(lambda: bool(heard))
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert [message.method for message in heard] == ["notifications/tools/list_changed"]
    assert names[-1].endswith("later")


async def test_a_stateless_client_listens_for_what_it_asked(opened: Opened) -> None:
    resource = {"uri": "file:///a", "name": "a"}
    subscribed: list[tuple[str, Any]] = []

    def noting(method: str) -> Any:
        async def note(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
            subscribed.append((method, params.get("uri")))
            return {}

        return note

    runtime = FakeRuntime(
        [
            FakeServer(catalogue=catalogue_of("x", resources=[resource])),
            FakeServer(
                catalogue=catalogue_of("y", tools=["go"], resources=[resource]),
                methods={m: noting(m) for m in ("resources/subscribe", "resources/unsubscribe")},
            ),
        ]
    )
    shown = "headstart://y/file:///a"
    async with opened(runtime) as (url, _), Client(f"{url}/s/run/mcp", mode="auto") as client:
        await client.list_tools()
        async with client.listen(tools_list_changed=True, resource_subscriptions=[shown]) as events:
            assert events.honored.resource_subscriptions == [shown]
            (channel,) = runtime.channels.values()
            await channel.notify("notifications/resources/updated", {"uri": "file:///a"}, server=ResourceId("x"))
            await channel.notify("notifications/resources/updated", {"uri": "file:///a"}, server=ResourceId("y"))
            await runtime.change(
                "y", catalogue_of("y", tools=["gone"], resources=[resource]), kinds=["tools", "prompts"]
            )
            with anyio.fail_after(5):
                first, second = await anext(events), await anext(events)
        assert getattr(first, "uri", None) == shown
        assert type(second).__name__ == "ToolsListChanged"
        assert [tool.name for tool in (await client.list_tools()).tools] == ["y__gone"]
        await runtime.until(lambda: len(runtime.asked) == 2)
    assert subscribed == [("resources/subscribe", "file:///a"), ("resources/unsubscribe", "file:///a")]


async def test_the_first_list_waits_for_learning_and_tells_progress(opened: Opened) -> None:
    learning = anyio.Event()
    late = FakeServer(catalogue=catalogue_of("late", tools=["go"]), learned=False, learning=learning)
    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("git", tools=["log"])), late])
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        hello = (await raw.initialize()).json()["result"]
        assert "# late\nNot available: its tools are not known yet" in hello["instructions"]
        assert hello["capabilities"]["prompts"] == {"listChanged": True}
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await raw.ask("tools/list", {"_meta": {"progressToken": "p"}}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            learning.set()
    progress, result = frames(answers[0].text)
    assert progress["params"] == {"progressToken": "p", "progress": 1, "total": 1, "message": "learned late"}
    assert [tool["name"] for tool in result["result"]["tools"]] == ["git__log", "late__go"]


async def test_a_server_that_cannot_be_learned_is_left_out_with_its_reason_and_joins_later(opened: Opened) -> None:
    broken = FakeServer(
        catalogue=catalogue_of("bad"), learned=False, refuses=CatalogueUnavailable("bad: exits at once")
    )
    runtime = FakeRuntime([FakeServer(catalogue=catalogue_of("git", tools=["log"])), broken])
    heard: list[Any] = []

    async def on_message(message: Any) -> None:
        heard.append(message)

    async with (
        opened(runtime) as (url, gateway),
        Client(f"{url}/mcp", mode="legacy", message_handler=on_message) as client,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["git__log"]
        broken.learned = True
        async with Raw.opened(f"{url}/mcp") as other:
            told = (await other.initialize()).json()["result"]["instructions"]
        assert "# bad\nNot available: bad: exits at once" in told
        await streams_open(gateway, 1)
        broken.refuses = None
        await runtime.change("bad", catalogue_of("bad", tools=["better"]))
        await eventually(lambda: bool(heard))
        assert [tool.name for tool in (await client.list_tools()).tools] == ["git__log", "bad__better"]


async def test_lists_come_in_one_page_and_a_strange_cursor_is_refused(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        assert "nextCursor" not in (await raw.ask("tools/list")).json()["result"]
        assert (await raw.ask("tools/list", {"cursor": "2"})).json()["error"]["code"] == -32602


async def test_prompts_resources_and_completion_reach_the_right_server(opened: Opened) -> None:
    async def read(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {"contents": [{"uri": params["uri"], "text": "t", "x": 1}]}

    async def echo(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {"echo": params}

    async def link(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {"content": [{"type": "resource_link", "uri": "made://1", "name": "m"}]}

    resource = {"uri": "file:///a", "name": "a"}
    methods = {"resources/read": read, "prompts/get": echo, "completion/complete": echo}
    servers = [
        FakeServer(catalogue=catalogue_of("x", resources=[resource], prompts=[{"name": "p"}]), methods=methods),
        FakeServer(
            catalogue=catalogue_of("y", tools=["link"], resources=[resource], prompts=[{"name": "p"}]),
            methods=methods,
            tools={"link": link},
        ),
    ]
    runtime = FakeRuntime(servers)
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()

        async def result(method: str, params: JsonObject) -> JsonObject:
            return (await raw.ask(method, params)).json()

        shown = "headstart://y/file:///a"
        assert (await result("resources/read", {"uri": shown}))["result"]["contents"] == [
            {"uri": shown, "text": "t", "x": 1}
        ]
        assert (await result("prompts/get", {"name": "y__p"}))["result"] == {"echo": {"name": "p"}}
        argument = {"name": "q", "value": "v"}
        completion = {"ref": {"type": "ref/prompt", "name": "y__p"}, "argument": argument}
        told = (await result("completion/complete", completion))["result"]["echo"]
        assert told == {"ref": {"type": "ref/prompt", "name": "p"}, "argument": argument}
        assert (await result("resources/read", {"uri": "made://1"}))["error"]["code"] == -32002
        await result("tools/call", {"name": "y__link"})
        assert "result" in await result("resources/read", {"uri": "made://1"})
        assert (await result("prompts/get", {"name": "nobody__p"}))["error"]["code"] == -32602
    assert [asked.server for asked in runtime.asked] == ["y", "y", "y", "y", "y"]


async def test_mirrored_arguments_must_agree_with_the_body(opened: Opened) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}
    tool: JsonObject = {"name": "weather", "inputSchema": schema}
    async with opened(FakeRuntime([FakeServer(catalogue=catalogue_of("w", tools=[tool]))])) as (url, _):
        async with Client(f"{url}/mcp", mode="auto") as client:
            await client.list_tools()
            assert not (await client.call_tool("w__weather", {"city": "Oslo"})).is_error
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.ask_modern("tools/list")
            raw.headers["Mcp-Param-City"] = "Rome"
            answer = await raw.ask_modern("tools/call", {"name": "w__weather", "arguments": {"city": "Oslo"}})
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32020)
