"""Every event, one JSON object per line, written before it is handled.

A run of the service is one journal of one or more parts (`<boot>-0001.jsonl`, …). Each part
begins with a header that holds what the broker was made from, so that `replay` makes the
same broker and gets the same instructions.

Two modes. `full` holds everything and replays exactly. `digests` (the default) replaces
what people and models wrote (request text, output text, arguments, client ids, servers'
last words) by a digest and a length; it tells what happened when, to which server, and can
be read back, but decisions that were made *from* the text cannot be made again without
it: exact replay is promised for `full` alone.

What came of the events is in it as well: finished steps, preparations and summaries, which
cannot be made again from digests, and at the very end that the run has ended. So the traces
of a run that was killed can still be told (`runtime.recovery`); a replay passes over them.

`append` never blocks and never touches the file: a queue takes the event, a writer task
empties it in a thread, a while later: whoever waits for what the event decides comes first.
The thread lets go of the interpreter every few lines, or a stream's next token would wait
for a whole batch. The queue is bounded; what it cannot take is counted, and a line in the
journal says where and how many.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast, get_args

import anyio
import anyio.to_thread

from headstart.core import events, stream
from headstart.core.broker import Broker, BrokerPolicy
from headstart.core.events import Event, Instruction
from headstart.core.steps import Preparation, SessionSummary, Step
from headstart.errors import HeadstartError
from headstart.ids import IdSource, PrincipalId
from headstart.runtime.codec import RecordCodec
from headstart.runtime.state_files import unusable
from headstart.runtime.tasks import open_tasks

__all__ = [
    "BootIds",
    "Header",
    "Journal",
    "JournalUnreadable",
    "decode",
    "decode_header",
    "encode",
    "encode_redacted",
    "erase_parts",
    "open_journal",
    "read",
    "replay",
]

MAX_QUEUED = 100_000
BATCH_EVERY_S = 0.05
LINES_AT_ONCE = 32
PART_BYTES = 64_000_000
PARTS_KEPT = 8

_HEADER_FIELD = "journal"

_SECRET_FIELDS: dict[type, tuple[str, ...]] = {
    stream.GenerationStarted: ("text", "hints"),
    stream.TextArrived: ("text",),
    stream.ToolCallArgumentsArrived: ("text",),
    stream.ToolCallClosed: ("arguments",),
    events.SandboxStartFailed: ("message",),
    events.SandboxExited: ("message",),
}

_log = logging.getLogger(__name__)


class JournalUnreadable(HeadstartError):
    """A journal cannot be read or replayed; the message says where and why."""


class BootIds:
    """Ids that say which run of the service made them: `sbx_3f9a_1`, `sbx_3f9a_2`, …"""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._count = 0

    def new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._boot}_{self._count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedBefore:
    """What the broker was given of a principal, learned in earlier runs."""

    principal: PrincipalId
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgot:
    """What the broker had learned of a principal was erased."""

    principal: PrincipalId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The run was stopped in good order, and all its traces are in the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a run's broker was made from.

    Attributes:
        boot: Distinguishes this run's ids.
        mode: `full` or `digests`.
        began_wall_s / began_s: The same moment on the wall clock and on the events' clock.
        part: 1, 2, …
    """

    boot: str
    mode: str
    policy: BrokerPolicy
    began_wall_s: float
    began_s: float
    part: int = 1


Outcome = Step | Preparation | SessionSummary | RunEnded
"""What came of a run's events."""
Entry = Event | LearnedBefore | Forgot | Outcome
"""All that went into the broker, and what came out in the end."""

_HEADER = RecordCodec([Header])


def encode(event: Entry) -> bytes:
    """Return the event as one line, without its newline."""
    return _ENTRIES.line(event).encode("ascii")


def encode_redacted(event: Entry) -> bytes:
    """Return the line of the event with what people, models and servers wrote replaced by digest and length."""
    return _ENTRIES.line(event, hiding=True).encode("ascii")


def decode(line: bytes) -> Entry:
    """Return the event that `encode` wrote.

    Raises:
        ValueError: It is none.
    """
    fields: object = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not an event: no JSON object")  # noqa: TRY004 one kind of error for one kind of fault
    return cast("Entry", _ENTRIES.decode(cast("dict[str, Any]", fields)))


def decode_header(line: bytes) -> Header:
    """Return the header in a part's first line.

    Raises:
        ValueError, KeyError: There is none.
    """
    return cast("Header", _HEADER.decode(cast("dict[str, Any]", json.loads(line))[_HEADER_FIELD]))


class Journal:
    """The journal of this run.

    Attributes:
        dropped: Events that the queue, or the disk, could not take.
        written: Events that reached the file.
    """

    def __init__(self, folder: Path, header: Header) -> None:
        self._folder = folder
        self._header = header
        self._queue: deque[Entry] = deque()
        self._wake = anyio.Event()
        self._closed = anyio.Event()
        self._file: IO[bytes] | None = None
        self._untold_drops = 0
        self._failing = False
        self.dropped = 0
        self.written = 0

    def append(self, event: Entry) -> None:
        """Queue an event; never blocks, never raises."""
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            self._untold_drops += 1
            return
        self._queue.append(event)
        if not self._wake.is_set():
            self._wake.set()

    async def run(self) -> None:
        """Write until `close` was called and the queue is empty; cancelled, it writes what it has."""
        try:
            while self._queue or not self._closed.is_set():
                await self._wake.wait()
                with anyio.move_on_after(BATCH_EVERY_S):
                    await self._closed.wait()
                self._wake = anyio.Event()
                await self._write_queued()
        finally:
            with anyio.CancelScope(shield=True):
                await self._write_queued()
                await anyio.to_thread.run_sync(self._close_file)

    async def _write_queued(self) -> None:
        batch, self._queue = self._queue, deque()
        drops, self._untold_drops = self._untold_drops, 0
        if batch or drops:
            await anyio.to_thread.run_sync(self._write_or_drop, batch, drops)

    async def erase(self) -> int:
        """Erase all journals, this run's so far too; returns how many parts there were.

        What follows goes into a new part, which cannot be replayed: its beginning is gone.
        """
        await self._write_queued()
        return await anyio.to_thread.run_sync(self._erase)

    def close(self) -> None:
        self._closed.set()
        self._wake.set()

    # ------------------------------------------------------------ in the writer's thread

    def _write_or_drop(self, batch: deque[Entry], drops: int) -> None:
        """Write; what the disk does not take (it may be full) is dropped and counted, for the service goes on."""
        queued, written = len(batch), self.written
        try:
            self._write(batch, drops)
        except OSError as exc:
            lost = queued - (self.written - written)
            self.dropped += lost
            self._untold_drops += lost + drops
            self._leave_part()
            if not self._failing:
                told = "the journal cannot be written (%s); events are dropped until it can. hint: make room in %s"
                _log.error(told, exc.strerror, self._folder)
            self._failing = True
        else:
            if self._failing:
                _log.info("the journal is written again; %d events were dropped", self.dropped)
            self._failing = False

    def _write(self, batch: deque[Entry], drops: int) -> None:
        write = encode if self._header.mode == "full" else encode_redacted
        file = self._open_part()
        while batch:
            lines = [write(batch.popleft()) for _ in range(min(len(batch), LINES_AT_ONCE))]
            file.write(b"\n".join(lines) + b"\n")
            file.flush()
            self.written += len(lines)
        if drops:
            file.write(_line({"dropped": drops}) + b"\n")
            file.flush()

    def _open_part(self) -> IO[bytes]:
        if self._file is not None and self._file.tell() < PART_BYTES:
            return self._file
        if self._file is not None:
            self._file.close()
            self._header = dataclasses.replace(self._header, part=self._header.part + 1)
        path = self._folder / f"{self._header.boot}-{self._header.part:04}.jsonl"
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        self._file.write(_line({_HEADER_FIELD: _HEADER.encode(self._header)}) + b"\n")
        self._remove_oldest()
        return self._file

    def _leave_part(self) -> None:
        """Go on in another part; what is still unwritten of this one is given up."""
        if self._file is not None:
            self._close_file()
            self._header = dataclasses.replace(self._header, part=self._header.part + 1)

    def _erase(self) -> int:
        self._leave_part()
        return erase_parts(self._folder)

    def _remove_oldest(self) -> None:
        parts = sorted(self._folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        for path in parts[:-PARTS_KEPT]:
            path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # every batch was flushed; what could not be is counted already
                self._file.close()
            self._file = None


def erase_parts(folder: Path) -> int:
    """Erase the journals in a folder; returns how many parts there were."""
    parts = list(folder.glob("*.jsonl"))
    for path in parts:
        path.unlink(missing_ok=True)
    return len(parts)


@asynccontextmanager
async def open_journal(folder: Path, header: Header) -> AsyncGenerator[Journal]:
    """Keep a journal while the context is open; on leaving, what was queued is written.

    Raises:
        ConfigError: The folder cannot be made.
    """
    try:
        await anyio.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as exc:
        raise unusable(folder, exc) from exc
    journal = Journal(folder, header)
    async with open_tasks() as tasks:
        tasks.start_soon(journal.run, name="journal")
        try:
            yield journal
        finally:
            journal.close()


def read(path: Path) -> Iterator[Header | Entry]:
    """Yield the header and the events of one part.

    Raises:
        JournalUnreadable: A line is no record (the last line of a killed run may be cut; it is left out).
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _record(line)
            except ValueError as exc:
                raise JournalUnreadable(f"{path}:{number}: {exc}") from exc


def replay(path: Path) -> Iterator[list[Instruction]]:
    """Decide a journalled run again, from its first part on; yields each event's instructions.

    Raises:
        JournalUnreadable: It holds digests only, or events are missing.
    """
    header: Header | None = None
    broker: Broker | None = None
    while path.exists():
        for record in read(path):
            if isinstance(record, Header):
                header = record
                broker = broker or _broker_for(record, path)
            elif broker is not None and not isinstance(record, Outcome):
                yield _decide(broker, record)
        if header is None:
            return
        path = path.with_name(f"{header.boot}-{header.part + 1:04}.jsonl")


def _decide(broker: Broker, entry: Event | LearnedBefore | Forgot) -> list[Instruction]:
    match entry:
        case LearnedBefore():
            broker.import_learned(entry.principal, json.loads(entry.data))
        case Forgot():
            broker.forget(entry.principal)
        case _:
            return broker.handle(entry)
    return []


def _broker_for(header: Header, path: Path) -> Broker:
    if header.mode != "full":
        raise JournalUnreadable(
            f"{path} holds digests, so its decisions cannot be made again",
            hint='set service.journal = "full" in headstart.toml to record runs that replay exactly',
        )
    if header.part != 1:
        raise JournalUnreadable(f"{path} is part {header.part}; a replay begins with part 1")
    ids: IdSource = BootIds(header.boot)
    return Broker(header.policy, ids)


def _record(line: bytes) -> Header | Entry:
    fields: object = json.loads(line)
    if isinstance(fields, dict):
        told = cast("dict[str, Any]", fields)
        if _HEADER_FIELD in told:
            return cast("Header", _HEADER.decode(told[_HEADER_FIELD]))
        if "dropped" in told:
            raise ValueError(f"{told['dropped']} events are missing here: the writer or the disk could not take them")
    return decode(line)


def _line(fields: object) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _digested(value: object) -> Any:
    if isinstance(value, tuple):
        return tuple(_digested(one) for one in cast("tuple[object, ...]", value))
    text = str(value)
    if not text:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"#{digest}:{len(text)}"


_ENTRIES = RecordCodec(get_args(Entry), secret=_SECRET_FIELDS, hide=_digested)
