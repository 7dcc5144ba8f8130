"""A server that is part of the service: listed, called, lost and closed like any other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from mcp.shared.exceptions import MCPError

from headstart.backends.process import open_process_backend
from headstart.clock import SystemClock
from headstart.config.model import PoolSettings, ServerSettings, Settings
from headstart.errors import HeadstartError, SandboxLost
from headstart.ids import LOCAL_PRINCIPAL, RandomIds, ResourceId, SessionId
from headstart.runtime.contract import Catalogue, JsonObject
from headstart.runtime.service import Service

from .conftest import NOTES, RecordingChannel, call, scope, stdio_server, text_of

pytestmark = pytest.mark.anyio

DESK = ResourceId("desk")


class Desk:
    """Keeps what it is given, for each session; has what it is told to fail with."""

    def __init__(self) -> None:
        self.kept: dict[SessionId, list[str]] = {}
        self.fails_with: Exception | None = None
        self.closed: list[SessionId] = []
        self.outlived: list[SessionId] = []
        self.begun = anyio.Event()
        self.given_up = anyio.Event()

    @property
    def catalogue(self) -> Catalogue:
        reads = {"readOnlyHint": True, "openWorldHint": False}
        tools: tuple[JsonObject, ...] = (
            {"name": "look", "inputSchema": {"type": "object"}, "annotations": reads},
            {"name": "keep", "inputSchema": {"type": "object"}, "annotations": {"openWorldHint": False}},
        )
        return Catalogue(server=DESK, digest="desk", initialize={"capabilities": {"tools": {}}}, tools=tools)

    async def request(self, session: SessionId, method: str, params: JsonObject | None) -> JsonObject:
        if self.fails_with is not None:
            raise self.fails_with
        assert method == "tools/call"
        assert params is not None
        kept = self.kept.setdefault(session, [])
        if params["name"] == "keep":
            kept.append(params["arguments"]["text"])
        if params["name"] == "wait":
            self.begun.set()
            try:
                await anyio.sleep_forever()
            finally:
                self.given_up.set()
        return {"content": [{"type": "text", "text": " ".join(kept)}]}

    def take_up(self, session: SessionId) -> bool:
        return session in self.outlived

    def close(self, session: SessionId) -> None:
        self.closed.append(session)


@asynccontextmanager
async def open_with(desk: Desk, folder: Path, *servers: ServerSettings) -> AsyncGenerator[Service]:
    settings = Settings(servers=servers, state_dir=folder / "state", pool=PoolSettings(zygotes=False))
    async with (
        open_process_backend(folder / "backend") as backend,
        Service.open(
            settings=settings, backend=backend, clock=SystemClock(), ids=RandomIds(), built_in=desk
        ) as service,
    ):
        yield service


async def ask(service: Service, name: str, tool: str, **arguments: object) -> str:
    return text_of(await service.request(scope(name), DESK, "tools/call", call(tool, **arguments), RecordingChannel()))


async def test_it_is_listed_after_the_configured_servers_and_known_from_the_beginning(tmp_path: Path) -> None:
    async with open_with(Desk(), tmp_path, stdio_server("notes.py")) as service:
        listed = service.servers(LOCAL_PRINCIPAL)
        assert [(entry.name, entry.learned) for entry in listed] == [(NOTES, False), (DESK, True)]
        assert [tool["name"] for tool in (await service.catalogue(DESK, scope())).tools] == ["look", "keep"]
        await service.wait_prepared()
        found = await service.statistics()
        assert found.sandboxes == ()
        (status,) = (each for each in found.servers if each.name == DESK)
        assert (status.built_in, status.reason) == (True, "it is part of the service: nothing is started")


async def test_each_session_is_answered_apart_and_its_steps_are_traced(tmp_path: Path) -> None:
    async with open_with(Desk(), tmp_path) as service:
        assert await ask(service, "one", "keep", text="a") == "a"
        assert await ask(service, "one", "keep", text="b") == "a b"
        assert await ask(service, "other", "look") == ""
        trace = await service.trace("one")
        assert trace is not None
        assert [(each.resource, each.tool) for step in trace.steps for each in step.calls] == [(DESK, "keep")] * 2
        assert trace.forms == ()


async def test_its_errors_are_the_callers(tmp_path: Path) -> None:
    desk = Desk()
    async with open_with(desk, tmp_path) as service:
        for failure in (MCPError(-32602, "no such tool"), HeadstartError("it cannot")):
            desk.fails_with = failure
            with pytest.raises(type(failure)):
                await ask(service, "one", "keep", text="a")
        desk.fails_with = None
        assert await ask(service, "one", "keep", text="a") == "a"


async def test_a_call_that_is_cancelled_is_given_up(tmp_path: Path) -> None:
    desk = Desk()
    async with open_with(desk, tmp_path) as service:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, service, "one", "wait")
                await desk.begun.wait()
                tasks.cancel_scope.cancel()
            await desk.given_up.wait()
        assert await ask(service, "one", "look") == ""


async def test_a_session_that_is_closed_is_closed_there_once(tmp_path: Path) -> None:
    desk = Desk()
    async with open_with(desk, tmp_path) as service:
        await ask(service, "one", "look")
        for _ in range(2):
            await service.close_session(SessionId("one"), reason="test")
        assert desk.closed == ["one"]


async def test_what_was_kept_there_is_told_lost_after_a_restart_once_and_what_was_only_read_is_not(
    tmp_path: Path,
) -> None:
    async with open_with(Desk(), tmp_path) as service:
        await ask(service, "wrote", "keep", text="a")
        await ask(service, "read", "look")
    async with open_with(Desk(), tmp_path) as service:
        assert await ask(service, "read", "look") == ""
        with pytest.raises(SandboxLost):
            await ask(service, "wrote", "look")
        assert await ask(service, "wrote", "look") == ""


async def test_what_it_has_kept_over_a_restart_is_not_told_lost(tmp_path: Path) -> None:
    async with open_with(Desk(), tmp_path) as service:
        await ask(service, "wrote", "keep", text="a")
    desk = Desk()
    desk.outlived.append(SessionId("wrote"))
    desk.kept[SessionId("wrote")] = ["a"]
    async with open_with(desk, tmp_path) as service:
        assert await ask(service, "wrote", "look") == "a"


async def test_a_loss_that_it_has_told_itself_is_not_told_again_after_a_restart(tmp_path: Path) -> None:
    desk = Desk()
    async with open_with(desk, tmp_path) as service:
        await ask(service, "wrote", "keep", text="a")
        desk.fails_with = SandboxLost("it is gone", server=DESK)
        with pytest.raises(SandboxLost):
            await ask(service, "wrote", "look")
    async with open_with(Desk(), tmp_path) as service:
        assert await ask(service, "wrote", "look") == ""
