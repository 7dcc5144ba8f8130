"""What a lineage is made of: its canonical state, branches, runs, an operation, garbage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from headstart.core.actions import ActionKey, Effect
from headstart.core.transaction.events import LineageId, RequestId, StateVersion
from headstart.core.transaction.stages import BranchState, Stage
from headstart.ids import CheckpointId, SandboxId

__all__ = [
    "Branch",
    "BranchFate",
    "BranchView",
    "Canonical",
    "CheckpointTarget",
    "CommitTarget",
    "Garbage",
    "LineageView",
    "Operation",
    "RollbackTarget",
    "Run",
]


class BranchFate(Enum):
    """How a branch ended."""

    COMMITTED = "was committed"
    DISCARDED = "was discarded"
    CONFLICTED = "was discarded: the canonical state had moved on"
    MISMATCHED = "was discarded: it did not run what the agent asked for"
    DOUBTFUL = "was discarded: a run beside its fork was declared READ and changed the state"
    FAILED = "failed"
    EXITED = "exited"
    LOST = "was lost when the runtime or the sandbox ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """The one state that the lineage's name means."""

    sandbox: SandboxId
    version: StateVersion


@dataclass(slots=True, kw_only=True)
class Branch:
    """A branch that has not ended.

    Attributes:
        fork: The request that wanted it.
        origin: The canonical version that it was forked from, or what a restart has made of that.
        version: What its own runs, and restarts, have made of that.
        ran: What was run in it, in order; a restart, which nobody has asked for, is a None among it.
        doom: Why it will be collected when its fork has ended, if it will.
    """

    id: SandboxId
    fork: RequestId
    origin: StateVersion
    version: StateVersion
    state: BranchState = BranchState.FORKING
    ran: tuple[ActionKey | None, ...] = ()
    doom: BranchFate | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """A run that has not ended.

    Attributes:
        version: The state's version if it changed something.
        beside: Branches that were being forked from its sandbox while it ran.
    """

    request: RequestId
    sandbox: SandboxId
    effect: Effect
    version: StateVersion
    beside: dict[SandboxId, None] = field(default_factory=dict[SandboxId, None])

    @property
    def may_change(self) -> bool:
        """Whether it was allowed to change the state."""
        return self.effect is not Effect.READ


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTarget:
    """The canonical state is being captured."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackTarget:
    """A checkpoint is to become canonical, in a sandbox of its own."""

    checkpoint: CheckpointId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTarget:
    """A branch is to become canonical."""

    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """The operation on the canonical state that is in flight."""

    request: RequestId
    target: CheckpointTarget | RollbackTarget | CommitTarget

    @property
    def name(self) -> str:
        """What it is called in messages."""
        match self.target:
            case CheckpointTarget():
                return f"checkpoint {self.target.checkpoint}"
            case RollbackTarget():
                return f"rollback to {self.target.checkpoint}"
            case CommitTarget():
                return f"commit of {self.target.sandbox}"


@dataclass(slots=True, kw_only=True)
class Garbage:
    """What was told to be collected and is not known to be gone; in the order of telling."""

    sandboxes: dict[SandboxId, None] = field(default_factory=dict[SandboxId, None])
    checkpoints: dict[CheckpointId, None] = field(default_factory=dict[CheckpointId, None])

    def __bool__(self) -> bool:
        return bool(self.sandboxes or self.checkpoints)

    def add(self, sandboxes: Iterable[SandboxId], checkpoints: Iterable[CheckpointId]) -> None:
        """Take in what is to be collected."""
        self.sandboxes.update(dict.fromkeys(sandboxes))
        self.checkpoints.update(dict.fromkeys(checkpoints))

    def holds(self, sandboxes: Iterable[SandboxId], checkpoints: Iterable[CheckpointId]) -> bool:
        """Whether all of these are garbage."""
        return self.sandboxes.keys() >= {*sandboxes} and self.checkpoints.keys() >= {*checkpoints}

    def without(self, other: Garbage) -> Garbage:
        """Return what is not in the other."""
        rest = Garbage()
        rest.add(
            [each for each in self.sandboxes if each not in other.sandboxes],
            [each for each in self.checkpoints if each not in other.checkpoints],
        )
        return rest

    def remove(self, sandboxes: Iterable[SandboxId], checkpoints: Iterable[CheckpointId]) -> None:
        """Let go of what is gone."""
        for sandbox in sandboxes:
            self.sandboxes.pop(sandbox, None)
        for checkpoint in checkpoints:
            self.checkpoints.pop(checkpoint, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchView:
    """One branch as a value."""

    id: SandboxId
    state: BranchState
    origin: StateVersion
    version: StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageView:
    """A lineage at one moment, as values.

    Attributes:
        sandbox: The canonical one; None when it is closed.
        version: The canonical state's.
        settled: No run that may change the canonical state is open, so `version` is what stands there.
        operation: What is in flight, in words; "" if nothing is.
        staged: What is being made to become canonical.
        capturing: The checkpoint that is being made.
    """

    id: LineageId
    sandbox: SandboxId | None
    version: StateVersion
    settled: bool
    stage: Stage
    operation: str
    staged: SandboxId | None
    capturing: CheckpointId | None
    branches: tuple[BranchView, ...]
    checkpoints: tuple[tuple[CheckpointId, StateVersion], ...]
    runs: tuple[RequestId, ...]
    garbage_sandboxes: tuple[SandboxId, ...]
    garbage_checkpoints: tuple[CheckpointId, ...]
