"""What clients send that is malformed, endless, or meant to be read in two ways."""

import asyncio

import anyio
import pytest
from tests.proxy.conftest import Exchange, ProxyMaker, RawClient, UpstreamMaker

from headstart.proxy import port

pytestmark = pytest.mark.anyio

WAIT_S = 10.0
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: p\r\nConnection: close\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ONE_CHUNK = b"4\r\nabcd\r\n0\r\n\r\n"


async def answer_ok(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + ONE_CHUNK,
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + ONE_CHUNK,
        HEAD + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        HEAD + b"Content-Length: 4, 4\r\n\r\nabcd",
        HEAD + b"Content-Length: +4\r\n\r\nabcd",
        HEAD + b"Content-Length : 4\r\n\r\nabcd",
        HEAD + b"X: a\r\n Content-Length: 4\r\n\r\n",
        HEAD + b"X: a\nContent-Length: 0\r\n\r\n",
        HEAD + b"X: a\rContent-Length: 4\r\n\r\nabcd",
        HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n" + ONE_CHUNK,
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n" + ONE_CHUNK,
        HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + ONE_CHUNK,
        b"CONNECT evil:443 HTTP/1.1\r\nHost: p\r\n\r\n",
    ],
)
async def test_a_request_that_two_parsers_could_read_in_two_ways_reaches_no_upstream(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, request_bytes: bytes
) -> None:
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, request_bytes)
    assert got.status == 400
    assert up.exchanges == []


@pytest.mark.parametrize(
    "coding", [b"Transfer-Encoding: gzip, chunked\r\n", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n"]
)
async def test_a_transfer_coding_that_is_not_undone_here_is_refused(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, coding: bytes
) -> None:
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, HEAD + coding + b"\r\n" + ONE_CHUNK)
    assert (got.status, b"transfer_coding" in got.rest) == (501, True)
    assert up.exchanges == []


@pytest.mark.parametrize("size", [b"-4", b"0x4", b"4 ", b"fffffffffffffffff", b"4;x\n"])
async def test_a_chunk_whose_size_could_be_read_in_two_ways_ends_the_request(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, size: bytes
) -> None:
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, CHUNKED + size + b"\r\nabcd\r\n0\r\n\r\n")
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 0)
    assert got.status == 400
    assert up.exchanges == []


async def test_trailers_of_a_request_never_count_as_its_fields(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    trailers = b"Host: evil\r\nX-Headstart-Session: other\r\nAuthorization: Bearer other\r\nX-Checksum: 7\r\n"
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        await raw_request(proxy.port, CHUNKED + b"4\r\nabcd\r\n0\r\n" + trailers + b"\r\n")
    (exchange,) = up.exchanges
    assert b"evil" not in exchange.head + exchange.trailers
    assert b"other" not in exchange.head + exchange.trailers
    assert b"x-checksum" not in exchange.head
    assert exchange.trailers == b"x-checksum: 7\r\n"


async def test_trailers_of_a_response_arrive_behind_its_last_chunk(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(
            b"HTTP/1.1 200 OK\r\nTrailer: Server-Timing\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"
        )
        await exchange.send(b"0\r\nServer-Timing: total;dur=7\r\nSet-Cookie: a=b\r\n\r\n")

    asks = HEAD.replace(b"Connection: close", b"Connection: close, TE\r\nTE: trailers") + b"Content-Length: 2\r\n\r\n{}"
    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, asks)
        await proxy.ended()
    assert b"te: trailers\r\nconnection: te\r\n" in up.exchanges[0].head
    assert got.header(b"trailer") == b"Server-Timing"
    assert got.rest == b"2\r\nok\r\n0\r\nServer-Timing: total;dur=7\r\n\r\n"


async def test_a_connection_goes_on_after_a_response_with_trailers(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: 1\r\n\r\n")

    first = b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\n"
    async with upstream(answer) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, first + first.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert got.rest.count(b"0\r\nX-T: 1\r\n\r\n") == 2
    assert got.rest.count(b"HTTP/1.1 200 OK") == 1  # the first one's head is apart


@pytest.mark.parametrize("endless", [b"x: " + b"y" * 1_000 + b"\r\n", b"y" * 1_000], ids=["fields", "one value"])
async def test_a_head_without_end_is_refused(proxied: ProxyMaker, endless: bytes) -> None:
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        answer = await _send_until_refused(proxy.port, HEAD + b"x: ", endless)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_trailers_without_end_close_the_connection(proxied: ProxyMaker, upstream: UpstreamMaker) -> None:
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        answer = await _send_until_refused(proxy.port, CHUNKED + b"4\r\nabcd\r\n0\r\nx: ", b"y" * 1_000)
        await proxy.wait_until(lambda: proxy.app.statistics().active_streams == 0)
    assert answer == b""


async def _send_until_refused(to_port: int, beginning: bytes, endless: bytes) -> bytes:
    with anyio.fail_after(WAIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", to_port)
        writer.write(beginning)
        answer = asyncio.create_task(reader.read())
        try:
            while not answer.done():
                writer.write(endless)
                await writer.drain()
                await asyncio.sleep(0)
        except ConnectionError:
            pass
        finally:
            writer.close()
        try:
            return await answer
        except ConnectionError:
            return b""


@pytest.mark.parametrize("part", [b"", b"POST /v1/chat"])
async def test_a_head_that_does_not_come_is_not_waited_for_for_ever(
    proxied: ProxyMaker, raw_request: RawClient, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(port, "HEAD_WITHIN_S", 0.05)
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        got = await raw_request(proxy.port, part)
    assert got.head.startswith(b"HTTP/1.1 408 ") if part else got.head == b""


async def test_a_second_head_on_a_kept_connection_is_bounded_too(
    proxied: ProxyMaker, raw_request: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "HEAD_WITHIN_S", 0.2)
    async with proxied({"default": "http://127.0.0.1:1/v1"}) as proxy:
        got = await raw_request(proxy.port, b"GET /v1/models HTTP/1.1\r\nHost: p\r\n\r\nGET /v1/mod")
    assert got.status == 502
    assert b"HTTP/1.1 408 " in got.rest


async def test_a_body_that_comes_with_a_request_for_another_protocol_is_refused_and_not_lost(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient
) -> None:
    """`curl --http2 -d …` sends this; the parser gives no body behind such a head."""
    asks = HEAD.replace(b"Connection: close", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c")
    async with upstream(answer_ok) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, asks + b"Content-Length: 2\r\n\r\n{}")
    assert (got.status, b"without Upgrade" in got.rest) == (426, True)
    assert up.exchanges == []
