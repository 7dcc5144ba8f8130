"""A proxy on a loopback port, and an upstream that does exactly what a test tells it."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headstart.bench.replay_model import serve_on_loopback
from headstart.config.model import ForwardProxy, Upstream
from headstart.core.stream import GenerationEnded, ModelEvent
from headstart.ids import PrincipalId, SequentialIds
from headstart.proxy import ModelProxy, ProxyLimits, open_proxy

WAIT_S = 10.0


@dataclass
class ProxyUnderTest:
    """A proxy that listens, and what it observed."""

    app: ModelProxy
    origin: str
    events: list[ModelEvent]

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(WAIT_S):
            while not condition():  # noqa: ASYNC110 - what is waited for happens in code that knows no test
                await anyio.sleep(0.001)

    async def ended(self, count: int = 1) -> list[GenerationEnded]:
        """Wait until `count` generations have ended; return how."""
        await self.wait_until(lambda: sum(isinstance(event, GenerationEnded) for event in self.events) >= count)
        return [event for event in self.events if isinstance(event, GenerationEnded)]


class ProxyMaker(Protocol):
    def __call__(
        self,
        upstreams: Mapping[str, str],
        *,
        limits: ProxyLimits | None = None,
        via: ForwardProxy | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> AbstractAsyncContextManager[ProxyUnderTest]: ...


@pytest.fixture
def proxied() -> ProxyMaker:
    """`async with proxied({"default": base_url}) as proxy:`."""

    @asynccontextmanager
    async def opened(
        upstreams: Mapping[str, str],
        *,
        limits: ProxyLimits | None = None,
        via: ForwardProxy | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> AsyncGenerator[ProxyUnderTest]:
        events: list[ModelEvent] = []
        async with (
            open_proxy(
                [Upstream(prefix=prefix, base_url=url, proxy=via) for prefix, url in upstreams.items()],
                observe=events.append,
                principal_of=lambda _: PrincipalId("local"),
                ids=SequentialIds(),
                limits=limits,
                tls=tls,
            ) as app,
            serve_on_loopback(app) as origin,
        ):
            yield ProxyUnderTest(app, origin, events)

    return opened


@pytest.fixture(scope="session")
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


@dataclass
class Exchange:
    """One connection at the scripted upstream: what came in, and the way to answer."""

    head: bytes
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    trailers: bytes = b""
    left: anyio.Event = field(default_factory=anyio.Event)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """Cut the connection with a TCP reset."""
        self.writer.transport.abort()

    async def wait_for_the_proxy_to_leave(self) -> None:
        with anyio.fail_after(WAIT_S):
            try:
                while await self.reader.read(65_536):
                    pass
            except ConnectionError:
                pass


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class ScriptedUpstream:
    port: int
    scheme: str = "http"
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    failures: list[BaseException] = field(default_factory=list[BaseException])

    @property
    def base_url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1"


class UpstreamMaker(Protocol):
    def __call__(
        self, script: Script, *, tls: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[ScriptedUpstream]: ...


@pytest.fixture
def upstream() -> UpstreamMaker:
    """`async with upstream(script) as up:`; each request's connection runs `script`, then closes."""

    @asynccontextmanager
    async def opened(script: Script, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[ScriptedUpstream]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    body, trailers = await _read_body(head, reader)
                    exchange = Exchange(head, body, reader, writer, trailers)
                    up.exchanges.append(exchange)
                    await script(exchange)
                    if b"keep-alive: yes" not in head.lower():
                        break
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            except BaseException as exc:
                up.failures.append(exc)
                raise
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        up = ScriptedUpstream(server.sockets[0].getsockname()[1], "https" if tls else "http")
        try:
            yield up
        finally:
            server.close()
            with anyio.move_on_after(WAIT_S, shield=True):
                await server.wait_closed()
        assert not up.failures

    return opened


async def _read_body(head: bytes, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the body and its trailers."""
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return await reader.readexactly(int(line.partition(b":")[2])), b""
        if line == b"transfer-encoding: chunked":
            return await _read_chunks(reader)
    return b"", b""


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    body = trailers = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        trailers += line
    return body, trailers


@dataclass
class RawAnswer:
    """A response as bytes, split at its head's end."""

    head: bytes
    rest: bytes
    cut_off: bool = False

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    def header(self, name: bytes) -> bytes | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name:
                return value.strip()
        return None

    @property
    def body(self) -> bytes:
        """The body without its chunked framing."""
        if self.header(b"transfer-encoding") != b"chunked":
            return self.rest
        body, rest = b"", self.rest
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            if not size or int(size, 16) == 0:
                break
            body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        return body

    @property
    def ended_properly(self) -> bool:
        length = self.header(b"content-length")
        if length is not None:
            return len(self.rest) == int(length)
        return self.rest.endswith(b"0\r\n\r\n")


RawClient = Callable[[int, bytes], Coroutine[Any, Any, RawAnswer]]


@pytest.fixture
def raw_request() -> RawClient:
    """`await raw_request(port, bytes)`: send bytes, read until the server closes."""

    async def request(port: int, data: bytes) -> RawAnswer:
        with anyio.fail_after(WAIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(data)
                answer = b""
                try:
                    while piece := await reader.read(65_536):
                        answer += piece
                except ConnectionError:
                    head, _, rest = answer.partition(b"\r\n\r\n")
                    return RawAnswer(head, rest, cut_off=True)
                head, _, rest = answer.partition(b"\r\n\r\n")
                return RawAnswer(head, rest)
            finally:
                writer.close()

    return request
