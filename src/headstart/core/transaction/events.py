"""What happens to a lineage: requests, and how the acts that they caused ended.

Whoever sends an event names everything new in it, for the core makes no ids: the sandbox that
a fork or a rollback will make, the checkpoint, the version that a run leaves behind. So the
journal knows a thing's name before the thing exists, and after a crash nothing lies about
that has no name.

Each event is on disk before it is handled, and what it causes is done after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from headstart.core.actions import ActionKey, Effect
from headstart.ids import CheckpointId, SandboxId, StateVersion

__all__ = [
    "BranchExited",
    "BranchForked",
    "CheckpointCaptured",
    "CheckpointDropRequested",
    "CheckpointNotCaptured",
    "CheckpointRequested",
    "CheckpointUnchanged",
    "CommitRequested",
    "DiscardRequested",
    "ForkFailed",
    "ForkRequested",
    "GarbageCollected",
    "LineageClosed",
    "LineageId",
    "LineageOpened",
    "RequestId",
    "RollbackRequested",
    "RunEnded",
    "RunRequested",
    "RuntimeRestarted",
    "StageFailed",
    "StateStaged",
    "StateSwapped",
    "StateVerified",
    "StateVersion",
    "TransactionEvent",
    "TransactionRequest",
]

LineageId = NewType("LineageId", str)
"""What an agent or a client calls its sandbox, whichever sandbox is canonical at the moment."""

RequestId = NewType("RequestId", str)
"""One request to a lineage; what it caused and how it was answered carry it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    at_s: float
    lineage: LineageId


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutRequest(_Event):
    request: RequestId


# ---------------------------------------------------------------- the lineage itself


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageOpened(_Event):
    """A sandbox was started; it is the canonical one of a new lineage."""

    sandbox: SandboxId
    version: StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageClosed(_Event):
    """It is not wanted any more, or its canonical sandbox is gone; all that belongs to it is garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeRestarted(_Event):
    """The runtime was killed and is back: what it was doing is not going on any more.

    Attributes:
        version: The canonical state's new version, if the crash took something of it (processes
            and what they held in memory); None if the state is whole.
        branches: Those that are still there, each with its new version; all others are lost.
    """

    version: StateVersion | None = None
    branches: tuple[tuple[SandboxId, StateVersion], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollected(_Event):
    """These do not exist on the machine any more."""

    sandboxes: tuple[SandboxId, ...] = ()
    checkpoints: tuple[CheckpointId, ...] = ()


# ---------------------------------------------------------------- runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequested(_AboutRequest):
    """Something is to be run.

    Attributes:
        branch: Where; None: in the canonical sandbox, whichever that is by then.
        effect: READ leaves the state unchanged; everything else may change it.
        version: The state's new version if the run changes it, or may.
        action: What is run, where that will have to be compared with what the agent asks for.
    """

    effect: Effect
    version: StateVersion
    branch: SandboxId | None = None
    action: ActionKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(_AboutRequest):
    """A run has ended, well or not.

    Attributes:
        sandbox: Where it was started.
        changed: It was seen to change something; tells only of runs that were declared READ.
    """

    sandbox: SandboxId
    changed: bool = False


# ---------------------------------------------------------------- checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequested(_AboutRequest):
    """The canonical state is to be kept as `checkpoint`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCaptured(_AboutRequest):
    """The checkpoint is whole and sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotCaptured(_AboutRequest):
    """The state cannot be captured as it is, or capturing it failed."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUnchanged(_AboutRequest):
    """The inspector found that nothing differs from an older checkpoint; nothing was captured."""

    same_as: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDropRequested(_AboutRequest):
    """Nobody will go back to this checkpoint."""

    checkpoint: CheckpointId


# ---------------------------------------------------------------- branches


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequested(_AboutRequest):
    """A branch of the canonical state is wanted."""

    branch: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchForked(_AboutRequest):
    """The branch is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkFailed(_AboutRequest):
    """The branch could not be made."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchExited(_Event):
    """A branch ended by itself."""

    branch: SandboxId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardRequested(_AboutRequest):
    """A branch is to be thrown away."""

    branch: SandboxId


# ---------------------------------------------------------------- staged, verified, swapped


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequested(_AboutRequest):
    """A branch is to become canonical.

    Attributes:
        actions: What the agent really asked for, in order; None: whoever asks knows what the branch ran.
    """

    branch: SandboxId
    actions: tuple[ActionKey, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequested(_AboutRequest):
    """The state kept as `checkpoint` is to become canonical, in the new sandbox `staged`."""

    checkpoint: CheckpointId
    staged: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStaged(_AboutRequest):
    """The new state stands beside the canonical one, whole and flushed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVerified(_AboutRequest):
    """The staged state is what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSwapped(_AboutRequest):
    """The staged state has taken the canonical one's place; the old one still exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFailed(_AboutRequest):
    """Staging, verifying or swapping failed; the old state is in its place."""

    reason: str


TransactionRequest = (
    RunRequested
    | CheckpointRequested
    | CheckpointDropRequested
    | ForkRequested
    | DiscardRequested
    | CommitRequested
    | RollbackRequested
)
"""What somebody wants; may be refused."""

TransactionEvent = (
    TransactionRequest
    | LineageOpened
    | LineageClosed
    | RuntimeRestarted
    | GarbageCollected
    | RunEnded
    | CheckpointCaptured
    | CheckpointNotCaptured
    | CheckpointUnchanged
    | BranchForked
    | ForkFailed
    | BranchExited
    | StateStaged
    | StateVerified
    | StateSwapped
    | StageFailed
)
