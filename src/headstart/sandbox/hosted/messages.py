"""What a client and the service that hosts its sandboxes say to each other.

A client asks, numbering what it asks; the service answers each number once, at its end. What
takes a while says in between that it has `Begun`, and `Cancel` ends it early. Content (files)
and stdio travel as descriptors beside a message, never in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from headstart.backends.contract import ExitStatus, FileInfo, Usage
from headstart.ids import CheckpointId
from headstart.runtime.codec import RecordCodec
from headstart.runtime.kept import SandboxCheckpoint
from headstart.sandbox.kernels.result import CellResult, ShellResult
from headstart.sandbox.options import SandboxOptions

__all__ = [
    "Begun",
    "Cancel",
    "Checkpoint",
    "Code",
    "Commit",
    "Content",
    "Create",
    "Done",
    "Drop",
    "Ended",
    "Event",
    "Failed",
    "FileInfos",
    "Fork",
    "Hibernate",
    "HostedEvent",
    "HostedInfo",
    "KeepAlive",
    "Kill",
    "ListFiles",
    "ListSandboxes",
    "LookUp",
    "MakeFolder",
    "Named",
    "Pause",
    "ReadFile",
    "RemoveFile",
    "RenameFile",
    "Resume",
    "Rollback",
    "RunCode",
    "RunInShell",
    "SandboxState",
    "Sandboxes",
    "Signal",
    "SignalProcess",
    "Start",
    "StartOnTerminal",
    "StatFile",
    "Watch",
    "WriteFile",
    "codec",
]


class SandboxState(Enum):
    """What a hosted sandbox does."""

    RUNNING = "running"
    PAUSED = "paused"
    HIBERNATED = "hibernated"
    """Its files are on disk, and nothing of it runs; who uses it wakes it."""
    BROKEN = "broken"
    """It could not be brought back; its files are on disk."""


class Signal(Enum):
    """How a command is told to end."""

    TERMINATE = "terminate"
    INTERRUPT = "interrupt"


class HostedEvent(Enum):
    """What has happened to a hosted sandbox."""

    CREATED = "created"
    CHECKPOINTED = "checkpointed"
    ROLLED_BACK = "rolled back"
    FORKED = "forked"
    COMMITTED = "committed"
    PAUSED = "paused"
    RESUMED = "resumed"
    HIBERNATED = "hibernated"
    WOKEN = "woken"
    BROUGHT_BACK = "brought back"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedInfo:
    """A sandbox, or a branch of one, that lives in the service.

    Attributes:
        id: It stays the same for as long as it lives.
        name: What its user calls it; None if it has no name.
        branch_of: The sandbox that it was forked from; None if it is none.
        version: Its state's.
        created_wall_s: When it was made, seconds since 1970.
        idle_s: How long nobody has used it.
        ends_after_idle_s: After how long of that it is ended; None: never.
        hibernates_after_idle_s: After how long of that it is hibernated; None: never.
        template / network / mounts: What it was made with.
        usage: What it uses now.
        checkpoints: What it can go back to.
        trouble: Why it is broken; "" if it is not.
    """

    id: str
    name: str | None = None
    branch_of: str | None = None
    state: SandboxState = SandboxState.RUNNING
    version: str | None = None
    created_wall_s: float = 0.0
    idle_s: float = 0.0
    ends_after_idle_s: float | None = None
    hibernates_after_idle_s: float | None = None
    template: str = "host"
    network: str = "none"
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    usage: Usage = Usage(memory_bytes=0, cpu_s=0.0, processes=0)  # noqa: RUF009 it is frozen
    checkpoints: tuple[SandboxCheckpoint, ...] = ()
    trouble: str = ""


# ---------------------------------------------------------------- asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """What this number asked for is not wanted any more."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Answered with `Named`."""

    options: SandboxOptions
    name: str | None = None
    ends_after_idle_s: float | None = None
    hibernates_after_idle_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSandboxes:
    """Answered with `Sandboxes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Answered with an `Event` for each that happens, until it is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """Something about one sandbox.

    Attributes:
        sandbox: Its id or name, or the beginning of its id.
    """

    sandbox: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp(_About):
    """Answered with `Sandboxes`, of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepAlive(_About):
    """It is being used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill(_About):
    """End it; of a branch: discard it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(_About):
    """Have it stand still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(_About):
    """Let it go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hibernate(_About):
    """End what runs in it, and keep its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(_About):
    """Answered with the `SandboxCheckpoint`."""

    files_only: bool = False
    durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(_About):
    """Answered with `Named`: the sandbox."""

    checkpoint: CheckpointId
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(_About):
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork(_About):
    """Answered with `Named`: the branch."""

    files_only: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(_About):
    """Of a branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command(_About):
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(_Command):
    """Start a command on the descriptors that come with this: `Begun`, then `Ended`; ended early if cancelled.

    Attributes:
        alone: See `Sandbox.start_on`.
    """

    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOnTerminal(_Command):
    """As `Start`; what shows its terminal comes with `Begun`."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalProcess:
    """Tell the command that this number started to end."""

    number: int
    signal: Signal


@dataclass(frozen=True, slots=True, kw_only=True)
class Code(_About):
    """Code for an interpreter that keeps its state. If two descriptors come with it, what it says goes there."""

    code: str
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCode(Code):
    """Answered with the `CellResult`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInShell(Code):
    """Answered with the `ShellResult`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutFile(_About):
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile(_AboutFile):
    """Answered with `Content`."""

    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFile(_AboutFile):
    """The content comes with it, as a descriptor of a file."""

    mode: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFiles(_AboutFile):
    """Answered with `FileInfos`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatFile(_AboutFile):
    """Answered with `FileInfos`, of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder(_AboutFile):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile(_AboutFile):
    to: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveFile(_AboutFile):
    pass


# ---------------------------------------------------------------- answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It was done, and there is nothing to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """It was not done.

    Attributes:
        kind: The error's class.
        message: What an `OSError` says, or the whole.
        details: Its other attributes, as text or numbers that are written as text.
        held: What a `NotCapturable` names.
    """

    kind: str
    message: str
    hint: str | None = None
    details: Mapping[str, str] = field(default_factory=dict[str, str])
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """What was made.

    Attributes:
        frozen_secrets: Of what was given a fresh identity: see `Branch.frozen_secrets`.
    """

    id: str
    frozen_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandboxes:
    """The oldest first."""

    sandboxes: tuple[HostedInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something has happened.

    Attributes:
        about: What it came with: a checkpoint's or branch's id, or why it has ended.
    """

    event: HostedEvent
    sandbox: str
    at_wall_s: float
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A command runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command has ended."""

    status: ExitStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file's content comes with this, as a descriptor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfos:
    """By name."""

    files: tuple[FileInfo, ...]


codec = RecordCodec(
    (
        *(Cancel, Create, ListSandboxes, Watch, LookUp, KeepAlive, Kill, Pause, Resume, Hibernate),
        *(Checkpoint, Rollback, Drop, Fork, Commit),
        *(Start, StartOnTerminal, SignalProcess, RunCode, RunInShell),
        *(ReadFile, WriteFile, ListFiles, StatFile, MakeFolder, RenameFile, RemoveFile),
        *(Done, Failed, Named, Sandboxes, Event, Begun, Ended, Content, FileInfos),
        *(CellResult, ShellResult, SandboxCheckpoint),
    )
)
"""Writes and reads all of them."""
