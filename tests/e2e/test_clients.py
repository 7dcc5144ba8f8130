"""Clients that leave, and clients that are many: what they began ends, and what they hold is bounded."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from anyio.from_thread import BlockingPortal

from headstart.bench.replay_model.server import serve_on_loopback

from .clients import ERAS, RawClient, message, said, tools
from .running import Place, Running, scripted, service, wait_until

pytestmark = pytest.mark.anyio

SESSIONS = 1_000
SESSION_CAP = 40
GROWTH_MB = 60


class EndlessModel:
    """A model that never stops writing, and notes who leaves."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        chunk = b'data: {"choices":[{"index":0,"delta":{"content":"and "}}]}\n\n'
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, receive, tasks.cancel_scope)
            while True:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                self.writing.set()
                await anyio.sleep(0.01)  # its pace

    async def _watch(self, receive: Any, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()
        scope.cancel()


@pytest.fixture(scope="module")
def endless(portal: BlockingPortal) -> Generator[tuple[EndlessModel, str]]:
    model = EndlessModel()
    with portal.wrap_async_context_manager(serve_on_loopback(model)) as origin:
        yield model, f"{origin}/v1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def running(folder: Path, endless: tuple[EndlessModel, str]) -> Generator[Running]:
    place = Place(folder=folder).configure(
        {"good": scripted("good"), "hangs": scripted("hangs", args=(f"log={folder / 'hangs.log'}",))},
        f"""
[service]
backend = "process"
session_cap = {SESSION_CAP}
[pool]
zygotes = false
[upstreams]
default = "{endless[1]}"
""",
    )
    with service(place) as started:
        yield started


def lines(folder: Path, word: str) -> int:
    log = folder / "hangs.log"
    return log.read_text(encoding="utf-8").split().count(word) if log.exists() else 0


async def more_lines(folder: Path, word: str, *, than: int) -> None:
    """Wait (the caller bounds it) for what a process writes that has no other way to tell."""
    while lines(folder, word) <= than:  # noqa: ASYNC110 see above
        await anyio.sleep(0.01)


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_gives_up_cancels_the_call_at_its_server(running: Running, folder: Path, era: str) -> None:
    waiting, cancelled = lines(folder, "waiting"), lines(folder, "cancelled")
    with anyio.fail_after(20):
        async with tools(f"{running.url}/s/gives-up-{era}/mcp", era=era) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "hangs__act")
                await more_lines(folder, "waiting", than=waiting)
                tasks.cancel_scope.cancel()
            await more_lines(folder, "cancelled", than=cancelled)
            assert said(await client.call_tool("hangs__gave_up", {})) == "1"


async def test_a_connection_that_breaks_cancels_the_call_at_its_server(running: Running, folder: Path) -> None:
    waiting, cancelled = lines(folder, "waiting"), lines(folder, "cancelled")
    headers = {"Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-06-18"}
    call = message("tools/call", {"name": "hangs__act", "arguments": {}})
    with anyio.fail_after(20):
        async with httpx2.AsyncClient(trust_env=False, timeout=20) as http, anyio.create_task_group() as tasks:
            url = f"{running.url}/s/breaks/mcp"
            tasks.start_soon(lambda: http.post(url, json=call, headers=headers))
            await more_lines(folder, "waiting", than=waiting)
            tasks.cancel_scope.cancel()
        await more_lines(folder, "cancelled", than=cancelled)


async def test_a_client_that_leaves_its_stream_ends_it_at_the_model_server(
    running: Running, endless: tuple[EndlessModel, str]
) -> None:
    model, _ = endless
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "go on"}]}
    url = f"{running.url}/s/leaves/v1/chat/completions"
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as http, http.stream("POST", url, json=body) as response:
        assert b"and" in await anext(response.aiter_bytes())
        assert not model.left.is_set()
    assert await anyio.to_thread.run_sync(model.left.wait, 5)
    wait_until(lambda: running.status()["proxy"]["active_streams"] == 0)


def test_a_thousand_abandoned_sessions_leave_no_process_and_hold_no_memory(running: Running) -> None:
    memory_mb = resident_mb(running)
    most = 0
    for number in range(SESSIONS):
        with RawClient(f"{running.url}/mcp") as client:
            client.initialize()
            if number % 100 == 0:
                assert client.call("good__add", text="x") == ("1 notes", False)
                most = max(most, running.status()["runtime"]["sessions"])
    assert most <= SESSION_CAP
    assert running.status()["runtime"]["sessions"] <= SESSION_CAP
    assert running.status()["pool"]["sessions"] <= SESSION_CAP
    wait_until(lambda: len(running.status()["pool"]["sandboxes"]) <= 2, what="abandoned sandboxes are stopped")
    assert sum("scripted.py good" in command for command in running.processes().values()) <= 2
    assert resident_mb(running) - memory_mb < GROWTH_MB


def test_a_server_that_fits_no_budget_is_told_with_both_numbers(place: Place) -> None:
    toml = '[service]\nbackend = "process"\n[pool]\nzygotes = false\nmemory_mb = 1\n'
    place.configure({"good": scripted("good")}, toml)
    with service(place) as running, RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        told, is_error = client.call("good__echo", text="x")
        assert is_error
        assert "good" in told
        assert "1 MB" in told
        assert told.count(" MB") >= 2
        assert "memory_mb" in told


def resident_mb(running: Running) -> float:
    for line in Path(f"/proc/{running.process.pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the service is gone")
