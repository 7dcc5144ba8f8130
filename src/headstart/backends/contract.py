"""What a kind of isolation must offer: the seam between the runtime and its backends.

A backend *prepares* a template once (unpacks, mounts, preloads) and then *starts*
sandboxes from it. A failing command is data (`Completed`, `ExitStatus`); a failing
sandbox raises `BackendError`. The conformance suite is `headstart.testing.contract`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from anyio.abc import ByteReceiveStream, ByteSendStream

from headstart.core.forms import PrepareForm
from headstart.errors import ConfigError
from headstart.ids import CheckpointId, SandboxId

__all__ = [
    "Backend",
    "ByteStreams",
    "Capabilities",
    "Capture",
    "Checkpoint",
    "Command",
    "Completed",
    "ExitStatus",
    "FileInfo",
    "FileKind",
    "FileStore",
    "FileStores",
    "Files",
    "Identity",
    "Leftovers",
    "Limits",
    "Mount",
    "MountMode",
    "Network",
    "Preload",
    "Prepared",
    "Process",
    "RunningSandbox",
    "Template",
    "TerminalProcess",
    "TerminalSize",
    "Usage",
]

_MOST_CHARACTERS = 65_535


class Network(Enum):
    """What a sandbox can reach."""

    NONE = "none"
    """Its own loopback only."""
    HOST = "host"
    """What the host reaches, except cloud metadata addresses."""


class MountMode(Enum):
    """How a host path shows inside."""

    READ_ONLY = "ro"
    READ_WRITE = "rw"
    """Writes reach the host."""
    OVERLAY = "overlay"
    """Writable, but writes stay in the sandbox and go with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that a sandbox sees, at the same path unless `target` says otherwise."""

    source: Path
    target: Path
    mode: MountMode = MountMode.READ_ONLY

    @property
    def reaches_out(self) -> bool:
        """Whether more than reading goes through it: writes that reach the host, or a socket that somebody listens on."""
        return self.mode is MountMode.READ_WRITE or self.source.is_socket()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use; None where the host's own limit is enough."""

    memory_bytes: int | None = 2_000_000_000
    cpu_cores: float | None = None
    pids: int | None = 512
    scratch_bytes: int | None = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program to run. `env` is the whole environment, nothing is inherited from the service."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """How a zygote of a Python program is made.

    Attributes:
        interpreter: The program's own Python (its venv's), absolute.
        modules: What a cold start had imported when it was ready, in import order.
        entry: The script to run, or `-m module`.
        args: What follows the entry on its command line.
        options: The interpreter's own options (`-u`, `-X utf8`).
        cwd: Where its launcher changes to before it starts the program, if it does (`uv --directory`).
        advance: Run the program's own code, too, up to the moment when it makes its event loop.
    """

    interpreter: str
    modules: tuple[str, ...]
    entry: tuple[str, ...]
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    cwd: str | None = None
    advance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What sandboxes are started from.

    Attributes:
        name: For people, messages and paths; not unique.
        command: The entry command (`attach` runs it).
        private_home: The home directory inside; it is private and starts empty, unless there is a base.
        preload: If given, prepare a zygote; else every start is cold.
        root: A folder of the host that a sandbox sees in place of the host's system folders; None: the host's.
        base: What `RunningSandbox.save_base` has made: what the private folders of every sandbox begin with.
    """

    name: str
    command: Command
    mounts: tuple[Mount, ...] = ()
    network: Network = Network.NONE
    limits: Limits = Limits()
    private_home: str = "/home/sandbox"
    preload: Preload | None = None
    root: Path | None = None
    base: Path | None = None

    @property
    def reaches_out(self) -> bool:
        """Whether its sandboxes can do anything that is seen outside, or stays when they are gone."""
        return self.network is not Network.NONE or any(mount.reaches_out for mount in self.mounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What one sandbox carries as its own."""

    sandbox: SandboxId
    hostname: str = "sandbox"
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    """Added over the command's environment (secrets of the principal)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do, and what it cannot protect against."""

    isolation: str
    """One line for people: "namespaces, id-mapped root, seccomp" or "none"."""
    zygotes: bool = False
    network: frozenset[Network] = frozenset({Network.HOST})
    limits: bool = False
    private_folders: bool = False
    """Home, /tmp and /var/tmp are each sandbox's own, at the same paths in all, and begin empty."""
    layers: bool = False
    """Files of sandboxes that start cold can be checkpointed and forked."""
    roots: bool = False
    """Templates may have a root and a base of their own."""
    pausing: bool = False
    """Sandboxes can be paused and resumed."""
    descriptors: bool = False
    """Commands can be started on given descriptors, and on terminals."""
    durable: bool = False
    """Files can outlive the service, in a `FileStore`."""
    weaker: tuple[str, ...] = ()
    """One line each: what is weaker here than the backend's best, and the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: an exit code, or the signal that killed it."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command's end and its output (each at most 1 MiB here; more is cut and said so)."""

    status: ExitStatus
    stdout: bytes
    stderr: bytes
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a sandbox has used: PSS or its cgroup's charge (never a sum of RSS), and CPU time."""

    memory_bytes: int
    cpu_s: float
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What is still there of a backend after `aclose`; all zero unless something is wrong."""

    processes: int = 0
    mounts: int = 0
    cgroups: int = 0
    directories: int = 0


class Process(Protocol):
    """A command that was started."""

    async def wait(self) -> ExitStatus:
        """Return when the command has ended. Cancelling leaves it running."""
        ...

    async def terminate(self) -> None:
        """Send SIGTERM to the command; harmless when it has ended."""
        ...

    async def interrupt(self) -> None:
        """Send SIGINT to the command's process group, as Ctrl-C does; harmless when it has ended.

        It arrives before any command begins that is started in the sandbox later.
        """
        ...


class ByteStreams(Process, Protocol):
    """A command with its stdio, as raw pipes."""

    @property
    def stdin(self) -> ByteSendStream: ...
    @property
    def stdout(self) -> ByteReceiveStream: ...
    @property
    def stderr(self) -> ByteReceiveStream: ...
    @property
    def forced_by(self) -> int | None:
        """The signal that it took to end the command once it was detached; None: its closed stdin was enough."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    """In characters.

    Raises:
        ConfigError: No terminal can have it.
    """

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        if not (0 <= self.rows <= _MOST_CHARACTERS and 0 <= self.columns <= _MOST_CHARACTERS):
            hint = f"say whole numbers from 0 to {_MOST_CHARACTERS}"
            raise ConfigError(f"{self.rows} by {self.columns} is no terminal's", where="size", hint=hint)


class TerminalProcess(Process, Protocol):
    """A command on a terminal of its own."""

    @property
    def descriptor(self) -> int:
        """The terminal's other side: what is written there was typed, what is read there is shown.

        It is closed when the command's block is left.
        """
        ...


class FileKind(Enum):
    """What is at a path; a link is itself."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    """A device, FIFO or socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Something in a sandbox's file tree.

    Attributes:
        name: The last part of its path.
        mode: Its permission bits.
        modified_s: When its content was changed last, seconds since 1970.
    """

    name: str
    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    modified_s: float


class Files(Protocol):
    """A sandbox's files, as its own user can reach them.

    Paths are the sandbox's; a relative one begins at its home. Content does not pass through
    the event loop. Every method raises, besides what it names:

    - `OSError` (`FileNotFoundError`, `PermissionError`, …, with the path), as a local call would,
    - `BackendError` if the sandbox is gone.
    """

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """Return a file's content.

        Raises:
            OSError: `EFBIG` if it is larger than `limit_bytes`; `EINVAL` if it is a device, FIFO or socket,
                or made up by the kernel (`/proc`).
        """
        ...

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a file, at once: whoever reads it meanwhile sees the old content or the new, whole.

        Missing folders are made. A file that is there keeps its mode, unless another is given (its permission bits);
        of a link, the target is written.
        Its folder must be writable, and a mount of a single file cannot be written so. If it fails or is
        cancelled, the file is what it was.

        Raises:
            OSError: `EINVAL` if a device, FIFO or socket is there.
        """
        ...

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return what is in a folder, by name."""
        ...

    async def stat(self, path: str) -> FileInfo:
        """Tell what is at a path."""
        ...

    async def make_folder(self, path: str) -> None:
        """Make a folder and those above it; one that is there is fine."""
        ...

    async def rename(self, path: str, to: str) -> None:
        """Give something another path, in place of what is there (unless that is a folder with content)."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, a link or an empty folder."""
        ...


class Capture(Enum):
    """How a checkpoint came about."""

    UNCHANGED = "unchanged"
    """Nothing was written since the last one; it costs nothing."""
    SEALED = "sealed"
    """The layer that was written to changes no more; the sandbox goes on in a new one."""
    COPIED = "copied"
    """What was written was copied, because something that runs may go on writing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A sandbox's files as they were, for as long as it or a fork of it lives.

    Attributes:
        left_out: What ran and is no part of it, for people: `python3 (41)`.
    """

    id: CheckpointId
    capture: Capture
    left_out: tuple[str, ...] = ()


class Prepared(Protocol):
    """A template made ready to start from. Owned by the backend; closed with `aclose`."""

    @property
    def template(self) -> Template: ...
    @property
    def form(self) -> PrepareForm: ...

    @property
    def preload_cpu_s(self) -> float:
        """CPU-seconds that preparing took (0 for cold)."""
        ...

    async def usage(self) -> Usage:
        """What the prepared form itself holds (the zygote's own memory; zero for cold)."""
        ...

    async def aclose(self) -> None:
        """Let go of it. Sandboxes that were started from it live on."""
        ...


class RunningSandbox(Protocol):
    """One sandbox. Owned by one task; everyone else holds its id."""

    @property
    def id(self) -> SandboxId: ...
    @property
    def files(self) -> Files: ...

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end. Cancelling kills it and what it started.

        Raises:
            TimeoutError: `timeout_s` passed; the command was killed.
            BackendError: The sandbox failed (it is gone, or could not start the command).
        """
        ...

    def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        """Start a command and yield its stdio, for output of any size and for talking with it.

        Who does not read its output holds it up. On leaving, which another task may do, it is killed with all
        that it started, unless it has ended; what it left running then goes on.

        Args:
            command: What is run.
            descriptors: What it gets as its 3, 4, …; they stay open here. A backend may be unable to.

        Raises:
            BackendError: The sandbox failed (it is gone, or could not start the command), or takes no descriptors.
        """
        ...

    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:
        """As `start`, but the command's 0, 1, 2, … are given; they stay open here.

        Raises:
            BackendError: As `start`, or this backend cannot (`Capabilities.descriptors`).
        """
        ...

    def start_on_terminal(self, command: Command, size: TerminalSize) -> AbstractAsyncContextManager[TerminalProcess]:
        """As `start`, on a terminal that is the sandbox's own and the command's controlling one.

        Raises:
            BackendError: As `start_on`.
        """
        ...

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        """Start the template's entry command (once per sandbox) and yield its stdio.

        On leaving: stdin is closed, then the command gets SIGTERM, then SIGKILL, each
        after a bounded wait. A backend that isolates need not wait for a command whose
        template does not reach out: nobody could see what it still does.

        Args:
            descriptors: What the command gets as its 3, 4, …; they stay open here. For cold
                sandboxes of backends with `Capabilities.zygotes` only.

        Raises:
            BackendError: It was started before, or this sandbox takes no descriptors.
        """
        ...

    async def raise_priority(self) -> None:
        """From now on somebody waits for it: give it its full share of the CPU."""
        ...

    async def checkpoint(self, *, files_only: bool = False) -> Checkpoint:
        """Keep the state as it is now. Once begun it comes to its end, also if cancelled.

        Files that are being written (`Files.write`) are waited for; commands wait until it is done.

        Args:
            files_only: Leave out what runs; it goes on.

        Raises:
            NotCapturable: Something runs that a checkpoint cannot hold; it goes on.
            BackendError: The sandbox is gone, or this one has no layers (`Capabilities.layers`).
        """
        ...

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        """Start another sandbox that begins with a checkpoint of this one, of one that it was forked from, or of a fork.

        Neither sees what the other does. To go back is to go on in a fork.

        Raises:
            BackendError: There is no such checkpoint (any more), or it could not be started.
        """
        ...

    async def forget(self, checkpoint: Checkpoint) -> None:
        """Let go of a checkpoint; forks of it go on. One that is not there is fine."""
        ...

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        """Copy its private folders, as they are, into an empty folder of the host, for templates to begin with.

        Those are the home, /tmp and /var/tmp; mounts in them are left out. What was copied when it fails is left there.

        Raises:
            NotCapturable: Something runs in it.
            BackendError: It is larger than `most_bytes`, or cannot be copied; or the backend cannot (`Capabilities.roots`).
        """
        ...

    @property
    def paused(self) -> bool: ...

    async def pause(self) -> None:
        """Have everything in it stand still, and return when it does. Idempotent. Once begun it comes to its end.

        It keeps its memory and uses no CPU; output stops, and goes on when it is resumed. What is being begun (a
        command, a file that is written) is waited for. From then on, whatever would need it to move is refused with
        `SandboxPaused`: `run`, `start`, `attach`, files, `checkpoint`, `fork`. `usage` and `aclose` work. A command
        whose time is up (`timeout_s` is the caller's time, paused or not), or that is let go of, is killed at the
        latest when the sandbox is resumed.

        Raises:
            BackendError: It does not stand still, and goes on; it is gone; or the backend cannot
                (`Capabilities.pausing`).
        """
        ...

    async def resume(self) -> None:
        """Let it go on where it was. Idempotent. What was stopped inside before it was paused stays so.

        Raises:
            BackendError: It is gone.
        """
        ...

    async def usage(self) -> Usage: ...

    async def wait_lost(self) -> None:
        """Return when the sandbox is gone, whoever ended it."""
        ...

    async def aclose(self) -> None:
        """Kill everything in it, paused or not, and remove it. Idempotent; completes under cancellation."""
        ...


class FileStore(Protocol):
    """A lineage's files, on disk: they outlive the service; what runs on them ends with it.

    A sandbox of a store is as any other, but its `aclose` removes its files, too, and its forks live in the same
    store. At any moment every process may be killed, and nothing that was written is lost; when the machine
    goes, what was written until the last `flush` is there.
    """

    @property
    def name(self) -> str: ...

    @property
    def sandboxes(self) -> Sequence[SandboxId]:
        """Whose files are there, whether they run or not."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """What is kept; a sandbox of the store can be forked at each."""
        ...

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        """Start a sandbox: a new one, with no files yet, or one that the store knows, with its files as they were.

        Raises:
            BackendError: It runs already; its files were made for a template with other private folders;
                it could not be started. Its files are what they were.
        """
        ...

    async def stop(self, sandbox: SandboxId) -> None:
        """End a sandbox and keep its files; `start` goes on with them. One that does not run is fine."""
        ...

    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        """End and delete everything else: what a crash has left, say."""
        ...

    async def flush(self) -> None:
        """Return when what was written until now is on the disk.

        Raises:
            BackendError: It cannot be written.
        """
        ...

    async def aclose(self) -> None:
        """End what runs, and keep the files. Idempotent; completes under cancellation."""
        ...

    async def remove(self) -> None:
        """End what runs, and delete everything. Idempotent; completes under cancellation."""
        ...


class FileStores(Protocol):
    """The stores of a backend, by name. A name is a file's: letters, digits, `.`, `_`, `-`."""

    async def names(self) -> Sequence[str]:
        """List those that there are, open or not."""
        ...

    async def open(self, name: str, *, limits: Limits) -> FileStore:
        """Open what an earlier service has left, or make it. What it may hold is `limits.scratch_bytes`, when made.

        Raises:
            BackendError: Somebody has it open; it was damaged; it cannot be made
                (without `Capabilities.durable`, never).
        """
        ...

    async def remove(self, name: str) -> None:
        """Delete one that is not open, damaged or not. One that is not there is fine.

        Raises:
            BackendError: It is open.
        """
        ...


class Backend(Protocol):
    """One kind of isolation; entered with `async with`, and everything in it ends with it."""

    @property
    def name(self) -> str: ...
    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def stores(self) -> FileStores: ...

    async def prepare(self, template: Template) -> Prepared:
        """Make a template ready.

        Raises:
            BackendError: It cannot be (a mount's source is missing, the preload crashed).
        """
        ...

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        """Start a sandbox; `background` gives it less CPU until `raise_priority`."""
        ...

    async def leftovers(self) -> Leftovers:
        """Count what is there of this backend's own."""
        ...
