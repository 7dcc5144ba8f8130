"""Upstreams that are reached through an HTTP proxy."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.proxy.conftest import Exchange, ProxyMaker, RawAnswer, RawClient, UpstreamMaker, server_side

from headstart.config.model import ForwardProxy
from headstart.proxy import ProxyLimits

pytestmark = pytest.mark.anyio

WAIT_S = 10.0
GET = b"GET /v1/models?x=%2F HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"
SECRET = "s3cret"
BASIC = b"proxy-authorization: Basic bWU6czNjcmV0"


@dataclass
class CorporateProxy:
    """A forward proxy that knows CONNECT, or answers what a test tells it."""

    port: int
    heads: list[bytes] = field(default_factory=list[bytes])

    def setting(self, credentials: str | None = f"me:{SECRET}") -> ForwardProxy:
        return ForwardProxy(
            host="127.0.0.1", port=self.port, credentials=credentials, source="environment: HTTPS_PROXY"
        )


Answering = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def corporate_proxy(answering: Answering) -> AsyncGenerator[CorporateProxy]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            proxy.heads.append(head)
            await answering(head, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    proxy = CorporateProxy(server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()
        with anyio.move_on_after(WAIT_S, shield=True):
            await server.wait_closed()


async def tunnel(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Do what a CONNECT asks for."""
    host, _, to_port = head.split(b" ")[1].decode().rpartition(":")
    up_reader, up_writer = await asyncio.open_connection(host, int(to_port))
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    async with asyncio.TaskGroup() as group:
        group.create_task(_pump(reader, up_writer))
        group.create_task(_pump(up_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


def saying(answer: bytes) -> Answering:
    async def say(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    return say


def message(answer: RawAnswer) -> str:
    return json.loads(answer.rest)["error"]["message"]


async def answer_ok(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": fast}) for fast in (False, True)])
async def test_an_https_upstream_is_reached_through_a_tunnel_and_tls_is_spoken_with_it(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, certificate: Path
) -> None:
    trusting = ssl.create_default_context(cafile=certificate)
    async with (
        upstream(answer_ok, tls=server_side(certificate)) as up,
        corporate_proxy(tunnel) as corporate,
        proxied({"default": up.base_url}, via=corporate.setting(), tls=trusting) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert (got.status, got.rest) == (200, b"ok")
    authority = b"127.0.0.1:%d" % up.port
    assert corporate.heads == [
        b"CONNECT " + authority + b" HTTP/1.1\r\nhost: " + authority + b"\r\n" + BASIC + b"\r\n\r\n"
    ]
    assert b"proxy-" not in up.exchanges[0].head.lower()
    assert up.exchanges[0].head.startswith(b"GET /v1/models?x=%2F HTTP/1.1\r\n")


async def test_a_tunnel_is_no_reason_to_believe_a_certificate(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, certificate: Path
) -> None:
    async with (
        upstream(answer_ok, tls=server_side(certificate)) as up,
        corporate_proxy(tunnel) as corporate,
        proxied({"default": up.base_url}, via=corporate.setting()) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert got.status == 502
    assert "CERTIFICATE_VERIFY_FAILED" in message(got)
    assert f"through the proxy http://127.0.0.1:{corporate.port}: " in message(got)


async def test_an_http_upstream_is_asked_for_by_its_whole_url(proxied: ProxyMaker, raw_request: RawClient) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    async with (
        corporate_proxy(saying(ok)) as corporate,
        proxied({"default": "http://models.test:8000/v1"}, via=corporate.setting()) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert (got.status, got.rest) == (200, b"ok")
    (head,) = corporate.heads
    assert head.startswith(b"GET http://models.test:8000/v1/models?x=%2F HTTP/1.1\r\nhost: models.test:8000\r\n")
    assert BASIC in head


async def test_a_client_cannot_speak_to_the_proxy_with_credentials_of_its_own(
    proxied: ProxyMaker, raw_request: RawClient
) -> None:
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with (
        corporate_proxy(saying(ok)) as corporate,
        proxied({"default": "http://models.test/v1"}, via=corporate.setting(None)) as proxy,
    ):
        await raw_request(proxy.port, GET.replace(b"\r\n\r\n", b"\r\nProxy-Authorization: Basic x\r\n\r\n"))
    assert b"proxy-authorization" not in corporate.heads[0]


@pytest.mark.parametrize("url", ["https://models.test/v1", "http://models.test/v1"])
@pytest.mark.parametrize("credentials", [None, f"me:{SECRET}"])
async def test_a_proxy_that_wants_other_credentials_is_told_with_the_cure(
    proxied: ProxyMaker, raw_request: RawClient, caplog: pytest.LogCaptureFixture, url: str, credentials: str | None
) -> None:
    caplog.set_level(logging.DEBUG)
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 0\r\n\r\n"
    async with (
        corporate_proxy(saying(refusal)) as corporate,
        proxied({"default": url}, via=corporate.setting(credentials)) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert got.status == 502
    told = message(got)
    assert f"the upstream 'default' ({url}) cannot be reached through the proxy http://127.0.0.1:" in told
    assert "it answered 407" in told
    assert f"credentials: http://user:password@127.0.0.1:{corporate.port} (environment: HTTPS_PROXY)" in told
    assert SECRET not in told + caplog.text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
            "opens no tunnel to models.test:443: it answered 502",
        ),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n<html>", "opens no tunnel to models.test:443: it answered 403"),
        (b"", "opens no tunnel to models.test:443: the connection was closed"),
        (b"SSH-2.0\r\n", "opens no tunnel to models.test:443: the response is not HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\nnot TLS at all, but long enough", "through the proxy"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 300_000, "opens no tunnel to models.test:443: its head"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_one_clear_error(
    proxied: ProxyMaker, raw_request: RawClient, answer: bytes, why: str
) -> None:
    async with (
        corporate_proxy(saying(answer)) as corporate,
        proxied({"default": "https://models.test/v1"}, via=corporate.setting()) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert got.status == 502
    told = message(got)
    assert why in told
    assert f"through the proxy http://127.0.0.1:{corporate.port}: " in told
    assert 'default = { url = "https://models.test/v1", proxy = "none" } under [upstreams]' in told


async def test_a_proxy_that_is_not_there_or_says_nothing_is_one_clear_error(
    proxied: ProxyMaker, raw_request: RawClient
) -> None:
    async def silent(_head: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    gone = ForwardProxy(host="127.0.0.1", port=1, source="headstart.toml:2: upstreams.default.proxy")
    async with proxied({"default": "https://models.test/v1"}, via=gone) as proxy:
        told = message(await raw_request(proxy.port, GET))
    assert "through the proxy http://127.0.0.1:1: " in told
    assert "correct the proxy (headstart.toml:2: upstreams.default.proxy)" in told
    limits = ProxyLimits(connect_timeout_s=0.2)
    async with (
        corporate_proxy(silent) as corporate,
        proxied({"default": "https://models.test/v1"}, via=corporate.setting(), limits=limits) as proxy,
    ):
        told = message(await raw_request(proxy.port, GET))
    assert "did not answer in time" in told


async def test_an_error_of_an_upstream_behind_a_proxy_stays_the_upstreams(
    proxied: ProxyMaker, raw_request: RawClient
) -> None:
    busy = b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy"
    async with (
        corporate_proxy(saying(busy)) as corporate,
        proxied({"default": "http://models.test/v1"}, via=corporate.setting()) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert (got.status, got.rest) == (503, b"busy")
