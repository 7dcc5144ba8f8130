"""One sandbox lineage's transactions: events in, instructions out.

The idea. A lineage is a name that means one sandbox at a time, the *canonical* one. A run
changes the canonical state from within; a commit or a rollback puts another sandbox in its
place, which was staged beside it and verified. A rollback is the commit of a branch that is
made from a checkpoint, so the two are one path, and what a rollback stages has a sandbox id,
also where a backend only mounts other layers under the same processes.

The invariant. Exactly one sandbox is canonical; everything else that was ever named is a
branch, a checkpoint, being made, garbage, or gone. *The commit point is the journalled*
`StateSwapped`, not the swap. Until it is journalled nobody has seen the new state and the old
one still exists, so a journal that ends before it means the old one, and a journal that ends
with it means the new one. A swap that was made and not journalled is undone.

Versions. A run that may change something gives the state its new version when it *begins*:
from then on the old version is not true any more, and the new one will be true when the run
has ended. In between no version can be relied on, so nothing is forked from the state, kept
of it or swapped for it. A READ run keeps the version. If it was seen to change something
after all, the state takes the run's version, and branches forked beside it are discarded.

The five invariants of speculation, as far as they are decided here. *Branch isolation*: only
a run in the canonical sandbox, or a swap, changes the canonical state. *Action identity*: a
commit that names actions is of a branch that ran exactly these. *State identity*: a commit is
of a branch whose origin is the canonical version. *Side-effect control*: no EXTERNAL run
begins in a branch. *Deterministic fallback*: what fails or does not match discards the
branch, and the canonical state is as it was. A branch that somebody made for itself (its commit
names no actions) stays after a conflict: what is in it is nobody else's to throw away.

Rejected: to decide after a crash by what stands on the disk (a second source of truth, which
differs from the first exactly when it is asked); to go forward with a swap that had been
verified (its request was never answered, so both are right, and going back needs nothing
that the crash may have taken); to keep a speculated branch that conflicted (its origin comes
back only by a rollback, and until then it holds memory for nothing).

Restarts. What was in flight did not happen, and the canonical state has lost what ran in it. So have the
branches that are still there, and they go on: one whose commit was in flight is a branch as before. A fork or
a checkpoint that was being made is garbage. What is left of a branch is not what it ran alone, so a commit
that names actions does not match.

What may be late. `RunEnded` in a sandbox that is the lineage's no longer, `BranchExited` for a
branch that has ended, and anything after `LineageClosed` change nothing. Everything else
without a row is a bug of ours and raises `InvalidTransition`, and then nothing has changed.
"""

from __future__ import annotations

from collections.abc import Collection

from headstart.core.transaction.events import (
    BranchExited,
    BranchForked,
    CheckpointCaptured,
    CheckpointDropRequested,
    CheckpointNotCaptured,
    CheckpointRequested,
    CheckpointUnchanged,
    CommitRequested,
    DiscardRequested,
    ForkFailed,
    ForkRequested,
    GarbageCollected,
    LineageClosed,
    LineageId,
    LineageOpened,
    RequestId,
    RollbackRequested,
    RunEnded,
    RunRequested,
    RuntimeRestarted,
    StageFailed,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    TransactionEvent,
    TransactionRequest,
)
from headstart.core.transaction.instructions import (
    CaptureCheckpoint,
    CollectGarbage,
    ForkBranch,
    ReportBranch,
    ReportCheckpoint,
    ReportConflict,
    ReportDone,
    ReportFailure,
    ReportMismatch,
    ReportState,
    RestoreCanonical,
    StageCommit,
    StageRollback,
    StartRun,
    SwapIn,
    TransactionInstruction,
    VerifyStaged,
)
from headstart.core.transaction.invariants import check_state, check_step
from headstart.core.transaction.parts import (
    Branch,
    BranchFate,
    Canonical,
    CheckpointTarget,
    CommitTarget,
    Garbage,
    LineageView,
    Operation,
    RollbackTarget,
    Run,
)
from headstart.core.transaction.progress import Progress
from headstart.core.transaction.refusals import refusal_of
from headstart.core.transaction.stages import BranchHappening, BranchState, Happening, Stage, next_branch_state
from headstart.core.transaction.state import LineageState
from headstart.ids import CheckpointId, SandboxId

__all__ = ["Lineage"]


class Lineage:
    """A canonical sandbox with its checkpoints and branches.

    Args:
        opened: How it began.

    >>> me = LineageId("lin_1")
    >>> opened = LineageOpened(at_s=0.0, lineage=me, sandbox=SandboxId("sbx_1"), version=StateVersion("v0"))
    >>> lineage = Lineage(opened)
    >>> from headstart.core.actions import Effect
    >>> lineage.handle(
    ...     RunRequested(
    ...         at_s=1.0, lineage=me, request=RequestId("r1"), effect=Effect.WRITE, version=StateVersion("v1")
    ...     )
    ... )
    [StartRun(request='r1', sandbox='sbx_1')]
    >>> lineage.view().version, lineage.view().settled
    ('v1', False)
    """

    def __init__(self, opened: LineageOpened) -> None:
        canonical = Canonical(sandbox=opened.sandbox, version=opened.version)
        self._state = LineageState(id=opened.lineage, canonical=canonical)
        self._progress = Progress(self._state)
        self._out: list[TransactionInstruction] = []
        self._last: TransactionEvent = opened
        self._before = self._state.view()
        self._progress.tell(opened, f"opened: {canonical.sandbox} is canonical at {canonical.version}")

    # ------------------------------------------------------------ the door

    @property
    def id(self) -> LineageId:
        """Its name."""
        return self._state.id

    @property
    def story(self) -> tuple[str, ...]:
        """The latest part of its past, oldest first, one line each."""
        return self._progress.story

    def view(self) -> LineageView:
        """Return it as values."""
        return self._state.view()

    def in_flight(self) -> tuple[RequestId, ...]:
        """Return the requests that were begun and have not ended."""
        return tuple(self._state.requests())

    def fate_of(self, branch: SandboxId) -> BranchFate | None:
        """Return how a branch ended; None if it has not, or is not remembered."""
        return self._state.fates.get(branch)

    def handle(self, event: TransactionEvent) -> list[TransactionInstruction]:
        """Take one event, which is journalled already, and return what is to be done and answered.

        Raises:
            InvalidTransition: The event contradicts what went before; nothing has changed.
        """
        if event.lineage != self.id:
            raise self._progress.invalid(event, f"of {event.lineage}")
        self._out, before = [], self._state.view()
        if isinstance(event, TransactionRequest):
            self._requested(event)
        elif self._state.stage is Stage.CLOSED:
            self._happened_after_close(event)
        else:
            self._happened(event)
        self._last, self._before = event, before
        return self._out

    def check_invariants(self) -> None:
        """Assert what holds after every event, and that the last one changed only what it may.

        Raises:
            AssertionError: It does not; the message has the story.
        """
        try:
            check_state(self._state)
            check_step(self._before, self._last, self._state.view())
        except AssertionError as exc:
            raise AssertionError("\n  ".join((str(exc), *self.story))) from exc

    def _requested(self, event: TransactionRequest) -> None:
        refusal = refusal_of(event, self._state)
        if refusal is not None:
            self._out.append(refusal)
            return
        if event.request in self._state.requests():
            raise self._progress.invalid(event, f"for {event.request}, which is in flight already")
        match event:
            case RunRequested():
                self._run_requested(event)
            case CheckpointRequested():
                self._checkpoint_requested(event)
            case CheckpointDropRequested():
                self._drop_requested(event)
            case ForkRequested():
                self._fork_requested(event)
            case DiscardRequested():
                self._discard_requested(event)
            case CommitRequested():
                self._commit_requested(event)
            case RollbackRequested():
                self._rollback_requested(event)

    def _happened(self, event: TransactionEvent) -> None:  # noqa: C901, PLR0912 (one branch per event)
        match event:
            case RunEnded():
                self._run_ended(event)
            case CheckpointCaptured() | CheckpointNotCaptured() | CheckpointUnchanged():
                self._capture_ended(event)
            case BranchForked():
                self._branch_forked(event)
            case ForkFailed():
                self._fork_failed(event)
            case BranchExited():
                self._branch_exited(event)
            case StateStaged():
                self._staged(event)
            case StateVerified():
                self._verified(event)
            case StateSwapped():
                self._swapped(event)
            case StageFailed():
                self._stage_failed(event)
            case GarbageCollected():
                self._garbage_collected(event)
            case RuntimeRestarted():
                self._restarted(event)
            case LineageClosed():
                self._closed(event)
            case _:
                raise self._progress.invalid(event)

    def _happened_after_close(self, event: TransactionEvent) -> None:
        match event:
            case LineageOpened():
                raise self._progress.invalid(event)
            case GarbageCollected():
                self._garbage_collected(event)
            case RuntimeRestarted():
                self._collect_all_but(Garbage())
            case _:
                pass

    # ------------------------------------------------------------ runs

    def _run_requested(self, event: RunRequested) -> None:
        self._progress.must_be_new(event, version=event.version)
        branch = self._state.branches[event.branch] if event.branch else None
        sandbox = branch.id if branch else self._state.canonical.sandbox
        run = Run(request=event.request, sandbox=sandbox, effect=event.effect, version=event.version)
        self._state.runs[run.request] = run
        if branch:
            branch.ran = (*branch.ran, event.action)
        else:
            run.beside.update(dict.fromkeys(each.id for each in self._state.being_forked()))
        if run.may_change:
            self._set_version(sandbox, run.version)
        self._progress.tell(
            event, f"run {run.request} ({run.effect.value}) in {sandbox}, at {self._version_of(sandbox)}"
        )
        self._out.append(StartRun(request=run.request, sandbox=sandbox))

    def _run_ended(self, event: RunEnded) -> None:
        if event.sandbox not in {self._state.canonical.sandbox, *self._state.branches}:
            return
        run = self._state.runs.get(event.request)
        if run is None or run.sandbox != event.sandbox:
            raise self._progress.invalid(event, f"of {event.request} in {event.sandbox}, where it does not run")
        del self._state.runs[run.request]
        self._progress.tell(event, f"run {run.request} ended in {run.sandbox}")
        if event.changed and not run.may_change:
            self._set_version(run.sandbox, run.version)
            self._progress.tell(
                event, f"run {run.request} was declared READ and changed {run.sandbox}, now at {run.version}"
            )
            for branch in [self._state.branches[each] for each in run.beside if each in self._state.branches]:
                self._discard(event, branch, BranchFate.DOUBTFUL)

    def _set_version(self, sandbox: SandboxId, version: StateVersion) -> None:
        if sandbox == self._state.canonical.sandbox:
            self._state.canonical = Canonical(sandbox=sandbox, version=version)
        else:
            self._state.branches[sandbox].version = version

    def _version_of(self, sandbox: SandboxId) -> StateVersion:
        canonical = self._state.canonical
        return canonical.version if sandbox == canonical.sandbox else self._state.branches[sandbox].version

    # ------------------------------------------------------------ checkpoints

    def _checkpoint_requested(self, event: CheckpointRequested) -> None:
        same = self._state.checkpoint_of(self._state.canonical.version)
        if same is not None:
            self._report_checkpoint(event, same)
            return
        self._progress.must_be_new(event, checkpoint=event.checkpoint)
        self._progress.begin(event, Happening.CAPTURE_BEGUN, CheckpointTarget(checkpoint=event.checkpoint))
        sandbox = self._state.canonical.sandbox
        self._out.append(CaptureCheckpoint(request=event.request, checkpoint=event.checkpoint, sandbox=sandbox))

    def _capture_ended(self, event: CheckpointCaptured | CheckpointNotCaptured | CheckpointUnchanged) -> None:
        checkpoint = self._state.capturing
        if checkpoint is None:
            raise self._progress.invalid(event, "without a capture in flight")
        match event:
            case CheckpointCaptured():
                self._progress.end(event, Happening.CAPTURED)
                self._state.checkpoints[checkpoint] = self._state.canonical.version
                self._report_checkpoint(event, checkpoint)
            case CheckpointNotCaptured():
                self._progress.end(event, Happening.NOT_CAPTURED, event.reason)
                self._out.append(ReportFailure(request=event.request, reason=event.reason))
                self._collect(checkpoint=checkpoint)
            case CheckpointUnchanged():
                if event.same_as not in self._state.checkpoints:
                    raise self._progress.invalid(event, f"since {event.same_as}, which is no checkpoint")
                self._progress.end(event, Happening.UNCHANGED)
                self._report_checkpoint(event, event.same_as)
                self._collect(checkpoint=checkpoint)

    def _report_checkpoint(
        self, event: CheckpointRequested | CheckpointCaptured | CheckpointUnchanged, checkpoint: CheckpointId
    ) -> None:
        version = self._state.checkpoints[checkpoint]
        self._out.append(ReportCheckpoint(request=event.request, checkpoint=checkpoint, version=version))

    def _drop_requested(self, event: CheckpointDropRequested) -> None:
        del self._state.checkpoints[event.checkpoint]
        self._state.remember_dropped(event.checkpoint)
        self._progress.tell(event, f"checkpoint {event.checkpoint} dropped")
        self._out.append(ReportDone(request=event.request))
        self._collect(checkpoint=event.checkpoint)

    # ------------------------------------------------------------ branches

    def _fork_requested(self, event: ForkRequested) -> None:
        self._progress.must_be_new(event, sandbox=event.branch)
        canonical = self._state.canonical
        branch = Branch(id=event.branch, fork=event.request, origin=canonical.version, version=canonical.version)
        self._state.branches[branch.id] = branch
        for run in self._state.runs_in(canonical.sandbox):
            run.beside[branch.id] = None
        self._progress.tell(event, f"branch {branch.id} is forked from {canonical.sandbox} at {branch.origin}")
        self._out.append(ForkBranch(request=event.request, branch=branch.id, sandbox=canonical.sandbox))

    def _branch_forked(self, event: BranchForked) -> None:
        branch = self._forking(event)
        doom = branch.doom
        self._progress.move(event, branch, BranchHappening.FORKED)
        if doom is not None:
            self._end_branch(branch, doom)
        else:
            self._out.append(ReportBranch(request=branch.fork, branch=branch.id, origin=branch.origin))

    def _fork_failed(self, event: ForkFailed) -> None:
        branch = self._forking(event)
        doom = branch.doom
        self._progress.move(event, branch, BranchHappening.FORK_FAILED)
        if doom is None:
            self._out.append(ReportFailure(request=branch.fork, reason=event.reason))
        self._end_branch(branch, doom or BranchFate.FAILED)

    def _forking(self, event: BranchForked | ForkFailed) -> Branch:
        for branch in self._state.being_forked():
            if branch.fork == event.request:
                return branch
        raise self._progress.invalid(event, f"for {event.request}, which forks nothing")

    def _discard_requested(self, event: DiscardRequested) -> None:
        self._out.append(ReportDone(request=event.request))
        self._discard(event, self._state.branches[event.branch], BranchFate.DISCARDED)

    def _discard(self, event: TransactionEvent, branch: Branch, fate: BranchFate) -> None:
        """End an open branch; doom one that is being forked."""
        if branch.state is BranchState.DOOMED:
            return
        self._progress.move(event, branch, BranchHappening.DISCARDED)
        if branch.state is BranchState.ENDED:
            self._end_branch(branch, fate)
        else:
            branch.doom = fate
            self._out.append(ReportFailure(request=branch.fork, reason=f"{branch.id} {fate.value}"))

    def _branch_exited(self, event: BranchExited) -> None:
        branch = self._state.branches.get(event.branch)
        if branch is None:
            return
        self._progress.move(event, branch, BranchHappening.EXITED, event.reason)
        if branch.state is BranchState.ENDED:
            self._end_branch(branch, BranchFate.EXITED)

    def _end_branch(self, branch: Branch, fate: BranchFate, *, collect: bool = True) -> None:
        """Let go of a branch that has ended, and of what runs in it."""
        del self._state.branches[branch.id]
        self._state.remember_fate(branch.id, fate)
        for run in self._state.runs_in(branch.id):
            del self._state.runs[run.request]
            self._out.append(ReportFailure(request=run.request, reason=f"{branch.id} {fate.value}"))
        if collect:
            self._collect(sandbox=branch.id)

    # ------------------------------------------------------------ staged, verified, swapped

    def _commit_requested(self, event: CommitRequested) -> None:
        branch = self._state.branches[event.branch]
        if event.actions is not None and event.actions != branch.ran:
            self._out.append(
                ReportMismatch(request=event.request, branch=branch.id, ran=branch.ran, asked=event.actions)
            )
            self._discard(event, branch, BranchFate.MISMATCHED)
            return
        canonical = self._state.canonical.version
        if branch.origin != canonical:
            self._out.append(
                ReportConflict(request=event.request, branch=branch.id, origin=branch.origin, canonical=canonical)
            )
            if event.actions is not None:
                self._discard(event, branch, BranchFate.CONFLICTED)
            return
        self._progress.move(event, branch, BranchHappening.COMMIT_BEGUN)
        self._progress.begin(event, Happening.STAGE_BEGUN, CommitTarget(sandbox=branch.id))
        self._out.append(StageCommit(request=event.request, branch=branch.id))

    def _rollback_requested(self, event: RollbackRequested) -> None:
        self._progress.must_be_new(event, sandbox=event.staged)
        target = RollbackTarget(checkpoint=event.checkpoint, sandbox=event.staged)
        self._progress.begin(event, Happening.STAGE_BEGUN, target)
        self._out.append(StageRollback(request=event.request, checkpoint=event.checkpoint, staged=event.staged))

    def _staged(self, event: StateStaged) -> None:
        staged = self._progress.advance(event, Happening.STAGED)
        self._out.append(VerifyStaged(request=event.request, sandbox=staged))

    def _verified(self, event: StateVerified) -> None:
        staged = self._progress.advance(event, Happening.VERIFIED)
        replaces = self._state.canonical.sandbox
        self._out.append(SwapIn(request=event.request, sandbox=staged, replaces=replaces))

    def _swapped(self, event: StateSwapped) -> None:
        old = self._state.canonical
        new = self._swapped_in(event, self._progress.end(event, Happening.SWAPPED))
        self._state.canonical = new
        self._progress.tell(event, f"{new.sandbox} is canonical at {new.version}; {old.sandbox} was, at {old.version}")
        self._out.append(ReportState(request=event.request, sandbox=new.sandbox, version=new.version))
        self._collect(sandbox=old.sandbox)

    def _swapped_in(self, event: StateSwapped, operation: Operation) -> Canonical:
        match operation.target:
            case RollbackTarget() as target:
                return Canonical(sandbox=target.sandbox, version=self._state.checkpoints[target.checkpoint])
            case CommitTarget() as target:
                branch = self._state.branches[target.sandbox]
                self._progress.move(event, branch, BranchHappening.COMMITTED)
                self._end_branch(branch, BranchFate.COMMITTED, collect=False)
                return Canonical(sandbox=branch.id, version=branch.version)
            case CheckpointTarget():
                raise self._progress.invalid(event)

    def _stage_failed(self, event: StageFailed) -> None:
        operation = self._progress.end(event, Happening.FAILED, event.reason)
        self._out.append(ReportFailure(request=event.request, reason=event.reason))
        match operation.target:
            case RollbackTarget() as target:
                self._collect(sandbox=target.sandbox)
            case CommitTarget() as target:
                branch = self._state.branches[target.sandbox]
                self._progress.move(event, branch, BranchHappening.COMMIT_FAILED)
                self._end_branch(branch, BranchFate.FAILED)
            case CheckpointTarget():
                raise self._progress.invalid(event)

    # ------------------------------------------------------------ ends, and beginning again

    def _restarted(self, event: RuntimeRestarted) -> None:
        """What was in flight did not happen; branches that are not there any more are lost."""
        self._check_restarted(event)
        self._state.stage = self._progress.row(event, Happening.RESTARTED)
        for branch, version in event.branches:
            self._go_on_with(event, self._state.branches[branch], version)
        operation = self._condemn_what_is_made(event, but=[branch for branch, _ in event.branches])
        self._state.runs.clear()
        if event.version is not None:
            self._set_version(self._state.canonical.sandbox, event.version)
        canonical = self._state.canonical
        told = f"; the {operation.name} did not happen" if operation else ""
        self._progress.tell(event, f"restarted: {canonical.sandbox} is canonical at {canonical.version}{told}")
        self._out.append(RestoreCanonical(sandbox=canonical.sandbox))
        self._collect_all_but(Garbage())

    def _check_restarted(self, event: RuntimeRestarted) -> None:
        versions = [version for _, version in event.branches] + ([event.version] if event.version is not None else [])
        for version in versions:
            self._progress.must_be_new(event, version=version)
        if len(set(versions)) < len(versions):
            raise self._progress.invalid(event, "with a version that means two states")
        for name, _ in event.branches:
            branch = self._state.branches.get(name)
            if branch is None or next_branch_state(branch.state, BranchHappening.KEPT) is None:
                raise self._progress.invalid(event, f"with {name}, which was no branch yet, or is none any more")

    def _go_on_with(self, event: RuntimeRestarted, branch: Branch, version: StateVersion) -> None:
        """Keep a branch. What a restart takes from the canonical state, too, is no change that a commit would undo.

        But what ran there may have changed it, also if it was declared READ: nobody has seen it end.
        """
        self._progress.move(event, branch, BranchHappening.KEPT)
        branch.version = version
        branch.ran = (*branch.ran, None)
        canonical = self._state.canonical
        if (
            event.version is not None
            and branch.origin == canonical.version
            and not self._state.runs_in(canonical.sandbox)
        ):
            branch.origin = event.version

    def _closed(self, event: LineageClosed) -> None:
        """Answer whoever waits, and let everything go."""
        waiting, told = self._state.requests(), self._state.garbage.without(Garbage())
        self._state.stage = self._progress.row(event, Happening.CLOSED)
        self._condemn_what_is_made(event)
        self._state.runs.clear()
        self._state.garbage.add([self._state.canonical.sandbox], self._state.checkpoints)
        self._state.checkpoints.clear()
        self._progress.tell(event, "closed")
        self._out.extend(ReportFailure(request=each, reason=f"{self.id} was closed") for each in waiting)
        self._collect_all_but(told)

    def _condemn_what_is_made(self, event: TransactionEvent, *, but: Collection[SandboxId] = ()) -> Operation | None:
        """Make branches garbage, and what the operation in flight had made; return that operation."""
        state = self._state
        staged = state.staged if state.staged not in but else None
        state.garbage.add([staged] if staged else [], [state.capturing] if state.capturing else [])
        for branch in [each for each in state.branches.values() if each.id not in but]:
            self._progress.move(event, branch, BranchHappening.LOST)
            state.remember_fate(branch.id, branch.doom or BranchFate.LOST)
            state.garbage.add([branch.id], [])
            del state.branches[branch.id]
        operation, state.operation = state.operation, None
        return operation

    def _garbage_collected(self, event: GarbageCollected) -> None:
        if not self._state.garbage.holds(event.sandboxes, event.checkpoints):
            raise self._progress.invalid(
                event, f"of {(*event.sandboxes, *event.checkpoints)}: not all of it is garbage"
            )
        self._state.garbage.remove(event.sandboxes, event.checkpoints)

    def _collect(self, *, sandbox: SandboxId | None = None, checkpoint: CheckpointId | None = None) -> None:
        sandboxes = () if sandbox is None else (sandbox,)
        checkpoints = () if checkpoint is None else (checkpoint,)
        self._state.garbage.add(sandboxes, checkpoints)
        self._out.append(CollectGarbage(sandboxes=sandboxes, checkpoints=checkpoints))

    def _collect_all_but(self, told: Garbage) -> None:
        """Tell of all garbage except what was told already (after a crash nothing was: it may not have been done)."""
        garbage = self._state.garbage.without(told)
        if garbage:
            self._out.append(CollectGarbage(sandboxes=tuple(garbage.sandboxes), checkpoints=tuple(garbage.checkpoints)))
