"""Bytes through a real server, a real proxy and a real socket on either side."""

import asyncio
import gzip
import zlib

import anyio
import pytest
from tests.proxy.conftest import Exchange, ProxyMaker, RawClient, UpstreamMaker

from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, TextArrived

pytestmark = pytest.mark.anyio

WAIT_S = 10.0
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
END = b"0\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"Host: proxy", b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join((*lines, b"Connection: close", b"", body))


async def answer_nothing(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


async def test_a_request_arrives_byte_for_byte_without_what_is_headstarts(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    body = b'{ "model" :"m",  "unknown": [1.0, 1e3], "messages": [] }\n\xff\x00'
    headers = (
        b"User-Agent: agent/1",
        b"Authorization: Bearer k",
        b"X-Headstart-Session: s1",
        b"X-Headstart-Key: secret",
        b"X-Odd: \xe9",
    )
    async with upstream(answer_nothing) as up, proxied({"default": up.base_url}) as proxy:
        await raw_request(proxy.port, post(body, *headers, path=b"/v1/chat/completions?x=%2F&y"))
        await proxy.ended()
    (exchange,) = up.exchanges
    lines = exchange.head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    assert lines == [
        b"POST /v1/chat/completions?x=%2F&y HTTP/1.1",
        b"host: 127.0.0.1:%d" % up.port,
        b"content-length: %d" % len(body),
        b"user-agent: agent/1",
        b"authorization: Bearer k",
        b"x-odd: \xe9",
    ]
    assert exchange.body == body
    (started,) = [event for event in proxy.events if isinstance(event, GenerationStarted)]
    assert started.session == "s1"


async def test_a_response_arrives_byte_for_byte_with_its_own_fields_only(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(
            b"HTTP/1.1 418 Teapot\r\nX-Request-Id: 7\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 3\r\n\r\n\x00\xff\n"
        )

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, post(b"{}"))
    assert (got.status, got.rest) == (418, b"\x00\xff\n")
    fields = got.head.split(b"\r\n")[1:]
    expected = [b"x-request-id: 7", b"set-cookie: a=1", b"set-cookie: b=2", b"content-length: 3"]
    assert fields == [*expected, b"connection: close"]


async def test_a_chunk_is_forwarded_before_the_next_one_exists(proxied: ProxyMaker, upstream: UpstreamMaker) -> None:
    received = [anyio.Event() for _ in range(3)]

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + b"\r\n")
        for event in received:
            await exchange.send(framed(CHUNK))
            with anyio.fail_after(WAIT_S):
                await event.wait()
        await exchange.send(END)

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post(b"{}"))
        with anyio.fail_after(WAIT_S):
            await reader.readuntil(b"\r\n\r\n")
            for event in received:
                assert await reader.readexactly(len(framed(CHUNK))) == framed(CHUNK)
                event.set()
            assert await reader.read() == END
        writer.close()
        await proxy.ended()
    assert "".join(event.text for event in proxy.events if isinstance(event, TextArrived)) == "hi" * 3


async def test_compressed_streams_pass_compressed_and_are_read(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    encoder = zlib.compressobj(wbits=31)
    pieces = [encoder.compress(CHUNK) + encoder.flush(zlib.Z_SYNC_FLUSH) for _ in range(3)] + [encoder.flush()]

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + b"Content-Encoding: gzip\r\n\r\n" + b"".join(map(framed, pieces)) + END)

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, post(gzip.compress(b'{"model":"m"}'), b"Content-Encoding: gzip"))
        (ended,) = await proxy.ended()
    assert got.body == b"".join(pieces)
    assert got.header(b"content-encoding") == b"gzip"
    assert ended.outcome is GenerationOutcome.COMPLETED
    assert "".join(event.text for event in proxy.events if isinstance(event, TextArrived)) == "hi" * 3
    assert isinstance(proxy.events[0], GenerationStarted)
    assert proxy.events[0].model == "m"


async def test_malformed_events_pass_untouched_and_end_unreadable(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    stream = CHUNK + b"data: {oops\n\n" + CHUNK + b"\xff\xfe\r\r\n"

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + b"\r\n" + framed(stream) + END)

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, post(b"{}"))
        (ended,) = await proxy.ended()
    assert got.body == stream
    assert ended.outcome is GenerationOutcome.UNREADABLE


async def test_a_chunked_request_stays_chunked(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b"3\r\n{ }\r\n2\r\n \n\r\n0\r\n\r\n"
    )
    async with upstream(answer_nothing) as up, proxied({"default": up.base_url}) as proxy:
        await raw_request(proxy.port, request)
    assert up.exchanges[0].body == b"{ } \n"
    assert b"transfer-encoding: chunked" in up.exchanges[0].head


async def test_a_large_upload_streams_and_is_not_held(proxied: ProxyMaker) -> None:
    """The upstream takes nothing at first: the client must come to a stop, not fill the proxy's memory."""
    size, hold, taken = 64 * 1024 * 1024, anyio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        await hold.wait()
        while taken < size:
            taken += len(await reader.read(1 << 20))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxied({"default": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"POST /v1/files HTTP/1.1\r\nHost: p\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
        sent = 0
        with anyio.move_on_after(2):
            while sent < size:
                writer.write(bytes(1 << 20))
                sent += 1 << 20
                await writer.drain()
        stalled_at = proxy.app.statistics().bytes_up
        hold.set()
        with anyio.fail_after(60):
            while sent < size:
                writer.write(bytes(1 << 20))
                sent += 1 << 20
                await writer.drain()
            answer = await reader.read()
        writer.close()
    server.close()
    assert stalled_at < 16 * 1024 * 1024
    assert (taken, answer.endswith(b"ok")) == (size, True)


async def test_a_slow_client_slows_the_upstream_down_and_not_the_reading(
    proxied: ProxyMaker, upstream: UpstreamMaker
) -> None:
    size, sent = 64 * 1024 * 1024, 0

    async def answer(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            await exchange.send(bytes(1 << 20))
            sent += 1 << 20

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 16)
        writer.write(post(b"", path=b"/v1/files"))
        before = -1
        with anyio.fail_after(WAIT_S):
            while sent == 0 or before != sent:
                before = sent
                await anyio.sleep(0.3)
        assert sent < 24 * 1024 * 1024
        with anyio.fail_after(60):
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readexactly(size)) == size
        writer.close()


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("OPTIONS", 204), ("DELETE", 200)])
async def test_other_methods_pass(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, method: str, status: int
) -> None:
    async def answer(exchange: Exchange) -> None:
        length = b"" if status == 204 else b"Content-Length: %d\r\n" % (5 if method == "HEAD" else 0)
        await exchange.send(b"HTTP/1.1 %d X\r\nAllow: GET\r\n" % status + length + b"\r\n")

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        request = f"{method} /v1/models/m HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n".encode()
        got = await raw_request(proxy.port, request)
    assert (got.status, got.rest, got.header(b"allow")) == (status, b"", b"GET")
    assert up.exchanges[0].head.startswith(method.encode())
    assert b"content-length" not in up.exchanges[0].head


async def test_redirects_are_passed_and_not_followed(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, post(b"{}"))
    assert (got.status, got.header(b"location"), len(up.exchanges)) == (307, b"/elsewhere", 1)


async def test_one_connection_serves_several_requests(proxied: ProxyMaker, raw_request: RawClient) -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxied({"default": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}) as proxy:
        for _ in range(5):
            got = await raw_request(proxy.port, b"GET /v1/models HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n")
            assert got.rest == b"ok"
    server.close()
    assert connections == 1


async def test_expect_continue_is_answered_here(proxied: ProxyMaker, upstream: UpstreamMaker) -> None:
    async with upstream(answer_nothing) as up, proxied({"default": up.base_url}) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(
            b"POST /v1/x HTTP/1.1\r\nHost: p\r\nExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
        )
        with anyio.fail_after(WAIT_S):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"ok")
            assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert up.exchanges[0].body == b"ok"
    assert b"expect" not in up.exchanges[0].head


async def test_every_generation_that_started_has_ended(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE_HEAD + b"\r\n" + framed(CHUNK) + END)

    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy, anyio.create_task_group() as group:
        for _ in range(50):
            group.start_soon(raw_request, proxy.port, post(b"{}"))
    started = {event.generation for event in proxy.events if isinstance(event, GenerationStarted)}
    ended = [event.generation for event in proxy.events if isinstance(event, GenerationEnded)]
    assert len(started) == 50
    assert sorted(ended) == sorted(started)
