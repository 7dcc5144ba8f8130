"""The journal: nothing lost silently, nothing told that should not be, and the same decisions again."""

import json
from pathlib import Path

import anyio
import pytest

from headstart.config.model import PoolMode, PoolSettings
from headstart.core.actions import ActionKey
from headstart.core.broker import BrokerPolicy
from headstart.core.events import (
    CallArrived,
    HostedMemoryMeasured,
    Instruction,
    PrepareForm,
    ResourceRegistered,
    SandboxExited,
    SandboxStartFailed,
    SetTimer,
    TimerFired,
    ToolProfile,
)
from headstart.core.stream import (
    GenerationEnded,
    GenerationOutcome,
    GenerationStarted,
    TextArrived,
    TextKind,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import LOCAL_PRINCIPAL, CallId, GenerationId, ResourceId, SandboxId, SessionId
from headstart.runtime import journal as journals
from headstart.runtime.journal import (
    Entry,
    Header,
    JournalUnreadable,
    LearnedBefore,
    decode,
    encode,
    encode_redacted,
    open_journal,
    read,
    replay,
)

from .conftest import NOTES, OpenService, RecordingChannel, call, scope, stdio_server

SECRET = "my password is hunter2"

EVENTS: list[Entry] = [
    GenerationStarted(
        at_s=1 / 3,
        generation=GenerationId("gen_1"),
        principal=LOCAL_PRINCIPAL,
        session=SessionId("ses"),
        hints=("user=ann", "x=y"),
        text=SECRET,
        offered_tools=("notes__read",),
        turn=2,
    ),
    TextArrived(at_s=2.5, generation=GenerationId("gen_1"), text=SECRET + " \ud83d \n", kind=TextKind.REASONING),
    ToolCallOpened(at_s=2.6, generation=GenerationId("gen_1"), index=0, tool="notes__read"),
    ToolCallClosed(at_s=2.7, generation=GenerationId("gen_1"), index=0, tool="notes__read", arguments=f'"{SECRET}"'),
    GenerationEnded(at_s=3.0, generation=GenerationId("gen_1"), outcome=GenerationOutcome.CLIENT_LEFT),
    CallArrived(
        at_s=3.0,
        call=CallId("call_1"),
        session=SessionId("ses"),
        resource=ResourceId("notes"),
        tool="read",
        action=ActionKey("ab"),
        read_only=True,
    ),
    ResourceRegistered(
        at_s=0.0,
        principal=LOCAL_PRINCIPAL,
        resource=ResourceId("notes"),
        tools=(ToolProfile(name="read", description="Reads.", argument_names=("a", "b"), read_only=True),),
        form=PrepareForm.ZYGOTE,
    ),
    SandboxStartFailed(at_s=4.0, sandbox=SandboxId("sbx_1"), message=SECRET),
    SandboxExited(at_s=4.0, sandbox=SandboxId("sbx_1"), message=SECRET),
    HostedMemoryMeasured(at_s=4.5, memory_bytes=1_000_000),
    TimerFired(at_s=5.0),
    LearnedBefore(principal=LOCAL_PRINCIPAL, data='{"version": 1}'),
]


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def header(mode: str = "full", boot: str = "b1") -> Header:
    return Header(boot=boot, mode=mode, policy=BrokerPolicy(gamma=3), began_wall_s=1.5, began_s=0.25)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_back_exactly_as_it_was(event: Entry) -> None:
    assert decode(encode(event)) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_digests_tell_what_happened_but_not_what_was_said(event: Entry) -> None:
    line = encode_redacted(event)
    assert b"hunter2" not in line
    assert b"user=ann" not in line
    assert type(decode(line)) is type(event)


@pytest.mark.anyio
async def test_a_journal_is_a_header_and_its_events_in_order(tmp_path: Path) -> None:
    async with open_journal(tmp_path / "journal", header()) as journal:
        for event in EVENTS:
            journal.append(event)
    path = tmp_path / "journal" / "b1-0001.jsonl"
    assert list(read(path)) == [header(), *EVENTS]
    assert path.stat().st_mode & 0o777 == 0o600
    assert (journal.written, journal.dropped) == (len(EVENTS), 0)


@pytest.mark.anyio
async def test_a_journal_in_digests_holds_no_content(tmp_path: Path) -> None:
    async with open_journal(tmp_path, header("digests")) as journal:
        for event in EVENTS:
            journal.append(event)
    written = (tmp_path / "b1-0001.jsonl").read_bytes()
    assert b"hunter2" not in written
    assert b"notes__read" in written


@pytest.mark.anyio
async def test_what_the_queue_cannot_take_is_counted_and_the_gap_is_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MAX_QUEUED", 3)
    async with open_journal(tmp_path, header()) as journal:
        for number in range(5):
            journal.append(TimerFired(at_s=float(number)))
    assert journal.dropped == 2
    with pytest.raises(JournalUnreadable, match=r"b1-0001.jsonl:5: 2 events are missing here"):
        list(read(tmp_path / "b1-0001.jsonl"))


@pytest.mark.anyio
async def test_a_full_disk_costs_events_which_are_counted_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journals, "BATCH_EVERY_S", 0.0)
    (tmp_path / "b1-0001.jsonl").symlink_to("/dev/full")
    async with open_journal(tmp_path, header()) as journal:
        journal.append(TimerFired(at_s=1.0))
        with anyio.fail_after(5):
            while not journal.dropped:
                await anyio.lowlevel.checkpoint()
        journal.append(TimerFired(at_s=2.0))
    assert (journal.written, journal.dropped) == (1, 1)
    assert caplog.text.count("events are dropped until it can. hint: make room in") == 1
    with pytest.raises(JournalUnreadable, match="1 events are missing here"):
        list(read(tmp_path / "b1-0002.jsonl"))


@pytest.mark.anyio
async def test_a_long_journal_goes_on_in_a_new_part_and_old_parts_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "PART_BYTES", 10)
    monkeypatch.setattr(journals, "PARTS_KEPT", 3)
    monkeypatch.setattr(journals, "BATCH_EVERY_S", 0.0)
    async with open_journal(tmp_path, header()) as journal:
        for number in range(5):
            journal.append(TimerFired(at_s=float(number)))
            with anyio.fail_after(5):
                while journal.written <= number:
                    await anyio.lowlevel.checkpoint()
    assert names_in(tmp_path) == [f"b1-000{part}.jsonl" for part in (3, 4, 5)]


def test_the_cut_last_line_of_a_killed_run_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "b1-0001.jsonl"
    path.write_bytes(encode(TimerFired(at_s=1.0)) + b"\n" + encode(TimerFired(at_s=2.0))[:-4])
    assert list(read(path)) == [TimerFired(at_s=1.0)]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "b1-0001.jsonl"
    path.write_bytes(b'{"e":"TimerFired","at_s":1}\n{"e":"NoSuchEvent"}\n')
    with pytest.raises(JournalUnreadable, match=r"b1-0001.jsonl:2: no record is called 'NoSuchEvent'"):
        list(read(path))


@pytest.mark.anyio
async def test_a_journal_of_digests_does_not_pretend_to_replay(tmp_path: Path) -> None:
    async with open_journal(tmp_path, header("digests")) as journal:
        journal.append(TimerFired(at_s=1.0))
    with pytest.raises(JournalUnreadable, match="holds digests") as caught:
        list(replay(tmp_path / "b1-0001.jsonl"))
    assert caught.value.hint == 'set service.journal = "full" in headstart.toml to record runs that replay exactly'


@pytest.mark.anyio
async def test_a_real_run_is_decided_again_to_the_same_instructions(open_service: OpenService, tmp_path: Path) -> None:
    decided: list[list[Instruction]] = []
    pool = PoolSettings(mode=PoolMode.PREDICTIVE, zygotes=False)
    async with open_service(stdio_server("notes.py"), pool=pool, journal="full") as service:
        handle = service.broker.handle

        def noted(event: object) -> list[Instruction]:
            instructions = handle(event)  # pyright: ignore[reportArgumentType]  as it comes
            decided.append(instructions)
            return instructions

        service.broker.handle = noted  # pyright: ignore[reportAttributeAccessIssue]
        await service.catalogue(NOTES, scope())
        generation = GenerationId("gen_1")
        started = GenerationStarted(at_s=0.0, generation=generation, principal=LOCAL_PRINCIPAL, text="read my notes")
        service.observe(started)
        service.observe(ToolCallOpened(at_s=0.0, generation=generation, index=0, tool="notes__read_notes"))
        await service.request(scope(), NOTES, "tools/call", call("read_notes"), RecordingChannel())
        await service.request(scope("two"), NOTES, "tools/call", call("add_note", text="x"), RecordingChannel())
        await service.close_session(scope("two").session, reason="left")
        with anyio.fail_after(10):
            await service.wait_stopped(scope("two").session)
    journal = next((tmp_path / "state" / "journal").glob("*-0001.jsonl"))
    again = list(replay(journal))
    assert again[-len(decided) :] == decided  # before that, servers were registered while the service opened
    assert any(not isinstance(one, SetTimer) for instructions in decided for one in instructions)
    assert json.loads(journal.read_text().splitlines()[0])["journal"]["mode"] == "full"
