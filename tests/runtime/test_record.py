"""The record of a service that has stopped is read as the service itself would tell it."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from headstart.clock import SystemClock
from headstart.errors import HeadstartError
from headstart.ids import LOCAL_PRINCIPAL, PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import JsonObject
from headstart.runtime.record import forget, read_trace
from headstart.runtime.recovery import cut_off
from headstart.runtime.store import Forgotten
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedCall, ScriptedServer, ScriptedTool

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


@pytest.mark.parametrize(("calls", "ended", "newest"), [("one two one", "", "one"), ("one two", "two", "two")])
async def test_last_is_whose_step_ended_last_while_the_service_runs_and_when_it_has_stopped(
    calls: str, ended: str, newest: str, open_service: OpenService, tmp_path: Path
) -> None:
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        for name in calls.split():
            await service.request(scope(name), NOTES, "tools/call", call("read"), RecordingChannel())
        if ended:
            await service.close_session(SessionId(ended), reason="left")
        while_running = await service.trace("last")
    stopped = read_trace(tmp_path / "state", "last")
    assert while_running is not None
    assert stopped is not None
    assert (while_running.session, stopped.session) == (newest, newest)


@pytest.mark.parametrize("ended", ["killed", "stopped"])
async def test_what_a_service_left_is_forgotten_without_one(
    ended: str, open_service: OpenService, tmp_path: Path
) -> None:
    folder = tmp_path / "left"
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        await service.request(scope("one"), NOTES, "tools/call", call("read"), RecordingChannel())
        await service.close_session(SessionId("one"), reason="left")
        await service.trace("one")  # so that it is in the store
        await _killed(tmp_path / "state", folder, journalled=(b'"e":"Step"',))
    if ended == "stopped":
        folder = tmp_path / "state"
    with pytest.raises(HeadstartError, match="nothing is known of a principal 'lokal'; nothing was erased"):
        await forget(folder, PrincipalId("lokal"), SystemClock())
    assert read_trace(folder, "one") is not None
    erased = await forget(folder, LOCAL_PRINCIPAL, SystemClock())
    assert (erased.traces, erased.journals) == (1, 1)
    assert read_trace(folder, "last") is None
    assert (await forget(folder, None, SystemClock())) == Forgotten(
        servers=0, forms=0, learned=0, traces=0, unreadable_files=0
    )


async def test_a_state_file_that_cannot_be_read_is_forgotten_with_the_rest(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"hunter2 was here" * 100)
    erased = await forget(tmp_path, None, SystemClock())
    assert erased.unreadable_files == 1
    assert not _mentions(tmp_path, b"hunter2")


def _mentions(folder: Path, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in folder.iterdir())


async def _killed(folder: Path, copy: Path, *, journalled: tuple[bytes, ...]) -> None:
    """Leave what a service would that is killed once its journal holds all of these, in a folder of its own."""
    with anyio.fail_after(10):
        while True:
            written = b"".join(path.read_bytes() for path in (folder / "journal").glob("*.jsonl"))
            if all(one in written for one in journalled):
                break
            await anyio.lowlevel.checkpoint()
    shutil.copytree(folder, copy)


async def test_what_a_killed_service_had_open_is_told_from_its_journal_as_cut_off(
    open_service: OpenService, tmp_path: Path
) -> None:
    stuck, while_open, folder = anyio.Event(), None, tmp_path / "left"

    async def hang(_arguments: JsonObject, _call: ScriptedCall) -> JsonObject:
        stuck.set()
        await anyio.sleep_forever()
        raise AssertionError

    script = ScriptedServer(tools=(ScriptedTool(name="read"), ScriptedTool(name="hang", handler=hang)))
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
        anyio.create_task_group() as tasks,
    ):
        for name in ("over", "one"):
            await service.request(scope(name), NOTES, "tools/call", call("read"), RecordingChannel())
        await service.close_session(SessionId("over"), reason="left")
        while_open = await service.trace("one")
        tasks.start_soon(service.request, scope("one"), NOTES, "tools/call", call("hang"), RecordingChannel())
        with anyio.fail_after(10):
            await stuck.wait()
        await service.trace("over")  # so that it is in the store
        await _killed(tmp_path / "state", folder, journalled=(b'"e":"Step"', b'"tool":"hang"'))
        tasks.cancel_scope.cancel()
    assert while_open is not None
    left = read_trace(folder, "last")
    assert left is not None
    assert (left.session, left.cut_off_s is not None) == ("one", True)
    finished, going_on = left.steps
    assert finished == while_open.steps[0]
    (hanging,) = going_on.calls
    assert (hanging.tool, hanging.abandoned, going_on.number) == ("hang", True, 2)
    assert left.summary.calls == 2
    assert sum(seconds for _, seconds in left.summary.parts) == pytest.approx(left.summary.wall_s)
    over = read_trace(folder, "over")
    assert over is not None
    assert over.cut_off_s is None

    (tmp_path / "state").rename(tmp_path / "stopped")
    folder.rename(tmp_path / "state")
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as again,
    ):
        assert await again.trace("last") == left
    assert read_trace(tmp_path / "state", "one") == left, "and it stays in the record"


async def test_a_service_that_stopped_in_good_order_left_nothing_cut_off(
    open_service: OpenService, tmp_path: Path
) -> None:
    async with (
        FakeBackend(programs={"mcp-notes": SCRIPT.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        await service.request(scope("one"), NOTES, "tools/call", call("read"), RecordingChannel())
    assert cut_off(tmp_path / "state" / "journal") == []


def test_a_journal_that_is_damaged_tells_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "b1-0001.jsonl").write_bytes(b'{"e":"Step","nonsense":1}\nno json\n{"e":"CallArr')
    assert cut_off(tmp_path) == []


def test_a_folder_among_the_journals_is_none(tmp_path: Path) -> None:
    (tmp_path / "b1-0001.jsonl").mkdir()
    assert cut_off(tmp_path) == []


def test_where_no_service_has_been_there_is_no_record(tmp_path: Path) -> None:
    assert read_trace(tmp_path, "last") is None
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_record_is_told_with_its_path_and_a_cure(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(HeadstartError, match=r"state\.sqlite cannot be read") as caught:
        read_trace(tmp_path, "last")
    assert caught.value.hint
