"""A lineage's journal on disk: what a restarted service knows of a sandbox.

One line of JSON each. What is written is there when the process is killed; when the machine goes,
what was written until the last `sync`. A line that was cut off was never acted on, and counts as
not written.

Room is made before anything is begun, so that a full disk refuses an operation instead of
cutting its story off: the file is always longer than what is in it, by zeros.
"""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headstart.core.transaction import (
    Abridgement,
    BranchExited,
    BranchForked,
    CheckpointCaptured,
    CheckpointDropRequested,
    CheckpointNotCaptured,
    CheckpointRequested,
    CheckpointUnchanged,
    CommitRequested,
    DiscardRequested,
    ForkFailed,
    ForkRequested,
    GarbageCollected,
    LineageClosed,
    LineageOpened,
    LineageView,
    RollbackRequested,
    RunEnded,
    RunRequested,
    RuntimeRestarted,
    StageFailed,
    StateStaged,
    StateSwapped,
    StateVerified,
    TransactionEvent,
    TransactionInstruction,
)
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId
from headstart.runtime.codec import RecordCodec

__all__ = ["Carried", "ForkedBeside", "JournalTold", "KeptAs", "LineageJournal", "Noted", "read_journal"]

_log = logging.getLogger(__name__)

_ROOM_BYTES = 65_536
"""What one operation may write, with all that comes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAs:
    """A checkpoint was captured; it is noted before the event is.

    Attributes:
        checkpoint: What the lineage calls it.
        kept: What the backend calls it.
        shell: The state of the bash session that is part of it; None if none was.
        kernel: Whether there was a Python kernel, whose state goes with the service.
        whose: For which sandbox the identity was made that it was kept with; None: not known.
    """

    checkpoint: CheckpointId
    kept: CheckpointId
    shell: str | None = None
    kernel: bool = False
    whose: SandboxId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A sandbox carries the identity that was made for another; it is noted before the sandbox is there."""

    sandbox: SandboxId
    whose: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkedBeside:
    """What ran in the canonical sandbox when a branch was forked went on, and may have written since; noted before the fork."""

    branch: SandboxId


Noted = KeptAs | Carried | ForkedBeside
"""What is noted beside the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTold:
    """What a journal tells.

    Attributes:
        events: What has happened.
        kept: How its checkpoints can be found.
        whose: For which other sandbox the identity of one was made.
        beside: Branches that were forked while something ran.
    """

    events: Sequence[TransactionEvent]
    kept: Mapping[CheckpointId, KeptAs]
    whose: Mapping[SandboxId, SandboxId]
    beside: frozenset[SandboxId]


_codec = RecordCodec(
    (
        *(LineageOpened, LineageClosed, RuntimeRestarted, GarbageCollected, RunRequested, RunEnded),
        *(CheckpointRequested, CheckpointCaptured, CheckpointNotCaptured, CheckpointUnchanged, CheckpointDropRequested),
        *(ForkRequested, BranchForked, ForkFailed, BranchExited, DiscardRequested),
        *(CommitRequested, RollbackRequested, StateStaged, StateVerified, StateSwapped, StageFailed),
        *(KeptAs, Carried, ForkedBeside),
    )
)


class LineageJournal:
    """Writes one; made by `begin`, closed with `close`."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._end = 0
        self._abridgement: Abridgement | None = None
        self._is_behind = False

    @classmethod
    def begin(cls, path: Path, events: Sequence[TransactionEvent], noted: Iterable[Noted] = ()) -> LineageJournal:
        """Write a journal that begins with these, in the place of what is there.

        Raises:
            BackendError: There is no room for it.
        """
        beside = path.with_suffix(".new")
        try:
            descriptor = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            journal = cls(descriptor, path)
            try:
                journal.make_room()
                for record in (*noted, *events):
                    journal._write(record)
                os.fsync(descriptor)
                beside.replace(path)
            except BaseException:
                journal.close()
                beside.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise _unwritable(path, error) from error
        return journal

    def make_room(self) -> None:
        """See that what an operation will write has room.

        Raises:
            BackendError: There is none; nothing has been written.
        """
        if self._is_behind:
            hint = "look at the disk; what has happened since is not known to the next service"
            raise BackendError(f"{self._path} could not be written", hint=hint)
        try:
            if os.fstat(self._descriptor).st_size < self._end + _ROOM_BYTES:
                os.posix_fallocate(self._descriptor, self._end, 2 * _ROOM_BYTES)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def note(
        self,
        event: TransactionEvent,
        *,
        before: LineageView,
        after: LineageView,
        instructions: Sequence[TransactionInstruction],
    ) -> None:
        """Write what has to be known of an event, before what it causes is done."""
        if self._abridgement is None:
            self._abridgement = Abridgement(before)
        try:
            for each in self._abridgement.written(event, before=before, after=after, instructions=instructions):
                self._write(each)
        except OSError as error:  # there was room for it, so the disk has failed
            self._is_behind = True
            _log.error("%s cannot be written any more: %s", self._path, error.strerror)

    def note_beside(self, noted: Noted) -> None:
        """Write what has to be known beside the events.

        Raises:
            BackendError: There is no room for it.
        """
        self.make_room()
        try:
            self._write(noted)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def _write(self, record: object) -> None:
        data = (_codec.line(record) + "\n").encode()
        written = 0
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], self._end + written)
        self._end += len(data)

    def sync(self) -> None:
        """Return when what was written is on the disk.

        Raises:
            BackendError: It cannot be written.
        """
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_journal(path: Path) -> JournalTold:
    """Return what a journal tells.

    Raises:
        BackendError: It cannot be read, or says what means nothing.
    """
    try:
        *lines, _ = path.read_bytes().rstrip(b"\0").split(b"\n")
        records = [_codec.decode(json.loads(line)) for line in lines]
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BackendError(f"{path} is damaged: {error}") from error
    kept = {record.checkpoint: record for record in records if isinstance(record, KeptAs)}
    whose = {record.sandbox: record.whose for record in records if isinstance(record, Carried)}
    beside = frozenset(record.branch for record in records if isinstance(record, ForkedBeside))
    events = [cast("TransactionEvent", record) for record in records if not isinstance(record, Noted)]
    return JournalTold(events=events, kept=kept, whose=whose, beside=beside)


def _unwritable(path: Path, error: OSError) -> BackendError:
    hint = "make room on the disk that has the state" if error.errno == errno.ENOSPC else None
    return BackendError(f"{path} cannot be written: {error.strerror}", hint=hint)
