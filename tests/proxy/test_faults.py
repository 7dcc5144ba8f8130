"""What the proxy does when somebody breaks off."""

import asyncio
import json

import anyio
import anyio.lowlevel
import pytest
from tests.proxy.conftest import Exchange, ProxyMaker, RawAnswer, RawClient, UpstreamMaker

from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, ToolCallClosed, ToolCallOpened
from headstart.proxy import ProxyLimits

pytestmark = pytest.mark.anyio

WAIT_S = 10.0
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CALL = (
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":'
    b'[{"index":0,"id":"c1","function":{"name":"t","arguments":"{}"}}]}}]}\n\n'
)


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def error(answer: RawAnswer) -> dict[str, str]:
    assert answer.rest.endswith(b"\n")
    assert answer.rest.count(b"\n") == 1
    return json.loads(answer.rest)["error"]


async def test_an_upstream_that_is_not_there_is_one_clear_502(proxied: ProxyMaker, raw_request: RawClient) -> None:
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        answer = await raw_request(proxy.port, POST)
        (ended,) = await proxy.ended()
    assert answer.status == 502
    message = error(answer)["message"]
    assert "'default' (http://127.0.0.1:1/v1)" in message
    assert "hint: start the model server, or correct the base URL of `default`" in message
    assert ended.outcome is GenerationOutcome.UPSTREAM_FAILED
    assert isinstance(proxy.events[0], GenerationStarted)


async def test_a_name_that_does_not_resolve_is_a_502(proxied: ProxyMaker, raw_request: RawClient) -> None:
    async with proxied({"default": "http://no-such-host.invalid/v1"}) as proxy:
        assert (await raw_request(proxy.port, POST)).status == 502


async def test_a_connect_that_takes_too_long_is_a_502(proxied: ProxyMaker, raw_request: RawClient) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.1", 0)  # takes TCP, never answers TLS
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with proxied({"default": url}, limits=ProxyLimits(connect_timeout_s=0.2)) as proxy:
        answer = await raw_request(proxy.port, POST)
    server.close()
    assert answer.status == 502
    assert "did not answer in time" in error(answer)["message"]


async def test_more_streams_than_allowed_are_refused_at_once(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    release = anyio.Event()

    async def hold(exchange: Exchange) -> None:
        await release.wait()
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with (
        upstream(hold) as up,
        proxied({"default": up.base_url}, limits=ProxyLimits(connections=1)) as proxy,
        anyio.create_task_group() as group,
    ):
        group.start_soon(raw_request, proxy.port, POST)
        await proxy.wait_until(lambda: len(up.exchanges) == 1)
        answer = await raw_request(proxy.port, POST)
        assert (answer.status, error(answer)["code"]) == (503, "upstream_full")
        release.set()


@pytest.mark.parametrize(
    "junk", [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nhalf a he", b"HTTP/1.1 999 ?\r\n\r\n", b"HTTP/1.1 101 X\r\n\r\n"]
)
async def test_an_upstream_that_sends_no_response_is_a_502(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, junk: bytes
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(junk)

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, POST)
        (ended,) = await proxy.ended()
    assert (got.status, error(got)["code"]) == (502, "upstream_broke")
    assert ended.outcome is GenerationOutcome.UPSTREAM_FAILED
    assert len(up.exchanges) == 1, "a generation is never sent twice"


@pytest.mark.parametrize("how", ["reset", "close", "bad chunk"])
async def test_a_stream_that_breaks_off_breaks_off_for_the_client_too(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, how: str
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + framed(CALL))
        await proxy.wait_until(lambda: any(isinstance(event, ToolCallOpened) for event in proxy.events))
        if how == "reset":
            exchange.reset()
        elif how == "bad chunk":
            await exchange.send(b"zzz\r\n")

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, POST)
        (ended,) = await proxy.ended()
    assert (got.status, got.body) == (200, CALL)
    assert got.cut_off or not got.ended_properly
    assert ended.outcome is GenerationOutcome.UPSTREAM_FAILED
    assert not any(isinstance(event, ToolCallClosed) for event in proxy.events)


async def test_a_body_shorter_than_announced_breaks_off(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\npart")

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, POST)
    assert got.rest == b"part"
    assert not got.ended_properly


async def test_a_client_that_leaves_before_the_first_token_ends_the_upstreams_work(
    proxied: ProxyMaker, upstream: UpstreamMaker
) -> None:
    noticed = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.wait_for_the_proxy_to_leave()
        noticed.set()

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(POST)
        await proxy.wait_until(lambda: len(up.exchanges) == 1)
        writer.close()
        with anyio.fail_after(WAIT_S):
            await noticed.wait()
        (ended,) = await proxy.ended()
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 0)
    assert ended.outcome is GenerationOutcome.CLIENT_LEFT


async def test_a_client_that_leaves_mid_stream_ends_the_upstreams_work(
    proxied: ProxyMaker, upstream: UpstreamMaker
) -> None:
    noticed = anyio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + framed(CALL))
        await exchange.wait_for_the_proxy_to_leave()
        noticed.set()

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(POST)
        with anyio.fail_after(WAIT_S):
            await reader.readuntil(b'"{}"')
            writer.transport.abort()
            await noticed.wait()
        (ended,) = await proxy.ended()
    assert ended.outcome is GenerationOutcome.CLIENT_LEFT


async def test_a_client_that_leaves_mid_upload_ends_the_upstreams_work(
    proxied: ProxyMaker, upstream: UpstreamMaker
) -> None:
    async with upstream(lambda _: anyio.lowlevel.checkpoint()) as up, proxied({"default": up.base_url}) as proxy:
        _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(POST.replace(b"Content-Length: 2", b"Content-Length: 200"))
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 1)
        writer.close()
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 0)
    assert up.exchanges == []
    assert proxy.events == []


async def test_an_early_answer_to_an_upload_reaches_the_client(proxied: ProxyMaker) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxied({"default": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(POST.replace(b"Content-Length: 2", b"Content-Length: 200"))
        with anyio.fail_after(WAIT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            assert (head.split()[1], await reader.readexactly(3)) == (b"413", b"big")
        writer.close()
    server.close()


async def test_closing_the_proxy_ends_what_is_under_way(proxied: ProxyMaker, upstream: UpstreamMaker) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + framed(CALL))
        await exchange.wait_for_the_proxy_to_leave()

    async with upstream(answer) as up:
        async with proxied({"default": up.base_url}) as proxy:
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(POST)
            await proxy.wait_until(lambda: any(isinstance(event, ToolCallOpened) for event in proxy.events))
        writer.close()
    assert sum(isinstance(event, GenerationEnded) for event in proxy.events) == 1
