"""What sandboxes are started from, and what a backend can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headstart.ids import SandboxId

__all__ = [
    "Capabilities",
    "Command",
    "Identity",
    "Limits",
    "Mount",
    "MountMode",
    "Network",
    "Preload",
    "Processes",
    "Template",
]


class Network(Enum):
    """What a sandbox can reach."""

    NONE = "none"
    """Its own loopback only."""
    HOST = "host"
    """What the host reaches, except cloud metadata addresses."""


class Processes(Enum):
    """What of a sandbox's processes a checkpoint can hold."""

    NONE = "none"
    KERNELS = "kernels"
    """Programs that fork when they are asked to."""


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
    """What one sandbox carries as its own. Two that have all but `sandbox` in common cannot be told apart inside.

    Attributes:
        sandbox: Its id; no other has it.
        hostname: What `hostname` and `/etc/hostname` say; it leads to its loopback.
        machine_id: What `/etc/machine-id` says: 32 hexadecimal digits, lower case; None: nothing.
        boot_id: What `/proc/sys/kernel/random/boot_id` says: a UUID; None: the machine's own.
        env: Added over the command's environment (secrets of the principal).
    """

    sandbox: SandboxId
    hostname: str = "sandbox"
    machine_id: str | None = None
    boot_id: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])


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
    processes: Processes = Processes.NONE
    roots: bool = False
    """Templates may have a root and a base of their own."""
    pausing: bool = False
    """Sandboxes can be paused and resumed."""
    descriptors: bool = False
    """Commands can be started on given descriptors, and on terminals."""
    identities: bool = False
    """Each sandbox that starts cold, and each fork of one, shows the names that its `Identity` says."""
    durable: bool = False
    """Files can outlive the service, in a `FileStore`."""
    weaker: tuple[str, ...] = ()
    """One line each: what is weaker here than the backend's best, and the cure."""
