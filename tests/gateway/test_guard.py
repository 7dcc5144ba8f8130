"""Who gets through the port, and who does not."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import anyio
import httpx2
import pytest
from tests.gateway.conftest import served

from headstart.gateway.guard import PortGuard, principal_of_key
from headstart.gateway.wire import send_json
from headstart.ids import LOCAL_PRINCIPAL, PRINCIPAL_SCOPE_KEY

pytestmark = pytest.mark.anyio

Scope = MutableMapping[str, Any]


class Seen:
    """An app that keeps the scopes that reach it."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "http":
            await send_json(send, 200, b"{}")

    @property
    def principals(self) -> list[str]:
        return [scope[PRINCIPAL_SCOPE_KEY] for scope in self.scopes]


def guarded(**options: Any) -> tuple[Seen, PortGuard]:
    seen = Seen()
    return seen, PortGuard(seen, host=options.pop("host", "127.0.0.1"), **options)


async def ask(
    guard: PortGuard, headers: dict[str, str], *, path: str = "/mcp", method: str = "POST"
) -> httpx2.Response:
    transport = httpx2.ASGITransport(app=guard)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
        return await client.request(method, path, headers=headers)


async def upgrade(guard: PortGuard, headers: dict[str, str], *, can_answer: bool = True) -> list[Scope]:
    sent: list[Scope] = []

    async def receive() -> Scope:
        return {"type": "websocket.connect"}

    async def send(message: Scope) -> None:
        sent.append(message)

    scope: Scope = {
        "type": "websocket",
        "path": "/v1/realtime",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "extensions": {"websocket.http.response": {}} if can_answer else {},
    }
    await guard(scope, receive, send)
    return sent


async def test_a_program_on_this_machine_needs_nothing() -> None:
    seen, guard = guarded()
    for host in ("127.0.0.1:8787", "localhost:8787", "LOCALHOST", "[::1]:8787"):
        assert (await ask(guard, {"Host": host})).status_code == 200
    assert seen.principals == [LOCAL_PRINCIPAL] * 4


async def test_a_page_that_rebinds_its_name_to_loopback_is_refused() -> None:
    seen, guard = guarded()
    answer = await ask(guard, {"Host": "evil.example:8787", "Origin": "http://evil.example:8787"})
    assert answer.status_code == 403
    assert answer.json()["error"] == "host not allowed: evil.example:8787"
    assert "allowed_hosts" in answer.json()["hint"]
    assert seen.scopes == []


@pytest.mark.parametrize(
    "host", ["[::1]evil.example", "[::1]:80@evil.example", "127.0.0.1:80@evil.example", "localhost:80:80", "[::1", ""]
)
async def test_a_host_that_only_begins_with_an_allowed_one_is_refused(host: str) -> None:
    seen, guard = guarded()
    assert (await ask(guard, {"Host": host})).status_code == 403
    assert seen.scopes == []


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8787"])
async def test_a_page_of_another_origin_is_refused_even_with_a_simple_request(origin: str) -> None:
    seen, guard = guarded()
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    assert (await ask(guard, headers)).status_code == 403
    assert (await ask(guard, headers, method="GET")).status_code == 403
    assert seen.scopes == []


async def test_an_image_or_link_of_another_site_is_refused_though_it_has_no_origin() -> None:
    seen, guard = guarded()
    assert (await ask(guard, {"Sec-Fetch-Site": "cross-site"}, method="GET")).status_code == 403
    assert (await ask(guard, {"Sec-Fetch-Site": "none"}, method="GET")).status_code == 200
    assert len(seen.scopes) == 1


async def test_a_preflight_of_a_hostile_page_gets_no_permission() -> None:
    _, guard = guarded()
    asks = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await ask(guard, asks, method="OPTIONS")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


async def test_an_allowed_page_gets_its_preflight_and_may_read_the_answer() -> None:
    seen, guard = guarded(allowed_origins=["https://inspector.example"], keys=["k1"])
    origin = {"Origin": "https://inspector.example"}
    asks = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-headstart-key"}
    preflight = await ask(guard, asks, method="OPTIONS")
    assert preflight.status_code == 204
    assert preflight.headers["access-control-allow-headers"] == "x-headstart-key"
    answer = await ask(guard, {**origin, "X-Headstart-Key": "k1"})
    assert answer.headers["access-control-allow-origin"] == "https://inspector.example"
    assert len(seen.scopes) == 1


async def test_the_services_own_page_may_use_it() -> None:
    _, guard = guarded()
    assert (await ask(guard, {"Origin": "http://127.0.0.1:8787"})).status_code == 200


async def test_two_host_headers_are_refused() -> None:
    _, guard = guarded()
    sent: list[Scope] = []

    async def send(message: Scope) -> None:
        sent.append(message)

    async def receive() -> Scope:
        return {"type": "http.request"}

    hosts = [(b"host", b"localhost"), (b"host", b"evil.example")]
    await guard({"type": "http", "method": "GET", "path": "/mcp", "headers": hosts}, receive, send)
    assert sent[0]["status"] == 403


async def test_each_key_is_a_principal_of_its_own_however_it_is_sent() -> None:
    seen, guard = guarded(keys=["k1", "k2"])
    for headers, path in (
        ({"X-Headstart-Key": "k1"}, "/mcp"),
        ({"Authorization": "Bearer k2"}, "/mcp"),
        ({}, "/k/k1/s/run-1/v1/chat/completions"),
    ):
        assert (await ask(guard, headers, path=path)).status_code == 200
    assert seen.principals == [principal_of_key("k1"), principal_of_key("k2"), principal_of_key("k1")]
    assert seen.scopes[2]["path"] == "/s/run-1/v1/chat/completions"
    assert seen.scopes[2]["raw_path"] == b"/s/run-1/v1/chat/completions"


async def test_a_key_is_taken_out_of_the_request_but_other_credentials_stay() -> None:
    seen, guard = guarded(keys=["k1"])
    await ask(guard, {"Authorization": "Bearer k1"})
    await ask(guard, {"X-Headstart-Key": "k1", "Authorization": "Bearer for-the-model"})
    first, second = (dict(scope["headers"]) for scope in seen.scopes)
    assert b"authorization" not in first
    assert second[b"authorization"] == b"Bearer for-the-model"
    assert b"x-headstart-key" not in second


@pytest.mark.parametrize(
    "headers", [{}, {"X-Headstart-Key": "k"}, {"X-Headstart-Key": "k11"}, {"Authorization": "Bearer nö"}]
)
async def test_without_the_right_key_nobody_gets_in(headers: dict[str, str]) -> None:
    seen, guard = guarded(keys=["k1"])
    transport = httpx2.ASGITransport(app=guard)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8787") as client:
        raw = {name.encode(): value.encode() for name, value in headers.items()}
        for path in ("/mcp", "/v1/models", "/k/wrong/mcp"):
            answer = await client.post(path, headers=raw)
            assert answer.status_code == 401
            assert "X-Headstart-Key" in answer.json()["hint"]
    assert seen.scopes == []


async def test_routes_with_their_own_credential_need_no_key() -> None:
    seen, guard = guarded(keys=["k1"], self_checked=("/headstart/",))
    assert (await ask(guard, {}, path="/headstart/health", method="GET")).status_code == 200
    assert (await ask(guard, {}, path="/mcp")).status_code == 401
    assert seen.principals == [LOCAL_PRINCIPAL]


async def test_websockets_are_guarded_alike() -> None:
    seen, guard = guarded(keys=["k1"])
    good = {"Host": "localhost", "X-Headstart-Key": "k1"}
    assert await upgrade(guard, good) == []
    assert len(seen.scopes) == 1
    refused = await upgrade(guard, {"Host": "localhost", "Origin": "http://evil.example", "X-Headstart-Key": "k1"})
    assert [message.get("status") for message in refused] == [403, None]
    closed = await upgrade(guard, {"Host": "localhost"}, can_answer=False)
    assert closed == [{"type": "websocket.close", "code": 1008, "reason": "a Headstart key is needed"}]
    assert len(seen.scopes) == 1


async def test_off_loopback_the_bound_name_is_allowed_and_other_names_are_not() -> None:
    _, guard = guarded(host="10.0.0.5", keys=["k1"], allowed_hosts=["tools.example"])
    key = {"X-Headstart-Key": "k1"}
    assert (await ask(guard, {"Host": "10.0.0.5:8787", **key})).status_code == 200
    assert (await ask(guard, {"Host": "tools.example", **key})).status_code == 200
    assert (await ask(guard, {"Host": "10.0.0.6:8787", **key})).status_code == 403


async def test_a_request_with_two_lengths_is_not_served() -> None:
    """Request smuggling: the server in front must refuse what two readers could read differently."""

    seen, guard = guarded()
    async with served(guard) as url, await anyio.connect_tcp("127.0.0.1", int(url.rpartition(":")[2])) as stream:
        smuggled = b"GET /headstart/stop HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n"
        await stream.send(head % (5 + len(smuggled)) + b"0\r\n\r\n" + smuggled)
        with anyio.fail_after(5):
            answer = await stream.receive()
    assert answer.startswith(b"HTTP/1.1 400")
    assert all(scope["path"] != "/headstart/stop" for scope in seen.scopes)
