"""How a lineage goes from row to row: the tables followed, names kept apart, the story told."""

from __future__ import annotations

from collections import deque
from typing import Final

from headstart.core.transaction.events import (
    CheckpointCaptured,
    CheckpointNotCaptured,
    CheckpointRequested,
    CheckpointUnchanged,
    CommitRequested,
    RollbackRequested,
    StageFailed,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    TransactionEvent,
)
from headstart.core.transaction.parts import Branch, CheckpointTarget, CommitTarget, Operation, RollbackTarget
from headstart.core.transaction.stages import BranchHappening, Happening, Stage, next_branch_state, next_stage
from headstart.core.transaction.state import LineageState
from headstart.errors import InvalidTransition
from headstart.ids import CheckpointId, SandboxId

__all__ = ["STORY_LINES", "OperationEnd", "Progress"]

STORY_LINES: Final = 24
"""How much of its past a lineage remembers."""

OperationEnd = CheckpointCaptured | CheckpointNotCaptured | CheckpointUnchanged | StateSwapped | StageFailed


class Progress:
    """Moves a lineage's operation and branches, and remembers how.

    Whatever raises has changed nothing.

    Args:
        state: Of the lineage.
    """

    def __init__(self, state: LineageState) -> None:
        self._state = state
        self._story: deque[str] = deque(maxlen=STORY_LINES)

    @property
    def story(self) -> tuple[str, ...]:
        """The latest part of the lineage's past, oldest first, one line each."""
        return tuple(self._story)

    def tell(self, event: TransactionEvent, line: str) -> None:
        """Add a line to the story."""
        self._story.append(f"{event.at_s:.3f} {line}")

    def begin(
        self,
        event: CheckpointRequested | RollbackRequested | CommitRequested,
        happening: Happening,
        target: CheckpointTarget | RollbackTarget | CommitTarget,
    ) -> None:
        """Begin an operation.

        Raises:
            InvalidTransition: Another is in flight.
        """
        stage = self.row(event, happening)
        self._state.operation = Operation(request=event.request, target=target)
        self._enter(event, stage, happening)

    def advance(self, event: StateStaged | StateVerified, happening: Happening) -> SandboxId:
        """Go on with what is staged, and return it.

        Raises:
            InvalidTransition: It is not that far, or not the operation in flight.
        """
        stage, staged = self.row(event, happening), self._state.staged
        if staged is None:
            raise self.invalid(event)
        self._enter(event, stage, happening)
        return staged

    def end(self, event: OperationEnd, happening: Happening, note: str = "") -> Operation:
        """End the operation in flight, and return it.

        Raises:
            InvalidTransition: It cannot end so, or is another.
        """
        stage, operation = self.row(event, happening), self._state.operation
        if operation is None:
            raise self.invalid(event)
        self._enter(event, stage, happening, note)
        self._state.operation = None
        return operation

    def row(self, event: TransactionEvent, happening: Happening) -> Stage:
        """Return the stage that the table gives.

        Raises:
            InvalidTransition: It has no row, or the event is about another operation than the one in flight.
        """
        operation = self._state.operation
        if isinstance(event, OperationEnd | StateStaged | StateVerified) and (
            operation is None or operation.request != event.request
        ):
            raise self.invalid(event, f"for {event.request}, which is not in flight")
        stage = next_stage(self._state.stage, happening)
        if stage is None:
            raise self.invalid(event)
        return stage

    def move(self, event: TransactionEvent, branch: Branch, happening: BranchHappening, note: str = "") -> None:
        """Follow a branch's table.

        Raises:
            InvalidTransition: It has no row.
        """
        after = next_branch_state(branch.state, happening)
        if after is None:
            raise self.invalid(event, f"({branch.id} is {branch.state.value})")
        told = f"{happening.value}: {note}" if note else happening.value
        self.tell(event, f"branch {branch.id} {branch.state.value} → {after.value} ({told})")
        branch.state = after

    def must_be_new(
        self,
        event: TransactionEvent,
        *,
        sandbox: SandboxId | None = None,
        checkpoint: CheckpointId | None = None,
        version: StateVersion | None = None,
    ) -> None:
        """Insist that names which came with an event name nothing yet.

        Raises:
            InvalidTransition: One does.
        """
        if (
            (sandbox is not None and self._state.knows_sandbox(sandbox))
            or (checkpoint is not None and self._state.knows_checkpoint(checkpoint))
            or (version is not None and self._state.knows_version(version))
        ):
            raise self.invalid(event, f"with {sandbox or checkpoint or version}, which is not new")

    def invalid(self, event: TransactionEvent, why: str = "") -> InvalidTransition:
        """Make the error of an event that cannot be, with the story."""
        told = f"{type(event).__name__} {why}".rstrip()
        return InvalidTransition(subject=self._state.id, state=self._state.stage.value, event=told, story=self.story)

    def _enter(self, event: TransactionEvent, stage: Stage, happening: Happening, note: str = "") -> None:
        before, self._state.stage = self._state.stage, stage
        operation = self._state.operation
        told = ": ".join(part for part in (happening.value, operation.name if operation else "", note) if part)
        self.tell(event, f"{before.value} → {stage.value} ({told})")
