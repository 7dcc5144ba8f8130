"""What is there now, as frozen values for `status` and tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headstart.backends.contract import Leftovers
from headstart.core.events import PrepareForm
from headstart.ids import PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["SandboxStatus", "ServerStatus", "Statistics", "ZygoteStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """A sandbox, starting, live or stopping.

    Attributes:
        because: Why it was started, for people.
        stands_still: A bet that has used the CPU that it may.
    """

    id: SandboxId
    server: ResourceId
    principal: PrincipalId
    sessions: tuple[SessionId, ...]
    because: str
    ready: bool
    memory_bytes: int
    cpu_s: float
    stands_still: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ZygoteStatus:
    """A preloaded process that sandboxes are forked from; its memory counts too."""

    server: ResourceId
    principal: PrincipalId
    memory_bytes: int
    preload_cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """A configured server, from what it starts and why; for one principal, since nobody shares a zygote."""

    name: ResourceId
    principal: PrincipalId
    remote: bool
    built_in: bool
    form: PrepareForm
    reason: str
    last_failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """The service at one moment.

    Attributes:
        forms_undecided: Servers whose form or zygote is still being made.
        events / events_broken: Handled by the broker, and those that it could not handle.
        journal_dropped: Events that the journal's writer could not keep up with.
        leftovers: Of the backend, now.
        state_moved_aside: Where an unreadable state file has gone, if that happened.
        state_writes_failed: Times the state file could not be written (a full disk, say).
    """

    sessions: int
    remote_connections: int
    sandboxes: tuple[SandboxStatus, ...]
    zygotes: tuple[ZygoteStatus, ...]
    servers: tuple[ServerStatus, ...]
    forms_undecided: int
    events: int
    events_broken: int
    journal_dropped: int
    leftovers: Leftovers
    state_moved_aside: Path | None
    state_writes_failed: int
