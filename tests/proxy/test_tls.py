"""An upstream behind TLS."""

import ssl
from pathlib import Path

import pytest
from tests.proxy.conftest import Exchange, ProxyMaker, RawClient, UpstreamMaker, server_side

pytestmark = pytest.mark.anyio

GET = b"GET /v1/models HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"


async def answer(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def test_a_certificate_that_nobody_vouches_for_is_refused(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, certificate: Path
) -> None:
    async with upstream(answer, tls=server_side(certificate)) as up, proxied({"default": up.base_url}) as proxy:
        got = await raw_request(proxy.port, GET)
    assert got.status == 502
    assert b"CERTIFICATE_VERIFY_FAILED" in got.rest
    assert up.exchanges == []


async def test_requests_pass_over_tls_to_an_upstream_that_is_trusted(
    proxied: ProxyMaker, upstream: UpstreamMaker, raw_request: RawClient, certificate: Path
) -> None:
    trusting = ssl.create_default_context(cafile=certificate)
    async with (
        upstream(answer, tls=server_side(certificate)) as up,
        proxied({"default": up.base_url}, tls=trusting) as proxy,
    ):
        got = await raw_request(proxy.port, GET)
    assert (got.status, got.rest) == (200, b"ok")
