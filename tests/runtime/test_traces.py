"""Traces of sessions that are open, that have ended, and after a restart."""

from pathlib import Path

import pytest

from headstart.core.events import PrepareForm
from headstart.core.steps import Part
from headstart.ids import ResourceId, SessionId
from headstart.runtime.trace_record import StartsFrom
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedServer, ScriptedTool

from .conftest import OpenService, RecordingChannel, call, scope, scripted

pytestmark = pytest.mark.anyio

NOTES = ResourceId("notes")
SCRIPT = ScriptedServer(tools=(ScriptedTool(name="read"),))


async def test_a_session_can_be_traced_while_open_when_ended_and_after_a_restart(
    open_service: OpenService, tmp_path: Path
) -> None:
    server = scripted("notes", tmp_path)
    async with FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend:
        async with open_service(server, backend=backend) as service:
            for name in ("one", "two"):
                await service.request(scope(name), NOTES, "tools/call", call("read"), RecordingChannel())
            while_open = await service.trace("one")
            newest = await service.trace("last")
            await service.close_session(SessionId("one"), reason="left")
            ended = await service.trace("one")
            await service.request(scope("three"), NOTES, "tools/call", call("read"), RecordingChannel())
            await service.close_session(SessionId("three"), reason="left")
            newest_has_ended = await service.trace("last")
            assert await service.trace("nobody") is None
        async with open_service(server, backend=backend) as service:
            restarted = await service.trace("one")
            still_open_then = await service.trace("two")
    assert while_open is not None
    assert newest is not None
    assert ended is not None
    assert while_open.steps == ended.steps
    assert newest.session == "two"
    assert newest_has_ended is not None
    assert (newest_has_ended.session, newest_has_ended.summary.closed) == ("three", True)
    assert (ended.summary.closed, ended.summary.calls, ended.summary.cold_calls) == (True, 1, 1)
    assert restarted == ended
    assert still_open_then is not None
    step = ended.steps[0]
    assert sum(step.seconds(part) for part in Part) == pytest.approx(step.wall_s)


async def test_a_trace_says_from_what_its_servers_start_and_why(open_service: OpenService, tmp_path: Path) -> None:
    servers = [scripted("notes", tmp_path), scripted("idle", tmp_path)]
    async with FakeBackend(programs={"mcp-notes": SCRIPT.program, "mcp-idle": SCRIPT.program}) as backend:
        async with open_service(*servers, backend=backend) as service:
            await service.request(scope("one"), NOTES, "tools/call", call("read"), RecordingChannel())
            await service.wait_prepared()
            while_open = await service.trace("one")
            await service.close_session(SessionId("one"), reason="left")
            ended = await service.trace("one")
        async with open_service(*servers, backend=backend) as service:
            restarted = await service.trace("one")
    assert while_open is not None
    assert ended is not None
    expected = StartsFrom(server=NOTES, form=PrepareForm.COLD, reason="zygotes are off in [pool]")
    assert while_open.forms == (expected,)
    assert ended.forms == (expected,)
    assert restarted == ended


async def test_forgetting_erases_traces_and_journals(open_service: OpenService, tmp_path: Path) -> None:
    server = scripted("notes", tmp_path)
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend,
        open_service(server, backend=backend) as service,
    ):
        await service.request(scope("one"), NOTES, "tools/call", call("read"), RecordingChannel())
        await service.close_session(SessionId("one"), reason="left")
        erased = await service.forget(None)
        assert await service.trace("one") is None
    assert (erased.traces, erased.journals) == (1, 1)
