"""A remote server behind the whole service: what it wants of clients reaches them, and theirs reaches it."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from anyio.from_thread import BlockingPortal

from headstart.bench.replay_model.server import serve_on_loopback

from .clients import RawClient, message
from .running import Place, Running, scripted, service

METADATA = "/.well-known/oauth-protected-resource"
TOKEN = "tok-31c7f0aa"


class Locked:
    """An MCP server that wants a token, and tells where tokens are."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        origin = f"http://{headers[b'host'].decode()}"
        if scope["path"] == f"{METADATA}/mcp":
            told = {"resource": f"{origin}/mcp", "authorization_servers": ["https://as.example"]}
            await _answer(send, 200, told)
        elif headers.get(b"authorization") != f"Bearer {TOKEN}".encode():
            challenge = f'Bearer error="invalid_token", resource_metadata="{origin}{METADATA}/mcp"'
            await _answer(send, 401, {"error": "invalid_token"}, www_authenticate=challenge)
        elif scope["method"] != "POST":
            await _answer(send, 405, {})
        else:
            request = json.loads((await receive())["body"])
            result = self._result(request["method"])
            known = "id" in request and {"jsonrpc": "2.0", "id": request["id"], "result": result}
            await _answer(send, 200 if known else 202, known or {})

    def _result(self, method: str) -> dict[str, Any]:
        match method:
            case "initialize":
                info = {"name": "locked", "version": "1"}
                return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            case "tools/list":
                return {"tools": [{"name": "open", "inputSchema": {"type": "object"}}]}
            case _:
                return {"content": [{"type": "text", "text": "come in"}]}


async def _answer(send: Any, status: int, body: dict[str, Any], **headers: str) -> None:
    given = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    encoded = [(name.encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, portal: BlockingPortal) -> Generator[Running]:
    with portal.wrap_async_context_manager(serve_on_loopback(Locked())) as origin:
        place = Place(folder=tmp_path_factory.mktemp("remote")).configure(
            {"far": {"url": f"{origin}/mcp"}, "good": scripted("good")},
            '[service]\nbackend = "process"\n[pool]\nzygotes = false\n',
        )
        with service(place) as started:
            yield started


def test_a_client_is_challenged_finds_the_metadata_and_comes_back_with_a_token(running: Running) -> None:
    url = f"{running.url}/mcp/far"
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    with RawClient(url) as client:
        refused = client.http.post(url, json=message("initialize", hello), headers=client.headers)
        assert refused.status_code == 401
        ours = f"{running.url}{METADATA}/mcp/far"
        assert refused.headers["www-authenticate"] == f'Bearer error="invalid_token", resource_metadata="{ours}"'
        assert httpx2.get(ours, trust_env=False).json() == {
            "resource": url,
            "authorization_servers": ["https://as.example"],
        }
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        client.initialize()
        assert [tool["name"] for tool in client.request("tools/list")["result"]["tools"]] == ["open"]
        assert client.call("open") == ("come in", False)
        client.headers["Authorization"] = "Bearer expired"
        expired = client.http.post(url, json=message("tools/call", {"name": "open"}), headers=client.headers)
        assert expired.status_code == 401
        assert ours in expired.headers["www-authenticate"]


def test_in_the_merged_view_the_others_go_on_and_the_model_is_told_where_to_sign_in(running: Running) -> None:
    with RawClient(f"{running.url}/mcp", headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        client.initialize()
        assert client.call("good__echo", text="x")[0].startswith("x from ")
        told, is_error = client.call("far__open")
    assert is_error
    assert f"far: http://{urlsplit(running.url).hostname}:" in told
    assert "answered 401" in told
    assert "hint: connect to /mcp/far to sign in" in told
