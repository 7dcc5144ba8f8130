"""One sandbox's life, as a table.

::

    queued ──admitted──► starting ──ready──► ready ──claimed──► leased
       │                    │  └──────ready, if claimed before────►│
       │dropped             │stop                │stop             │stop
       ▼                    ▼                    ▼                 ▼
      gone ◄──stopped─── stopping ◄──────────────┴─────────────────┘

`starting` may end by itself (start failed), `ready` and `leased` too (exited). Whoever
claims a sandbox that is not ready yet waits for it; the claim decides where it goes when
it becomes ready.

Late events. A stop is an instruction on its way while the sandbox goes on living, so in
`stopping` these are legal and change nothing: it became ready, its start failed, it
exited, it was measured. Only `SandboxStopped` ends it. A measurement can also arrive
after the end (it was taken before). Everything else without a row is a bug of ours and
raises `InvalidTransition` with the story.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headstart.core.bets import Bet, BetId
from headstart.core.events import Cause, PrepareForm, Priority, StopReason
from headstart.errors import InvalidTransition
from headstart.ids import CallId, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["STORY_LINES", "Claim", "Happening", "Sandbox", "SandboxState", "Stake"]

STORY_LINES: Final = 16
"""How much of its past a sandbox remembers."""


class SandboxState(Enum):
    """Where a sandbox is in its life."""

    QUEUED = "queued"
    """Wanted, but it has no start slot or no memory yet; nothing runs."""
    STARTING = "starting"
    READY = "ready"
    """Warm, and nobody's."""
    LEASED = "leased"
    """Warm, and one session's (or, if shared, one principal's)."""
    STOPPING = "stopping"
    GONE = "gone"


class Happening(Enum):
    """What can happen to a sandbox."""

    ADMITTED = "start admitted"
    DROPPED = "dropped from the queue"
    BECAME_READY = "became ready"
    CLAIMED = "claimed"
    START_FAILED = "start failed"
    EXITED = "exited"
    STOP_ASKED = "stop asked"
    STOPPED = "stopped"
    MEASURED = "measured"


_S, _H = SandboxState, Happening

_TABLE: Final[dict[tuple[SandboxState, Happening], SandboxState]] = {
    (_S.QUEUED, _H.ADMITTED): _S.STARTING,
    (_S.QUEUED, _H.DROPPED): _S.GONE,
    (_S.QUEUED, _H.CLAIMED): _S.QUEUED,
    (_S.STARTING, _H.CLAIMED): _S.STARTING,
    (_S.STARTING, _H.BECAME_READY): _S.READY,  # or LEASED, if it was claimed
    (_S.STARTING, _H.START_FAILED): _S.GONE,
    (_S.STARTING, _H.STOP_ASKED): _S.STOPPING,
    (_S.STARTING, _H.MEASURED): _S.STARTING,
    (_S.READY, _H.CLAIMED): _S.LEASED,
    (_S.READY, _H.EXITED): _S.GONE,
    (_S.READY, _H.STOP_ASKED): _S.STOPPING,
    (_S.READY, _H.MEASURED): _S.READY,
    (_S.LEASED, _H.EXITED): _S.GONE,
    (_S.LEASED, _H.STOP_ASKED): _S.STOPPING,
    (_S.LEASED, _H.MEASURED): _S.LEASED,
    (_S.STOPPING, _H.BECAME_READY): _S.STOPPING,
    (_S.STOPPING, _H.START_FAILED): _S.STOPPING,
    (_S.STOPPING, _H.EXITED): _S.STOPPING,
    (_S.STOPPING, _H.MEASURED): _S.STOPPING,
    (_S.STOPPING, _H.STOPPED): _S.GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stake:
    """An admitted bet on one sandbox, not settled yet.

    Attributes:
        id: The bet's own id.
        bet: As it was proposed.
        probability: Calibrated, as priced.
        backer: For whom: a session or a conversation, by id; "" for nobody in particular.
        worth_s: Expected seconds won, net of costs; orders the starts.
        placed_s: When it was placed.
        expires_s: When it is lost; later proposals of the same may move it on.
        cpu_s: CPU-seconds that were reserved for it when it was admitted.
    """

    id: BetId
    bet: Bet
    probability: float
    backer: str
    worth_s: float
    placed_s: float
    expires_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The call that an unclaimed sandbox was claimed for."""

    call: CallId | None
    session: SessionId
    at_s: float


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """What the pool knows of one sandbox.

    Attributes:
        session: Whose identity it carries; None: nobody's in particular.
        owner: The session that claimed it; None while unclaimed, and always if `shared`.
        memory_bytes: What it is charged with: the estimate, then what was measured.
        start_s: What its start took, once it is warm.
        cpu_s: Used so far, as last told.
        cpu_limit_s: What it may use in all while it is only a bet; None: what it needs.
        waiting: Calls to be granted when it becomes ready.
        running: Calls that were granted and have not come back.
        served: Calls that were ever granted.
        stateful_for: Sessions that may have left state in it (non-READ calls).
        idle_since_s: When its last call came back (or when it became ready), if it is idle.
        claim: The first call that claimed it, until that call is granted.
        by_mode: The pool's mode wants it, whether or not a call waits.
        blocked_since_s: When it was first found, queued, that no memory can be freed for it.
        deadline_s: When to look at it again at the latest (the stake's end, say).
    """

    id: SandboxId
    principal: PrincipalId
    resource: ResourceId
    priority: Priority
    cause: Cause
    created_s: float
    memory_bytes: int
    form: PrepareForm = PrepareForm.COLD
    shared: bool = False
    session_specific: bool = False
    session: SessionId | None = None
    owner: SessionId | None = None
    claimed: bool = False
    stake: Stake | None = None
    state: SandboxState = SandboxState.QUEUED
    started_s: float | None = None
    start_s: float | None = None
    cpu_s: float = 0.0
    cpu_limit_s: float | None = None
    idle_since_s: float | None = None
    served: int = 0
    claim: Claim | None = None
    by_mode: bool = False
    blocked_since_s: float | None = None
    deadline_s: float | None = None
    stop_reason: StopReason | None = None
    waiting: dict[CallId, None] = field(default_factory=dict[CallId, None])
    running: dict[CallId, None] = field(default_factory=dict[CallId, None])
    stateful_for: dict[SessionId, None] = field(default_factory=dict[SessionId, None])
    story: deque[str] = field(default_factory=lambda: deque[str](maxlen=STORY_LINES))

    def move(self, happening: Happening, at_s: float, note: str = "") -> SandboxState:
        """Follow the table and return the state before.

        Raises:
            InvalidTransition: The table has no such row.
        """
        before = self.state
        after = _TABLE.get((before, happening))
        if after is None:
            raise InvalidTransition(subject=self.id, state=before.value, event=happening.value, story=tuple(self.story))
        if after is SandboxState.READY and self.claimed:
            after = SandboxState.LEASED
        self.state = after
        if happening is not Happening.MEASURED:
            told = f": {note}" if note else ""
            self.story.append(f"{at_s:.3f} {self.resource} {before.value} → {after.value} ({happening.value}{told})")
        return before

    @property
    def holds_memory(self) -> bool:
        """It is on the machine, or on its way there or away."""
        return self.state not in {SandboxState.QUEUED, SandboxState.GONE}

    @property
    def alive(self) -> bool:
        """It can still serve a call, now or when it is ready."""
        return self.state not in {SandboxState.STOPPING, SandboxState.GONE}

    @property
    def busy(self) -> bool:
        """A call runs in it or waits for it."""
        return bool(self.running or self.waiting)

    @property
    def idle(self) -> bool:
        """Leased, warm and without a call."""
        return self.state is SandboxState.LEASED and not self.busy

    def may_be_claimed_by(self, session: SessionId) -> bool:
        """Whether `session` may claim it while it is unclaimed."""
        return not self.session_specific or self.session == session
