"""What is remembered of a hosted sandbox beside its files and its journal: what it was made with, and what ran in it."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from headstart.errors import BackendError
from headstart.ids import SessionId
from headstart.runtime.codec import RecordCodec
from headstart.runtime.kept import SandboxCheckpoint
from headstart.sandbox.options import SandboxOptions

__all__ = [
    "Hibernation",
    "HostedRecord",
    "OfSession",
    "branch_path",
    "read_branches",
    "read_record",
    "remove_branches",
    "write_record",
]

_OF_BRANCHES = "branch-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hibernation:
    """What can be told of a sandbox while it is hibernated, without a look at its files.

    Attributes:
        version: The state's that it was hibernated in.
        checkpoints: What it can go back to.
    """

    version: str | None = None
    checkpoints: tuple[SandboxCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OfSession:
    """Whose a sandbox is that was made for a session: it ends with that.

    Attributes:
        away_s: For how long that may stay away after a restart of the service, until the sandbox ends.
    """

    id: SessionId
    away_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedRecord:
    """A hosted sandbox, or a branch of one, as whoever restarts the service has to know it.

    Attributes:
        id: Its own.
        branch_of: The sandbox that it was forked from; None if it is none.
        name: What its user calls it; None if it has no name.
        created_wall_s: When it was made, seconds since 1970.
        session: The session that it ends with; None: it was made for none.
        ends_after_idle_s: After how long without use it is ended; None: never.
        hibernates_after_idle_s: After how long without use it is hibernated; None: never.
        had_kernel / had_shell: Whether there is a Python kernel or a bash session to be lost.
        shell: The state of a bash session that was put to sleep when its processes ended; None if none was.
        hibernation: None unless it is hibernated.
        boot: Of a branch: the start of the machine with which some of what has happened may go; None: all is on the disk.
    """

    id: str
    options: SandboxOptions
    branch_of: str | None = None
    name: str | None = None
    created_wall_s: float = 0.0
    ends_after_idle_s: float | None = None
    hibernates_after_idle_s: float | None = None
    session: OfSession | None = None
    had_kernel: bool = False
    had_shell: bool = False
    shell: str | None = None
    hibernation: Hibernation | None = None
    boot: str | None = None

    def is_of(self, session: SessionId) -> bool:
        """Whether it was made for this session."""
        return self.session is not None and self.session.id == session


_codec = RecordCodec((HostedRecord,))


def write_record(path: Path, record: HostedRecord) -> None:
    """Write it, whole or not at all.

    Raises:
        BackendError: There is no room for it.
    """
    beside = path.with_suffix(".new")
    try:
        beside.touch(mode=0o600)
        beside.write_text(_codec.line(record), encoding="utf-8", errors="surrogateescape")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise BackendError(f"{path} cannot be written: {error.strerror}") from error


def read_record(path: Path) -> HostedRecord:
    """Read it.

    Raises:
        BackendError: It cannot be read, or means nothing.
    """
    try:
        return cast("HostedRecord", _codec.decode(json.loads(path.read_text(encoding="utf-8"))))
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise BackendError(f"{path} is damaged: {error}") from error


def branch_path(folder: Path, branch: str) -> Path:
    """Return where the record of a branch is, in its origin's folder."""
    return folder / f"{_OF_BRANCHES}{branch}.json"


def read_branches(folder: Path) -> dict[str, HostedRecord]:
    """Return the records of a sandbox's branches, by id.

    Raises:
        BackendError: One cannot be read, or means nothing.
    """
    records = [read_record(path) for path in sorted(folder.glob(f"{_OF_BRANCHES}*.json"))]
    return {record.id: record for record in records}


def remove_branches(folder: Path, *, but: Collection[str]) -> None:
    """Remove the records of branches that have ended, and what was being written of them."""
    paths = {branch_path(folder, branch) for branch in but}
    for path in folder.glob(f"{_OF_BRANCHES}*"):
        if path not in paths:
            path.unlink(missing_ok=True)
