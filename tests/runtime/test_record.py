"""The record of a service that has stopped is read as the service itself would tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.errors import HeadstartError
from headstart.ids import ResourceId, SessionId
from headstart.runtime.record import read_trace
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedServer, ScriptedTool

from .conftest import OpenService, RecordingChannel, call, scope, scripted

pytestmark = pytest.mark.anyio

NOTES = ResourceId("notes")
SCRIPT = ScriptedServer(tools=(ScriptedTool(name="read"),))


async def test_ended_and_open_sessions_are_in_the_record_and_last_is_the_newest(
    open_service: OpenService, tmp_path: Path
) -> None:
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        folder = tmp_path / "state"
        for name in ("one", "two"):
            await service.request(scope(name), NOTES, "tools/call", call("read"), RecordingChannel())
        await service.close_session(SessionId("one"), reason="left")
        ended = await service.trace("one")
    assert ended is not None
    assert ended.wall_offset_s is not None
    assert read_trace(folder, "one") == ended
    newest = read_trace(folder, "last")
    assert newest is not None
    assert newest.session == "two"
    assert read_trace(folder, "nobody") is None


def test_where_no_service_has_been_there_is_no_record(tmp_path: Path) -> None:
    assert read_trace(tmp_path, "last") is None
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_is_told_with_its_path_and_a_cure(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(HeadstartError, match=r"state\.sqlite cannot be read") as caught:
        read_trace(tmp_path, "last")
    assert caught.value.hint
