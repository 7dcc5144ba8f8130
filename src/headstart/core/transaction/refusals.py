"""Which requests are not begun, and why.

Runs go side by side. An operation on the canonical state (checkpoint, rollback, commit, drop)
is alone. Forks go side by side with each other and with READ runs.

Who comes second is refused, not queued. What it asked for was decided on a state that is
about to be replaced; and a queue in here would need patience, cancelling and fairness, which
the runtime has already. The message names what is in the way: wait for its end, ask again.
"""

from __future__ import annotations

from headstart.core.actions import Effect
from headstart.core.transaction.events import (
    CheckpointDropRequested,
    CheckpointRequested,
    CommitRequested,
    DiscardRequested,
    ForkRequested,
    RequestId,
    RollbackRequested,
    RunRequested,
    TransactionRequest,
)
from headstart.core.transaction.instructions import RefuseTransaction, TransactionRefusal
from headstart.core.transaction.parts import Branch
from headstart.core.transaction.stages import BranchState, Stage
from headstart.core.transaction.state import LineageState
from headstart.ids import CheckpointId, SandboxId

__all__ = ["refusal_of"]


def refusal_of(  # noqa: PLR0911 (one answer per request)
    request: TransactionRequest, state: LineageState
) -> RefuseTransaction | None:
    """Return why a request cannot be begun now, or None if it can."""
    door = _Door(request.request, state)
    if state.stage is Stage.CLOSED:
        return door.refuse(TransactionRefusal.CLOSED, f"{state.id} was closed")
    match request:
        case RunRequested(branch=None):
            return door.operation_in_flight() or (door.fork_in_flight() if request.effect is not Effect.READ else None)
        case RunRequested():
            return door.run_in_branch(request)
        case ForkRequested():
            return door.operation_in_flight() or door.run_in_flight(changing_only=True)
        case CheckpointRequested():
            return door.not_alone()
        case CheckpointDropRequested():
            return door.no_checkpoint(request.checkpoint) or door.operation_in_flight()
        case RollbackRequested():
            return door.no_checkpoint(request.checkpoint) or door.not_alone()
        case CommitRequested():
            return door.commit(request)
        case DiscardRequested():
            return door.discard(request)


class _Door:
    """The questions of `refusal_of`, each answered with a refusal or None."""

    def __init__(self, request: RequestId, state: LineageState) -> None:
        self._request = request
        self._state = state

    def refuse(self, refusal: TransactionRefusal, message: str) -> RefuseTransaction:
        return RefuseTransaction(request=self._request, refusal=refusal, message=message)

    def not_alone(self) -> RefuseTransaction | None:
        return self.operation_in_flight() or self.fork_in_flight() or self.run_in_flight()

    def operation_in_flight(self) -> RefuseTransaction | None:
        operation = self._state.operation
        if operation is None:
            return None
        message = f"the {operation.name} is in flight ({self._state.stage.value}); ask again when it has ended"
        return self.refuse(TransactionRefusal.OPERATION_IN_FLIGHT, message)

    def fork_in_flight(self) -> RefuseTransaction | None:
        forking = self._state.being_forked()
        if not forking:
            return None
        message = f"the fork of {forking[0].id} is in flight; ask again when it has ended"
        return self.refuse(TransactionRefusal.OPERATION_IN_FLIGHT, message)

    def run_in_flight(
        self, sandbox: SandboxId | None = None, *, changing_only: bool = False
    ) -> RefuseTransaction | None:
        where = sandbox or self._state.canonical.sandbox
        for run in self._state.runs_in(where):
            if run.may_change or not changing_only:
                called = self._state.id if where == self._state.canonical.sandbox else where
                message = f"the run {run.request} is in flight in {called}; ask again when it has ended"
                return self.refuse(TransactionRefusal.RUN_IN_FLIGHT, message)
        return None

    def no_checkpoint(self, checkpoint: CheckpointId) -> RefuseTransaction | None:
        if checkpoint in self._state.checkpoints:
            return None
        if checkpoint in self._state.dropped:
            message = f"{checkpoint} was dropped, so nothing can go back to it"
            return self.refuse(TransactionRefusal.CHECKPOINT_DROPPED, message)
        known = ", ".join(self._state.checkpoints) or "none"
        message = f"{checkpoint} is no checkpoint of {self._state.id}; its checkpoints: {known}"
        return self.refuse(TransactionRefusal.UNKNOWN_CHECKPOINT, message)

    def run_in_branch(self, request: RunRequested) -> RefuseTransaction | None:
        branch = self._open_branch(request.branch or SandboxId(""))
        if isinstance(branch, RefuseTransaction):
            return branch
        if request.effect is Effect.EXTERNAL:
            message = (
                f"{branch.id} is a branch, and what this run does may be seen outside of it; run it when committed"
            )
            return self.refuse(TransactionRefusal.SIDE_EFFECT, message)
        return None

    def commit(self, request: CommitRequested) -> RefuseTransaction | None:
        branch = self._open_branch(request.branch)
        if isinstance(branch, RefuseTransaction):
            return branch
        return self.not_alone() or self.run_in_flight(branch.id)

    def discard(self, request: DiscardRequested) -> RefuseTransaction | None:
        branch = self._branch(request.branch)
        if isinstance(branch, RefuseTransaction):
            return branch
        return self.operation_in_flight() if branch.state is BranchState.COMMITTING else None

    def _open_branch(self, branch: SandboxId) -> Branch | RefuseTransaction:
        found = self._branch(branch)
        if isinstance(found, RefuseTransaction) or found.state is BranchState.OPEN:
            return found
        if found.state is BranchState.FORKING:
            message = f"{branch} is still being forked; ask again when it is there"
            return self.refuse(TransactionRefusal.BRANCH_NOT_READY, message)
        message = f"{branch} is being committed; what it holds is canonical when that has ended"
        return self.refuse(TransactionRefusal.OPERATION_IN_FLIGHT, message)

    def _branch(self, branch: SandboxId) -> Branch | RefuseTransaction:
        """Return a branch that has not ended; one that was discarded while it was forked has, for whoever asks."""
        found = self._state.branches.get(branch)
        fate = found.doom if found else self._state.fates.get(branch)
        if fate is not None:
            return self.refuse(TransactionRefusal.BRANCH_ENDED, f"{branch} {fate.value}")
        if found is None:
            known = ", ".join(self._state.branches) or "none"
            message = f"{branch} is no branch of {self._state.id}; its branches: {known}"
            return self.refuse(TransactionRefusal.UNKNOWN_BRANCH, message)
        return found
