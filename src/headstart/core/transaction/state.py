"""All that a lineage knows, and questions about it that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headstart.core.transaction.events import LineageId, RequestId, StateVersion
from headstart.core.transaction.parts import (
    Branch,
    BranchFate,
    BranchView,
    Canonical,
    CheckpointTarget,
    CommitTarget,
    Garbage,
    LineageView,
    Operation,
    RollbackTarget,
    Run,
)
from headstart.core.transaction.stages import BranchState, Stage
from headstart.ids import CheckpointId, SandboxId

__all__ = ["LineageState"]

_REMEMBERED: Final = 256
"""How many ended branches and dropped checkpoints are known by name; older ones are unknown."""

_BEING_FORKED: Final = frozenset({BranchState.FORKING, BranchState.DOOMED})


@dataclass(slots=True, kw_only=True)
class LineageState:
    """A lineage.

    Attributes:
        fates: How branches ended, the latest ones.
        dropped: Checkpoints that were dropped, the latest ones.
    """

    id: LineageId
    canonical: Canonical
    stage: Stage = Stage.IDLE
    operation: Operation | None = None
    branches: dict[SandboxId, Branch] = field(default_factory=dict[SandboxId, Branch])
    checkpoints: dict[CheckpointId, StateVersion] = field(default_factory=dict[CheckpointId, StateVersion])
    runs: dict[RequestId, Run] = field(default_factory=dict[RequestId, Run])
    garbage: Garbage = field(default_factory=Garbage)
    fates: dict[SandboxId, BranchFate] = field(default_factory=dict[SandboxId, BranchFate])
    dropped: dict[CheckpointId, None] = field(default_factory=dict[CheckpointId, None])

    @property
    def staged(self) -> SandboxId | None:
        """The sandbox that is on its way to becoming canonical."""
        match self.operation:
            case Operation(target=RollbackTarget() | CommitTarget() as target):
                return target.sandbox
            case _:
                return None

    @property
    def capturing(self) -> CheckpointId | None:
        """The checkpoint that is being made."""
        match self.operation:
            case Operation(target=CheckpointTarget() as target):
                return target.checkpoint
            case _:
                return None

    @property
    def settled(self) -> bool:
        """No run that may change the canonical state is open."""
        return not any(run.may_change for run in self.runs_in(self.canonical.sandbox))

    def runs_in(self, sandbox: SandboxId) -> list[Run]:
        """Return the open runs of one sandbox."""
        return [run for run in self.runs.values() if run.sandbox == sandbox]

    def requests(self) -> list[RequestId]:
        """Return the requests that were begun and have not been answered."""
        operation = [self.operation.request] if self.operation else []
        forks = [branch.fork for branch in self.branches.values() if branch.state is BranchState.FORKING]
        return [*operation, *forks, *self.runs]

    def being_forked(self) -> list[Branch]:
        """Return the branches whose fork is in flight."""
        return [branch for branch in self.branches.values() if branch.state in _BEING_FORKED]

    def checkpoint_of(self, version: StateVersion) -> CheckpointId | None:
        """Return a checkpoint that holds this version."""
        return next((each for each, held in self.checkpoints.items() if held == version), None)

    def knows_sandbox(self, sandbox: SandboxId) -> bool:
        """Whether the name was given to something, as far as is remembered."""
        return sandbox in {self.canonical.sandbox, self.staged, *self.branches, *self.garbage.sandboxes, *self.fates}

    def knows_checkpoint(self, checkpoint: CheckpointId) -> bool:
        """Whether the name was given to something, as far as is remembered."""
        return checkpoint in {self.capturing, *self.checkpoints, *self.garbage.checkpoints, *self.dropped}

    def knows_version(self, version: StateVersion) -> bool:
        """Whether a state that exists has it, or will have it."""
        return version in set(self.versions())

    def versions(self) -> Iterator[StateVersion]:
        """Yield the versions of all states that exist or are being made, and of the branches' origins."""
        yield self.canonical.version
        yield from self.checkpoints.values()
        for branch in self.branches.values():
            yield from (branch.origin, branch.version)
        for run in self.runs.values():
            yield run.version

    def remember_fate(self, branch: SandboxId, fate: BranchFate) -> None:
        """Note how a branch ended."""
        self.fates[branch] = fate
        if len(self.fates) > _REMEMBERED:
            del self.fates[next(iter(self.fates))]

    def remember_dropped(self, checkpoint: CheckpointId) -> None:
        """Note that a checkpoint was dropped."""
        self.dropped[checkpoint] = None
        if len(self.dropped) > _REMEMBERED:
            del self.dropped[next(iter(self.dropped))]

    def view(self) -> LineageView:
        """Return it as values."""
        closed = self.stage is Stage.CLOSED
        return LineageView(
            id=self.id,
            sandbox=None if closed else self.canonical.sandbox,
            version=self.canonical.version,
            settled=self.settled,
            stage=self.stage,
            operation=self.operation.name if self.operation else "",
            staged=self.staged,
            capturing=self.capturing,
            branches=tuple(
                BranchView(id=each.id, state=each.state, origin=each.origin, version=each.version)
                for each in self.branches.values()
            ),
            checkpoints=tuple(self.checkpoints.items()),
            runs=tuple(self.runs),
            garbage_sandboxes=tuple(self.garbage.sandboxes),
            garbage_checkpoints=tuple(self.garbage.checkpoints),
        )
