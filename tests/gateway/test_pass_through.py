"""What goes through between clients and servers besides plain results."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    LoggingMessageNotificationParams,
    Root,
    TextContent,
)
from pydantic import FileUrl
from tests.gateway.conftest import Opened, eventually, streams_open, text_of
from tests.gateway.raw import Raw, frames

from headstart.ids import ResourceId
from headstart.runtime.contract import ClientChannel, JsonObject, SessionScope
from headstart.testing.fake_runtime import FakeRuntime, FakeServer, Handler, catalogue_of, text_result

pytestmark = pytest.mark.anyio

both_eras = pytest.mark.parametrize("mode", ["legacy", "auto"])


def with_tool(handler: Handler, *, name: str = "do", **catalogue: Any) -> FakeRuntime:
    return FakeRuntime([FakeServer(catalogue=catalogue_of("srv", tools=[name], **catalogue), tools={name: handler})])


async def hold(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
    await anyio.sleep_forever()
    raise AssertionError


@both_eras
async def test_progress_arrives_under_the_clients_own_token(mode: str, opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        for step in (1, 2):
            await channel.progress({"progressToken": "the-runtime's-own", "progress": step, "total": 2, "message": "m"})
        return text_result("done")

    heard: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))

    async with opened(with_tool(do)) as (url, _), Client(f"{url}/mcp/srv", mode=mode) as client:
        result = await client.call_tool("do", {}, progress_callback=on_progress)
    assert text_of(result) == "done"
    assert heard == [(1, 2, "m"), (2, 2, "m")]


async def test_a_client_that_asked_for_no_progress_gets_plain_json(opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await channel.progress({"progressToken": 7, "progress": 1})
        return text_result("done")

    async with opened(with_tool(do)) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        answer = await raw.ask("tools/call", {"name": "do"})
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["result"] == text_result("done")


@both_eras
async def test_a_client_that_gives_up_a_call_cancels_it_at_its_server(mode: str, opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime) as (url, _), Client(f"{url}/mcp", mode=mode) as client:
        with anyio.move_on_after(10) as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "srv__do")
                await runtime.until(lambda: len(runtime.asked) == 1)
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        await runtime.until(lambda: len(runtime.cancelled) == 1)


async def test_a_cancelled_request_is_ended_with_an_error_for_a_client_that_still_reads(opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await raw.ask("tools/call", {"name": "do"}, request_id="mine"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await runtime.until(lambda: len(runtime.asked) == 1)
            params = {"requestId": "mine", "reason": "changed my mind"}
            told = await raw.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            assert told.status_code == 202
    error = {"code": -32800, "message": "Request cancelled"}
    assert frames(answers[0].text) == [{"jsonrpc": "2.0", "id": "mine", "error": error}]
    assert len(runtime.cancelled) == 1


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_that_disconnects_in_the_middle_of_a_call_cancels_it(modern: bool, opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime) as (url, gateway):
        async with Raw.opened(f"{url}/s/run/mcp/srv") as raw, anyio.create_task_group() as tasks:
            await raw.initialize()
            tasks.start_soon(raw.ask_modern if modern else raw.ask, "tools/call", {"name": "do"})
            await runtime.until(lambda: len(runtime.asked) == 1)
            tasks.cancel_scope.cancel()
        await runtime.until(lambda: len(runtime.cancelled) == 1)
        await eventually(lambda: all(session.idle for session in gateway.sessions.live()))


async def sample(context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
    (message,) = params.messages
    assert isinstance(message.content, TextContent)
    said = TextContent(type="text", text=f"heard {message.content.text}")
    return CreateMessageResult(role="assistant", content=said, model="m")


async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ada"})


async def ask_twice(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
    message = {"role": "user", "content": {"type": "text", "text": "hello"}}
    sampled = await channel.request("sampling/createMessage", {"messages": [message], "maxTokens": 10})
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    elicited = await channel.request("elicitation/create", {"message": "who?", "requestedSchema": schema})
    return text_result(f"{sampled['content']['text']}; {elicited['content']['name']}")


@both_eras
async def test_a_server_can_ask_the_client_for_sampling_and_elicitation(mode: str, opened: Opened) -> None:
    """A stateless client cannot be asked; its request ends with the question, and it comes back."""
    async with (
        opened(with_tool(ask_twice)) as (url, _),
        Client(f"{url}/mcp", mode=mode, sampling_callback=sample, elicitation_callback=elicit) as client,
    ):
        result = await client.call_tool("srv__do", {})
    assert text_of(result) == "heard hello; Ada"


@both_eras
async def test_a_client_that_cannot_be_asked_refuses_at_once(mode: str, opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        try:
            await channel.request("roots/list", None)
        except MCPError as exc:
            return text_result(exc.message)
        raise AssertionError

    async with opened(with_tool(do)) as (url, _), Client(f"{url}/mcp", mode=mode) as client:
        assert text_of(await client.call_tool("srv__do", {})) == "this client has no roots capability"


async def test_a_parked_call_is_only_found_by_its_own_session(opened: Opened) -> None:
    runtime = with_tool(ask_twice)
    meta: JsonObject = {"io.modelcontextprotocol/clientCapabilities": {"sampling": {}}}
    async with (
        opened(runtime) as (url, _),
        Raw.opened(f"{url}/s/one/mcp/srv") as one,
        Raw.opened(f"{url}/s/two/mcp/srv") as two,
    ):
        asked = (await one.ask_modern("tools/call", {"name": "do"}, meta=meta)).json()["result"]
        assert asked["resultType"] == "input_required"
        stolen = {"name": "do", "requestState": asked["requestState"], "inputResponses": {"q1": {"role": "x"}}}
        again = (await two.ask_modern("tools/call", stolen, meta=meta)).json()["result"]
    assert again["requestState"] != asked["requestState"]
    assert runtime.asked[1].params is not None
    assert runtime.asked[1].params["requestState"] == asked["requestState"]  # not ours there: the server's business


async def test_a_server_can_ask_outside_of_any_request_on_the_open_stream(opened: Opened, runtime: FakeRuntime) -> None:
    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///work"))])

    async with opened(runtime) as (url, gateway), Client(f"{url}/mcp", mode="legacy", list_roots_callback=roots):
        await streams_open(gateway, 1)
        (channel,) = runtime.channels.values()
        with anyio.fail_after(5):
            assert await channel.request("roots/list", None, server=ResourceId("git")) == {
                "roots": [{"uri": "file:///work"}]
            }


async def test_log_messages_are_filtered_by_the_level_that_the_client_set(opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        for level in ("debug", "warning", "error"):
            await channel.notify("notifications/message", {"level": level, "data": level})
        return text_result("done")

    heard: list[str] = []

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.level)

    levels: list[JsonObject] = []

    async def set_level(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        levels.append(params)
        return {}

    runtime = with_tool(do, capabilities={"tools": {}, "logging": {}})
    runtime["srv"].methods = {"logging/setLevel": set_level}
    async with opened(runtime) as (url, _):
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.initialize()
            await raw.ask("logging/setLevel", {"level": "warning"})
            assert runtime.asked == []  # setting a level starts no server
            first = frames((await raw.ask("tools/call", {"name": "srv__do"})).text)
            await raw.ask("tools/call", {"name": "srv__do"})
        async with Client(f"{url}/mcp", mode="auto", log_level="error", logging_callback=on_log) as client:
            await client.call_tool("srv__do", {})
    assert [m["params"]["level"] for m in first[:-1]] == ["warning", "error"]
    assert levels == [{"level": "warning"}]  # and each server hears it once
    assert heard == ["error"]


async def test_a_stateless_client_that_did_not_ask_for_logs_gets_none(opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await channel.notify("notifications/message", {"level": "emergency", "data": "x"})
        return text_result("done")

    async with opened(with_tool(do)) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        answer = await raw.ask_modern("tools/call", {"name": "do"})
    assert answer.headers["content-type"] == "application/json"


async def test_unknown_fields_and_their_order_survive_both_ways(opened: Opened) -> None:
    result = (
        b'{"zeta":1,"content":[{"type":"text","text":"\xc3\xa9 \\ud800","x-y":{"b":1.0,"a":12345678901234567890}}]}'
    )
    arguments = b'{"z":1,"a":{"c":2,"b":[1.50,1e3,null]},"\xf0\x9f\x99\x82":true}'

    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return json.loads(result)

    runtime = with_tool(do)
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        body = (
            b'{"jsonrpc":"2.0","id":"\xc3\xa9","method":"tools/call","params":{"extra":[],"name":"do","arguments":%b}}'
        )
        answer = await raw.send(body % arguments)
    expected = (
        b'{"zeta":1,"content":[{"type":"text","text":"\\u00e9 \\ud800","x-y":{"b":1.0,"a":12345678901234567890}}]}'
    )
    assert answer.content == b'{"jsonrpc":"2.0","id":"\xc3\xa9","result":%b}' % expected
    asked = runtime.asked[0].params
    assert json.dumps(asked) == json.dumps({"extra": [], "name": "do", "arguments": json.loads(arguments)})


async def test_the_envelope_of_a_stateless_client_stays_here_and_its_other_meta_goes_on(opened: Opened) -> None:
    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return {"content": [], "_meta": {"theirs": 1}}

    runtime = with_tool(do)
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        answer = await raw.ask_modern("tools/call", {"name": "do"}, meta={"trace": "t1"})
        await raw.ask_modern("tools/call", {"name": "do"})
    assert [asked.params for asked in runtime.asked] == [{"name": "do", "_meta": {"trace": "t1"}}, {"name": "do"}]
    result = answer.json()["result"]
    assert result["resultType"] == "complete"
    assert result["_meta"]["theirs"] == 1


async def test_a_client_that_would_resume_a_stream_is_told_that_none_can_be(opened: Opened) -> None:
    async def talk(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        await channel.progress({"progress": 1})
        return text_result("done")

    async with opened(with_tool(talk)) as (url, gateway), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        asked = await raw.ask("tools/call", {"name": "do", "_meta": {"progressToken": 1}})
        assert asked.headers["content-type"] == "text/event-stream"
        assert not any(line.startswith("id:") for line in asked.text.splitlines()), "no id: nobody is invited to resume"
        async with raw.http.stream("GET", raw.url, headers=raw.headers):
            await streams_open(gateway, 1)
            resumed = await raw.http.get(raw.url, headers={**raw.headers, "Last-Event-ID": "7"})
            assert resumed.status_code == 400
            assert "send it again" in resumed.json()["error"]["message"]
            await streams_open(gateway, 1)  # the open one is not ended by it


async def test_changed_roots_reach_every_server_of_the_merged_view(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        await raw.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
    assert [told.server for told in runtime.told] == ["git", "time"]


async def test_a_batch_is_answered_as_one_where_the_version_has_batches(runtime: FakeRuntime, opened: Opened) -> None:
    batch = [
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "git__log", "arguments": {"n": 1}}},
        {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
        {"jsonrpc": "2.0", "id": 2, "method": "ping"},
    ]
    async with opened(runtime) as (url, _):
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.initialize("2025-03-26")
            answers = (await raw.send(batch)).json()
            assert [(answer["id"], "result" in answer) for answer in answers] == [(1, True), (2, True)]
            assert len(runtime.told) == 2
            assert (await raw.send([batch[1]])).status_code == 202
            assert (await raw.send([])).status_code == 400
        async with Raw.opened(f"{url}/mcp") as raw:
            await raw.initialize("2025-11-25")
            assert (await raw.send(batch)).status_code == 400


async def test_a_large_result_arrives_whole_and_others_are_served_meanwhile(opened: Opened) -> None:
    text = "x" * 50_000_000

    async def do(scope: SessionScope, params: JsonObject, channel: ClientChannel) -> JsonObject:
        return text_result(text)

    async with (
        opened(with_tool(do)) as (url, _),
        Raw.opened(f"{url}/mcp/srv") as big,
        Raw.opened(f"{url}/mcp") as small,
    ):
        await big.initialize()
        await small.initialize()
        pings = 0
        async with big.http.stream(
            "POST",
            big.url,
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "do"}},
            headers=big.headers,
        ) as answer:
            received = bytearray()
            async for chunk in answer.aiter_raw():
                received += chunk
                if pings < 20:
                    assert (await small.ask("ping")).status_code == 200
                    pings += 1
    assert pings == 20
    assert json.loads(received)["result"]["content"][0]["text"] == text


async def test_a_body_over_the_limit_is_refused_before_it_is_read(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime, body_limit_bytes=1_000_000) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        answer = await raw.send(b"x" * 1_000_001)
        assert answer.status_code == 413
        assert "larger than" in answer.json()["error"]["message"]


async def test_too_many_requests_at_once_are_told_to_wait(opened: Opened) -> None:
    runtime = with_tool(hold)
    async with opened(runtime, requests_at_once=2) as (url, _), Raw.opened(f"{url}/mcp/srv") as raw:
        await raw.initialize()
        async with anyio.create_task_group() as tasks:
            for request_id in (1, 2):
                tasks.start_soon(lambda n=request_id: raw.ask("tools/call", {"name": "do"}, request_id=n))
            await runtime.until(lambda: len(runtime.asked) == 2)
            assert (await raw.ask("ping", request_id=3)).status_code == 429
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{not json", 400, -32700),
        (b"\xff\xfe", 400, -32700),
        (b"[" * 200_000, 400, -32700),
        (b"3", 400, -32600),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 400, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 200, -32602),
    ],
)
async def test_what_is_no_message_is_refused(
    body: bytes, status: int, code: int, runtime: FakeRuntime, opened: Opened
) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        await raw.initialize()
        answer = await raw.send(body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_wrong_media_types_and_routes_are_refused_with_the_cure(runtime: FakeRuntime, opened: Opened) -> None:
    async with opened(runtime) as (url, _), Raw.opened(f"{url}/mcp") as raw:
        raw.headers["Content-Type"] = "text/plain"
        assert (await raw.ask("ping")).status_code == 415
        raw.headers.update({"Content-Type": "application/json", "Accept": "image/png"})
        assert (await raw.ask("ping")).status_code == 406
        raw.url = f"{url}/mcp/gti"
        answer = await raw.initialize()
        assert answer.status_code == 404
        assert "there are: git, time" in answer.json()["error"]["message"]
        assert (await raw.http.put(f"{url}/mcp")).status_code == 405
