"""An upstream behind TLS."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.proxy.conftest import Exchange, ProxyMaker, RawClient, UpstreamMaker

from headstart.bench.replay_model import serve_on_loopback
from headstart.config.model import Upstream
from headstart.core.stream import ModelEvent
from headstart.ids import PrincipalId
from headstart.proxy import open_proxy

pytestmark = pytest.mark.anyio

GET = b"GET /v1/models HTTP/1.1\r\nHost: p\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that only its own issuer vouches for, with its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "upstream.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return path


def server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


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
    upstream: UpstreamMaker, raw_request: RawClient, certificate: Path
) -> None:
    trusting = ssl.create_default_context(cafile=certificate)
    events: list[ModelEvent] = []
    async with upstream(answer, tls=server_side(certificate)) as up:
        configured = [Upstream(prefix="default", base_url=up.base_url)]
        async with (
            open_proxy(configured, observe=events.append, principal_of=lambda _: PrincipalId("p"), tls=trusting) as app,
            serve_on_loopback(app) as origin,
        ):
            with anyio.fail_after(10):
                got = await raw_request(int(origin.rpartition(":")[2]), GET)
    assert (got.status, got.rest) == (200, b"ok")
