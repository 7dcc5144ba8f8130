"""The proxy as clients meet it."""

import gzip
import json
import logging
from collections.abc import Iterator

import openai
import pytest
import websockets
from tests.proxy.conftest import Exchange, ProxyMaker, RawClient, UpstreamMaker

from headstart.bench.replay_model import Recording, serve
from headstart.config.model import Upstream
from headstart.core.stream import (
    GenerationEnded,
    GenerationStarted,
    TextArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.proxy import ProxyStatistics, UnreadCount
from headstart.proxy.routes import Routes

SECRET = "sk-very-secret-credential"

RECORDING = Recording.model_validate(
    {
        "session": "rates",
        "user": "What are the rates?",
        "gzip": True,
        "steps": [
            {
                "reasoning": "A query is needed.",
                "text": "Let me look them up.",
                "calls": [
                    {"name": "sqlite__read_query", "arguments": {"query": "select 1"}},
                    {"name": "time__now", "arguments": {}},
                ],
            },
            {"text": "They are zwölf €."},
        ],
    }
)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """These run on the loop that the service uses, too: its transports differ."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.anyio
async def test_the_openai_client_streams_a_conversation_and_it_is_read(proxied: ProxyMaker) -> None:
    async with serve([RECORDING]) as base_url, proxied({"default": base_url}) as proxy:
        async with openai.AsyncOpenAI(base_url=f"{proxy.origin}/s/chat-1/v1", api_key=SECRET) as client:
            stream = await client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": RECORDING.user}],
                stream=True,
                stream_options={"include_usage": True},
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            assert text == "Let me look them up."
        await proxy.ended()
    started, *_, ended = proxy.events
    assert isinstance(started, GenerationStarted)
    assert (started.session, started.text) == ("chat-1", RECORDING.user)
    assert [event.tool for event in proxy.events if isinstance(event, ToolCallOpened)] == [
        "sqlite__read_query",
        "time__now",
    ]
    closed = [event.arguments for event in proxy.events if isinstance(event, ToolCallClosed)]
    assert closed == ['{"query":"select 1"}', "{}"]
    assert isinstance(ended, GenerationEnded)
    assert ended.output_tokens


@pytest.mark.anyio
@pytest.mark.parametrize(("header", "session"), [("chat-2", "chat-2"), ("chat%2D3", "chat-3"), ("two words", None)])
async def test_the_header_names_the_session_and_one_that_cannot_be_a_name_is_ignored(
    proxied: ProxyMaker, header: str, session: str | None
) -> None:
    async with serve([RECORDING]) as base_url, proxied({"default": base_url}) as proxy:
        async with openai.AsyncOpenAI(
            base_url=f"{proxy.origin}/v1", api_key=SECRET, default_headers={"X-Headstart-Session": header}
        ) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": RECORDING.user}])
        await proxy.ended()
    assert isinstance(proxy.events[0], GenerationStarted)
    assert proxy.events[0].session == session


@pytest.mark.anyio
async def test_the_openai_client_gets_whole_responses_and_lists(proxied: ProxyMaker) -> None:
    async with serve([RECORDING]) as base_url, proxied({"openai": base_url}) as proxy:
        async with openai.AsyncOpenAI(base_url=f"{proxy.origin}/openai/v1", api_key=SECRET) as client:
            whole = await client.chat.completions.create(
                model="replay/rates",
                messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
            )
            assert whole.choices[0].message.content == "They are zwölf €."
            assert [model.id for model in (await client.models.list()).data] == ["replay/rates"]
            with pytest.raises(openai.NotFoundError, match="no recording begins with"):
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "else"}])
        await proxy.ended(2)
    assert [event.text for event in proxy.events if isinstance(event, TextArrived)] == ["They are zwölf €."]


@pytest.mark.anyio
async def test_a_websocket_upgrade_gets_426(proxied: ProxyMaker, raw_request: RawClient) -> None:
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(f"ws://127.0.0.1:{proxy.port}/v1/responses")
    response = caught.value.response
    assert (response.status_code, response.headers["upgrade"]) == (426, "HTTP/1.1")
    assert b"use the HTTP transport" in response.body


@pytest.mark.anyio
async def test_an_upgrade_that_reaches_the_app_as_http_gets_426_too(proxied: ProxyMaker) -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        raise AssertionError("nothing to receive")

    headers = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade")]
    scope = {"type": "http", "method": "GET", "path": "/v1/responses", "query_string": b"", "headers": headers}
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        await proxy.app(scope, receive, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == 426
    assert (b"upgrade", b"HTTP/1.1") in sent[0]["headers"]  # type: ignore[operator]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/v1/chat/completions", "doubled_v1"),
        ("/nobody/v1/models", "unknown_upstream"),
        ("/default/x", "no_version"),
    ],
)
async def test_a_wrong_path_gets_one_json_line_with_the_cure(
    proxied: ProxyMaker, raw_request: RawClient, path: str, code: str
) -> None:
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        answer = await raw_request(proxy.port, f"GET {path} HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n".encode())
    assert (answer.status, answer.rest.count(b"\n")) == (404, 1)
    error = json.loads(answer.rest)["error"]
    assert error["code"] == code
    assert f"hint: {error['hint']}" in error["message"]


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1", "/s/run/v1/", "/default/v1"])
async def test_an_mcp_client_that_was_given_a_models_url_is_told_where_mcp_is(
    proxied: ProxyMaker, raw_request: RawClient, path: str
) -> None:
    request = f"POST {path} HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{{}}"
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        answer = await raw_request(proxy.port, request.encode())
    assert answer.status == 404
    assert "MCP is at /mcp" in json.loads(answer.rest)["error"]["hint"]


@pytest.mark.anyio
async def test_what_no_format_reads_passes_and_is_counted_by_route(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        for path in ("/v1/responses", "/v1/messages", "/v1/files/file-1/content", "/v1/files/file-2/content"):
            request = f"POST {path} HTTP/1.1\r\nHost: p\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc"
            assert (await raw_request(proxy.port, request.encode())).rest == b"ok"
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 0)
        told = proxy.app.statistics()
    assert told == ProxyStatistics(
        requests=4,
        read=0,
        unread=(
            UnreadCount(route="POST /files/…/content", reason="not a generation", count=2),
            UnreadCount(route="POST /messages", reason="format not read yet", count=1),
            UnreadCount(route="POST /responses", reason="format not read yet", count=1),
        ),
        bytes_up=12,
        bytes_down=8,
        active_streams=0,
        parse_lag_s=0.0,
        parse_lag_max_s=0.0,
        queued_bytes=0,
    )
    assert proxy.events == []


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


@pytest.mark.anyio
async def test_credentials_reach_the_upstream_and_nothing_else(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, everything_logged: pytest.LogCaptureFixture
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nnot json!")

    headers = f"Authorization: Bearer {SECRET}\r\nX-Api-Key: {SECRET}\r\nX-Headstart-Key: own-{SECRET}\r\n"
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\n{headers}Content-Length: 2\r\nConnection: close\r\n\r\n"
    )
    async with (
        upstream(answer) as up,
        proxied({"default": up.base_url, "dead": f"http://127.0.0.1:1/v1?key={SECRET}"}) as proxy,
    ):
        await raw_request(proxy.port, request.encode() + b"{}")
        dead = request.replace("/v1/chat/completions", f"/dead/v1/chat/completions?key={SECRET}")
        refusal = await raw_request(proxy.port, dead.encode() + b"{}")
        await proxy.ended(2)
        route = Routes([Upstream(prefix="x", base_url=f"http://h/v1?k={SECRET}")]).resolve(b"/x/v1/y", SECRET.encode())
        kept = [
            repr(route),
            repr(proxy.events),
            repr(proxy.app.statistics()),
            repr(vars(proxy.app)),
            everything_logged.text,
        ]
    assert up.exchanges[0].head.count(SECRET.encode()) == 2
    assert b"own-" not in up.exchanges[0].head
    assert SECRET not in "\n".join(kept)
    assert SECRET.encode() not in refusal.rest


@pytest.mark.anyio
async def test_a_compressed_request_is_read_and_passed_as_it_is(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    body = gzip.compress(b'{"model":"m"}')
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n"
    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        await raw_request(proxy.port, head.encode() + b"Connection: close\r\n\r\n" + body)
        await proxy.ended()
    assert up.exchanges[0].body == body
    assert isinstance(proxy.events[0], GenerationStarted)
    assert proxy.events[0].model == "m"
