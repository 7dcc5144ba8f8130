"""What happened, and what to do: the core's whole vocabulary.

Events are in the past tense and carry `at_s`, seconds on the service's monotonic clock.
Instructions are imperative. The same events in the same order give the same
instructions; nothing else goes in. (`core/stream.py` has the model's events.)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headstart.core.actions import ActionKey
from headstart.core.bets import BetKind, PredictorName
from headstart.core.forms import PrepareForm
from headstart.core.stream import ModelEvent
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = [
    "CallAbandoned",
    "CallArrived",
    "CallReturned",
    "Cause",
    "DrainRequested",
    "Event",
    "GrantLease",
    "HostedMemoryMeasured",
    "Instruction",
    "LeaseRefusal",
    "LimitCpu",
    "PrepareForm",
    "Priority",
    "RaisePriority",
    "RefuseLease",
    "ResourceRegistered",
    "SandboxBecameReady",
    "SandboxExited",
    "SandboxMeasured",
    "SandboxStartFailed",
    "SandboxStopped",
    "SessionClosed",
    "SessionOpened",
    "SetTimer",
    "StartSandbox",
    "StopReason",
    "StopSandbox",
    "TimerFired",
    "ToolProfile",
]


class Priority(Enum):
    """Who gets the next start slot; a lower value goes first."""

    CLAIMED = 0
    """An agent is waiting."""
    CONFIGURED = 1
    """The pool's mode asks for it (eager, reserved), or its call is being written."""
    PREDICTED = 2
    """A bet."""


class StopReason(Enum):
    """Why a sandbox is stopped."""

    SESSION_CLOSED = "session closed"
    EXPIRED = "nobody came for it"
    EVICTED = "its memory was needed"
    IDLE = "idle longer than it was worth"
    DRAINING = "the service is stopping"
    UNWANTED = "its session left before it was ready"


class LeaseRefusal(Enum):
    """Why a call cannot have a sandbox."""

    START_FAILED = "start failed"
    BACKING_OFF = "backing off after failures"
    NO_MEMORY = "the memory budget leaves no room"
    STATE_LOST = "the sandbox that held this session's state is gone"
    DRAINING = "the service is stopping"
    UNKNOWN_RESOURCE = "no such server"
    SESSION_CLOSED = "its session is not open"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProfile:
    """A tool, as far as routers and joins need to know it."""

    name: str
    description: str = ""
    argument_names: tuple[str, ...] = ()
    read_only: bool = False
    """READ by the effect rule: calling it leaves no state behind in its sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRegistered:
    """A server exists, or what is known of it has changed.

    Attributes:
        shared: One sandbox serves all sessions of the principal.
        session_specific: Its launch spec holds something of one session's own, so it is
            prepared for that session only.
        remote: Nothing to start or keep, also where it is part of the service: calls pass straight through, leases
            are free.
        looked_for: Texts may point to it. Not to what nothing is prepared for: its words would only compete with
            those of others.
        start_s / start_cpu_s / memory_bytes: Estimates for one start in `form`.
        keywords: The operator's own, beside what the tools' texts give.
    """

    at_s: float
    principal: PrincipalId
    resource: ResourceId
    tools: tuple[ToolProfile, ...] = ()
    keywords: tuple[str, ...] = ()
    description: str = ""
    shared: bool = False
    session_specific: bool = False
    remote: bool = False
    looked_for: bool = True
    form: PrepareForm = PrepareForm.COLD
    start_s: float = 1.0
    start_cpu_s: float = 1.0
    memory_bytes: int = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOpened:
    """A tool client is there (its first request, or a restart that remembers it).

    Attributes:
        resources: The servers that this client can reach (all of `/mcp`, one of `/mcp/<server>`).
        lost: Servers whose sandboxes held state of this session and are gone since a restart.
    """

    at_s: float
    session: SessionId
    principal: PrincipalId
    resources: tuple[ResourceId, ...]
    lost: tuple[ResourceId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionClosed:
    at_s: float
    session: SessionId
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallArrived:
    """A tool client asks for something that needs the server's sandbox."""

    at_s: float
    call: CallId
    session: SessionId
    resource: ResourceId
    tool: str
    """"" for requests that are not `tools/call`."""
    action: ActionKey
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReturned:
    """The observation left the gateway.

    Attributes:
        sent_s: When the request had been written to the server.
        answered_s: When the server's answer had been read.
    """

    at_s: float
    call: CallId
    sent_s: float
    answered_s: float
    is_error: bool = False
    result_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAbandoned:
    """The client went away or cancelled before the observation left."""

    at_s: float
    call: CallId


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxBecameReady:
    """A start finished: handshake, lists and warm-up call are behind it."""

    at_s: float
    sandbox: SandboxId
    start_s: float
    cpu_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStartFailed:
    at_s: float
    sandbox: SandboxId
    message: str
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxExited:
    """A sandbox that was ready died of itself."""

    at_s: float
    sandbox: SandboxId
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStopped:
    """A stop that was asked for is complete; nothing of it is left."""

    at_s: float
    sandbox: SandboxId
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxMeasured:
    at_s: float
    sandbox: SandboxId
    memory_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedMemoryMeasured:
    """What sandboxes use that live in the service, about which nothing is decided here."""

    at_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The time that the last `SetTimer` named has come."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    """The service is to stop: refuse new leases, stop everything."""

    at_s: float


Event = (
    ModelEvent
    | ResourceRegistered
    | SessionOpened
    | SessionClosed
    | CallArrived
    | CallReturned
    | CallAbandoned
    | SandboxBecameReady
    | SandboxStartFailed
    | SandboxExited
    | SandboxStopped
    | SandboxMeasured
    | HostedMemoryMeasured
    | TimerFired
    | DrainRequested
)

# ---------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why a sandbox is started, for the trace."""

    kind: BetKind | None = None
    """None: not a bet (claimed, or the mode's own)."""
    predictor: PredictorName | None = None
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSandbox:
    """Start a sandbox of `resource`; answer with SandboxBecameReady or SandboxStartFailed.

    The core makes the id, so that a replay makes the same one.

    Attributes:
        session: For whom its identity is made; None: not yet anybody's.
        cpu_limit_s: As `LimitCpu` says, from the beginning.
    """

    sandbox: SandboxId
    principal: PrincipalId
    resource: ResourceId
    session: SessionId | None
    priority: Priority
    cause: Cause
    cpu_limit_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RaisePriority:
    """A start under way is now waited for: give it the machine."""

    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitCpu:
    """Have a sandbox stand still before it has used more CPU-seconds than this, all in all.

    Ask for more with `SandboxMeasured`, when it nears its limit and while it stands still.
    None: it may use what it needs.
    """

    sandbox: SandboxId
    cpu_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StopSandbox:
    """End a sandbox, starting or ready; answer with SandboxStopped."""

    sandbox: SandboxId
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantLease:
    """Send the call to this sandbox (None: a remote or built-in server, nothing to start)."""

    call: CallId
    sandbox: SandboxId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseLease:
    """Answer the call with an error; it was never sent."""

    call: CallId
    refusal: LeaseRefusal
    message: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Send TimerFired at this time; replaces the timer before it."""

    at_s: float


Instruction = StartSandbox | RaisePriority | LimitCpu | StopSandbox | GrantLease | RefuseLease | SetTimer
