"""What the runtime is to do for a lineage, and what it is to answer.

Acts end in an event. Answers end a request: each request gets exactly one, except that a run
that was started and has ended is answered by whoever ran it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headstart.core.actions import ActionKey
from headstart.core.transaction.events import RequestId, StateVersion
from headstart.ids import CheckpointId, SandboxId

__all__ = [
    "CaptureCheckpoint",
    "CollectGarbage",
    "ForkBranch",
    "RefuseTransaction",
    "ReportBranch",
    "ReportCheckpoint",
    "ReportConflict",
    "ReportDone",
    "ReportFailure",
    "ReportMismatch",
    "ReportState",
    "RestoreCanonical",
    "StageCommit",
    "StageRollback",
    "StartRun",
    "SwapIn",
    "TransactionInstruction",
    "TransactionRefusal",
    "VerifyStaged",
]


class TransactionRefusal(Enum):
    """Why a request is not even begun."""

    OPERATION_IN_FLIGHT = "another operation is in flight"
    RUN_IN_FLIGHT = "a run is in flight"
    UNKNOWN_CHECKPOINT = "no such checkpoint of this sandbox"
    CHECKPOINT_DROPPED = "the checkpoint was dropped"
    UNKNOWN_BRANCH = "no such branch of this sandbox"
    BRANCH_ENDED = "the branch has ended"
    BRANCH_NOT_READY = "the branch is not there yet"
    SIDE_EFFECT = "what leaves the sandbox, or might, is not run in a branch"
    CLOSED = "the sandbox was closed"

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed when what is in flight has ended."""
        return self in {
            TransactionRefusal.OPERATION_IN_FLIGHT,
            TransactionRefusal.RUN_IN_FLIGHT,
            TransactionRefusal.BRANCH_NOT_READY,
        }


# ---------------------------------------------------------------- acts


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRun:
    """Run it; ends in `RunEnded`."""

    request: RequestId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureCheckpoint:
    """Seal the sandbox's state; ends in `CheckpointCaptured`, `CheckpointNotCaptured` or `CheckpointUnchanged`."""

    request: RequestId
    checkpoint: CheckpointId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkBranch:
    """Fork the sandbox; ends in `BranchForked` or `ForkFailed`."""

    request: RequestId
    branch: SandboxId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRollback:
    """Make a sandbox from the checkpoint, beside the canonical one; ends in `StateStaged` or `StageFailed`."""

    request: RequestId
    checkpoint: CheckpointId
    staged: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCommit:
    """Make the branch ready to be the canonical one, and flush it; ends in `StateStaged` or `StageFailed`.

    In the middle of it, it is a branch as before: a crash may keep it.
    """

    request: RequestId
    branch: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyStaged:
    """Look whether the staged sandbox is what it should be; ends in `StateVerified` or `StageFailed`."""

    request: RequestId
    sandbox: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    """Let the lineage's name mean `sandbox`; keep `replaces`; ends in `StateSwapped` or `StageFailed`.

    Nobody may see the new state before `StateSwapped` is journalled.
    """

    request: RequestId
    sandbox: SandboxId
    replaces: SandboxId


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectGarbage:
    """Remove these, whatever there is of them; ends in `GarbageCollected`.

    What is still being done to them is ended first. A layer that something else stands on is the backend's to keep.
    """

    sandboxes: tuple[SandboxId, ...] = ()
    checkpoints: tuple[CheckpointId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreCanonical:
    """After a crash: let the lineage's name mean this sandbox, which it may do already."""

    sandbox: SandboxId


# ---------------------------------------------------------------- answers


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseTransaction:
    """It was not begun, and nothing has changed."""

    request: RequestId
    refusal: TransactionRefusal
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFailure:
    """It was begun and came to nothing; the canonical state is as it was."""

    request: RequestId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConflict:
    """The canonical state is no longer the one that the branch was forked from.

    If the commit named actions, the branch is discarded; else it stays for whoever made it.
    """

    request: RequestId
    branch: SandboxId
    origin: StateVersion
    canonical: StateVersion

    @property
    def message(self) -> str:
        """The conflict in one sentence."""
        return f"{self.branch} was forked from {self.origin}, and the canonical state is {self.canonical} now"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportMismatch:
    """The branch did not run what the agent asked for; the branch is discarded."""

    request: RequestId
    branch: SandboxId
    ran: tuple[ActionKey | None, ...]
    asked: tuple[ActionKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCheckpoint:
    """The state is kept.

    Attributes:
        checkpoint: The one asked for, or an older one that holds the same.
    """

    request: RequestId
    checkpoint: CheckpointId
    version: StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportBranch:
    """The branch is there."""

    request: RequestId
    branch: SandboxId
    origin: StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """A commit or rollback is done: this is canonical now."""

    request: RequestId
    sandbox: SandboxId
    version: StateVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDone:
    """The branch is discarded, the checkpoint dropped."""

    request: RequestId


TransactionInstruction = (
    StartRun
    | CaptureCheckpoint
    | ForkBranch
    | StageRollback
    | StageCommit
    | VerifyStaged
    | SwapIn
    | CollectGarbage
    | RestoreCanonical
    | RefuseTransaction
    | ReportFailure
    | ReportConflict
    | ReportMismatch
    | ReportCheckpoint
    | ReportBranch
    | ReportState
    | ReportDone
)
