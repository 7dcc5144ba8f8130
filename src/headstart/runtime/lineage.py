"""One sandbox with its checkpoints and branches, as `core.transaction` decides: acts on what comes out of it.

Events are handed in by whoever sees them happen, and answered at once; acts (capturing,
forking, removing) are tasks of the lineage's own, so that whoever asked for one may be
cancelled without leaving it half done. The state version changes with every run that may
have changed something.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypedDict, TypeVar

import anyio
from anyio.abc import TaskGroup

from headstart.backends.contract import Capture, Checkpoint, Identity, RunningSandbox
from headstart.clock import Clock
from headstart.core.actions import Effect
from headstart.core.transaction import (
    BranchForked,
    CaptureCheckpoint,
    CheckpointCaptured,
    CheckpointDropRequested,
    CheckpointNotCaptured,
    CheckpointRequested,
    CollectGarbage,
    CommitRequested,
    DiscardRequested,
    ForkBranch,
    ForkFailed,
    ForkRequested,
    GarbageCollected,
    Lineage,
    LineageClosed,
    LineageId,
    LineageOpened,
    RefuseTransaction,
    ReportBranch,
    ReportCheckpoint,
    ReportConflict,
    ReportDone,
    ReportFailure,
    ReportMismatch,
    ReportState,
    RequestId,
    RestoreCanonical,
    RollbackRequested,
    RunEnded,
    RunRequested,
    StageCommit,
    StageFailed,
    StageRollback,
    StartRun,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    SwapIn,
    TransactionEvent,
    TransactionInstruction,
    TransactionRefusal,
    TransactionRequest,
    VerifyStaged,
)
from headstart.errors import BackendError, Conflict, HeadstartError, TransactionRefused
from headstart.ids import CheckpointId, IdSource, SandboxId
from headstart.runtime.identities import new_seed
from headstart.runtime.kept import SandboxCheckpoint
from headstart.runtime.remembered import NO_SESSIONS, KeptState, Remembered, SessionState

__all__ = ["SandboxCheckpoint", "SandboxLineage"]


_Answer = (
    StartRun
    | RefuseTransaction
    | ReportFailure
    | ReportConflict
    | ReportMismatch
    | ReportCheckpoint
    | ReportBranch
    | ReportState
    | ReportDone
)

_FULL: Final = os.strerror(errno.ENOSPC)

_log = logging.getLogger(__name__)

_Act = TypeVar("_Act", CaptureCheckpoint, ForkBranch, StageRollback, CollectGarbage)


_CURES: Final = {
    TransactionRefusal.OPERATION_IN_FLIGHT: "wait until that has ended",
    TransactionRefusal.RUN_IN_FLIGHT: "wait until that has ended",
    TransactionRefusal.UNKNOWN_CHECKPOINT: "go back in the sandbox that made it",
    TransactionRefusal.BRANCH_ENDED: "go on in the sandbox that it was forked from",
}


class _About(TypedDict):
    at_s: float
    lineage: LineageId
    request: RequestId


class _Waiting:
    """A request that somebody waits for."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.answer: _Answer | None = None
        self.failure: Exception | None = None
        """What went wrong, if it came to nothing."""


class SandboxLineage:
    """A name that means one sandbox, the canonical one; see `core.transaction`.

    Args:
        first: The canonical sandbox; from now on the lineage closes it.
        name: The lineage's.
        remembered: What outlives the service; None if nothing does.
        identify: Returns what a sandbox of it carries as its own, given for which one that was made.
        tasks: Where it acts; must outlive it.
    """

    def __init__(  # noqa: PLR0913 (what it stands on)
        self,
        first: RunningSandbox,
        *,
        name: LineageId,
        identify: Callable[[SandboxId, SandboxId], Identity],
        ids: IdSource,
        clock: Clock,
        tasks: TaskGroup,
        remembered: Remembered | None = None,
    ) -> None:
        self._name = name
        self._identify = identify
        self._ids = ids
        self._clock = clock
        self._tasks = tasks
        self._sandboxes: dict[SandboxId, RunningSandbox] = {first.id: first}
        self._canonical = first
        self._remembered = remembered
        self._is_syncing = False
        self._has_swapped = False
        """Another sandbox is canonical than what is on the disk may say."""
        self._checkpoints: dict[CheckpointId, KeptState] = dict(remembered.kept) if remembered else {}
        self._files_only: set[RequestId] = set()
        self._sessions: dict[RequestId, SessionState] = {}
        self._beside: set[SandboxId] = set()
        """Branches that were forked while something ran in the canonical sandbox, which may have written since."""
        self._written_beside: set[SandboxId] = set()
        self._asked_for: Counter[CheckpointId] = Counter(self._checkpoints.keys())
        self._unwanted: set[SandboxId] = set()
        self._staged: dict[SandboxId, CheckpointId] = {}
        self._whose: dict[SandboxId, SandboxId] = {first.id: (remembered and remembered.whose) or first.id}
        """By sandbox, for which one the identity was made that it carries."""
        self._fresh: set[SandboxId] = set()
        """Those in the making that are to have an identity of their own."""
        self.on_swap: Callable[[SandboxId, CheckpointId | None], None] = lambda _sandbox, _checkpoint: None
        """Called when another sandbox has become canonical: a branch, or (with its name) what a checkpoint kept."""
        self._waiting: dict[RequestId, _Waiting] = {}
        self._moved = anyio.Event()
        """Set with each event; then there is another one."""
        self._acting = 0
        self._idle = anyio.Event()
        self._closed = False
        if remembered is None:
            opened = LineageOpened(
                at_s=clock.monotonic_s(), lineage=name, sandbox=first.id, version=self._new_version()
            )
            self._machine = Lineage(opened)
            self._handle = self._machine.handle
        else:
            self._machine, self._handle = remembered.lineage, remembered.handle

    def go_on_with(self, branch: RunningSandbox, *, whose: SandboxId | None, is_beside: bool) -> None:
        """Have a branch again that is remembered, and runs again.

        Args:
            branch: It; from now on the lineage closes it.
            whose: For which sandbox the identity was made that it carries; None: for itself.
            is_beside: Something may have written to the canonical sandbox since it was forked.
        """
        self._sandboxes[branch.id] = branch
        self._whose[branch.id] = whose or branch.id
        if is_beside:
            self._beside.add(branch.id)
            self._written_beside.add(branch.id)

    @property
    def name(self) -> LineageId:
        return self._name

    @property
    def canonical(self) -> RunningSandbox:
        """The sandbox that the name means now."""
        return self._canonical

    def sandbox(self, branch: SandboxId | None) -> RunningSandbox:
        """Return a branch's sandbox, or, for None, the canonical one.

        Raises:
            TransactionRefused: The branch has ended.
        """
        if branch is None:
            return self._canonical
        if self.version_of(branch) is None or branch not in self._sandboxes:
            fate = self._machine.fate_of(branch)
            raise TransactionRefused(f"{branch} {fate.value if fate else 'is no branch'}")
        return self._sandboxes[branch]

    @property
    def version(self) -> StateVersion:
        """The canonical state's."""
        return self._machine.view().version

    def version_of(self, branch: SandboxId) -> StateVersion | None:
        """Return the state version of a branch; None if there is no such branch (any more)."""
        return next((each.version for each in self._machine.view().branches if each.id == branch), None)

    @property
    def checkpoints(self) -> tuple[SandboxCheckpoint, ...]:
        """What is kept, the oldest first."""
        versions = dict(self._machine.view().checkpoints)
        return tuple(
            SandboxCheckpoint(id=name, version=versions[name], capture=kept.files.capture, left_out=kept.files.left_out)
            for name, kept in self._checkpoints.items()
            if name in versions
        )

    async def wait_lost(self) -> None:
        """Return when the sandbox that the name means is gone and none takes its place, or it was closed."""
        while True:
            sandbox = self._canonical
            await sandbox.wait_lost()
            if sandbox is self._canonical:
                return

    # ------------------------------------------------------------ requests

    @asynccontextmanager
    async def running(
        self, branch: SandboxId | None = None, *, effect: Effect = Effect.WRITE
    ) -> AsyncGenerator[RunningSandbox]:
        """Yield the sandbox for something that may change it; when a checkpoint, rollback or commit that goes on is over.

        Args:
            branch: Which; None: the canonical one.
            effect: READ: it does not change its state.

        Raises:
            TransactionRefused: The branch has ended.
            BackendError: The sandbox was closed.
        """
        request = self._new_request()
        version = self._new_version()
        while True:
            answer = await self._ask(
                RunRequested(**self._about(request), effect=effect, version=version, branch=branch)
            )
            match answer:
                case RefuseTransaction(refusal=TransactionRefusal.OPERATION_IN_FLIGHT):
                    await self._moved.wait()
                case _:
                    break
        if not isinstance(answer, StartRun):
            raise self._refused(answer)
        try:
            yield self._sandboxes[answer.sandbox]
        except HeadstartError as error:
            if branch is None:
                self._tell_in_its_name(error)
            raise
        finally:
            if not self._closed:
                self._feed(RunEnded(**self._about(request), sandbox=answer.sandbox))

    def sessions_at(self, checkpoint: CheckpointId) -> SessionState:
        """Return the state of what kept its state between commands, as a checkpoint has it; nothing, if there is none."""
        kept = self._checkpoints.get(checkpoint)
        return NO_SESSIONS if kept is None else kept.sessions

    async def checkpoint(
        self, *, files_only: bool = False, sessions: SessionState = NO_SESSIONS, durable: bool = False
    ) -> SandboxCheckpoint:
        """Keep the canonical state; the same state is kept once.

        Args:
            files_only: Leave out what runs. As that may go on writing, the state has a new version then.
            sessions: The state of what keeps its state between commands, to be kept with it.
            durable: Return when it is on the disk; else that comes in a while. Without a disk, it changes nothing.

        Raises:
            NotCapturable: Something runs that a checkpoint cannot hold.
            TransactionRefused: A command runs, or another checkpoint, rollback or commit is going on.
            BackendError: The sandbox failed.
        """
        name = CheckpointId(self._ids.new("chk"))
        request = self._new_request()
        if files_only:
            self._files_only.add(request)
        self._sessions[request] = sessions
        answer = await self._ask(CheckpointRequested(**self._about(request), checkpoint=name))
        if not isinstance(answer, ReportCheckpoint):
            raise self._refused(answer)
        kept = self._checkpoints[answer.checkpoint].files
        self._asked_for[answer.checkpoint] += 1
        if kept.left_out and answer.checkpoint == name:
            await self._note_changes()
        if durable and self._remembered is not None:
            await self._remembered.settle()
        return SandboxCheckpoint(
            id=answer.checkpoint,
            version=answer.version,
            capture=kept.capture if answer.checkpoint == name else Capture.UNCHANGED,
            left_out=kept.left_out,
        )

    async def _note_changes(self) -> None:
        """What goes on beside a checkpoint or a fork may change the state at any moment: it is another one now."""
        async with self.running():
            pass

    def is_itself(self, sandbox: SandboxId) -> bool:
        """Whether a sandbox carries the identity that was made for it."""
        return self._whose.get(sandbox) == sandbox

    def new_seed(self) -> int:
        """Return a seed for a generator of random numbers."""
        return new_seed(self._ids)

    async def rollback(self, to: CheckpointId, *, fresh: bool = False) -> None:
        """Make the kept state the canonical one: staged beside it, verified, swapped in. What runs is ended.

        It carries the identity that it was kept with; if `fresh`, one of its own, and then it is another state.

        Raises:
            TransactionRefused: There is no such checkpoint, or a command runs, or something else is going on.
            BackendError: It failed; the state is what it was.
        """
        staged = SandboxId(self._ids.new("box"))
        if fresh:
            self._fresh.add(staged)
        answer = await self._ask(RollbackRequested(**self._about(self._new_request()), checkpoint=to, staged=staged))
        if not isinstance(answer, ReportState):
            self._fresh.discard(staged)
            raise self._refused(answer)

    async def fork(
        self, *, files_only: bool = False, fresh: bool = False, sessions: SessionState = NO_SESSIONS
    ) -> SandboxId:
        """Make a branch of the canonical state and return its name. With `files_only`, without what runs.

        It carries the identity of what it was forked from; if `fresh`, one of its own, and then it is another state.
        What `sessions` says is kept otherwise does not count as running.

        Raises:
            NotCapturable: Something runs that it cannot have.
            TransactionRefused: A command runs, or something else is going on.
            BackendError: It failed.
        """
        branch, request = SandboxId(self._ids.new("box")), self._new_request()
        if files_only:
            self._files_only.add(request)
        self._sessions[request] = sessions
        if fresh:
            self._fresh.add(branch)
        try:
            answer = await self._ask(ForkRequested(**self._about(request), branch=branch))
        except BaseException:
            if self.version_of(branch) is not None:  # nobody knows of it
                self._feed(DiscardRequested(**self._about(self._new_request()), branch=branch))
            raise
        if isinstance(answer, ReportBranch):
            return answer.branch
        self._fresh.discard(branch)
        raise self._refused(answer)

    async def commit(self, branch: SandboxId) -> None:
        """Make a branch the canonical sandbox; what it replaces is removed.

        Raises:
            Conflict: The canonical state has changed since the branch was forked; the branch stays.
            TransactionRefused: There is no such branch, or a command runs, or something else is going on.
        """
        if branch in self._beside and await self._was_written_to_beside(branch):
            await self._note_changes()
        answer = await self._ask(CommitRequested(**self._about(self._new_request()), branch=branch))
        if not isinstance(answer, ReportState):
            raise self._refused(answer)

    async def _was_written_to_beside(self, branch: SandboxId) -> bool:
        """Whether what ran when a branch was forked has written to the canonical sandbox since."""
        if branch in self._written_beside:
            return True
        kept = await self._canonical.checkpoint(files_only=True)
        await self._canonical.forget(kept)
        return kept.capture is not Capture.UNCHANGED

    async def discard(self, branch: SandboxId) -> None:
        """Throw a branch away. One that has ended is fine."""
        if self.version_of(branch) is not None:
            await self._ask(DiscardRequested(**self._about(self._new_request()), branch=branch))

    async def drop(self, checkpoint: CheckpointId) -> bool:
        """Let go of a checkpoint; it goes when everybody who asked for that state has let go of it.

        Returns:
            Whether it has gone.

        Raises:
            TransactionRefused: There is none, or it is in use.
        """
        if self._asked_for[checkpoint] > 1:
            self._asked_for[checkpoint] -= 1
            return False
        answer = await self._ask(CheckpointDropRequested(**self._about(self._new_request()), checkpoint=checkpoint))
        if not isinstance(answer, ReportDone):
            raise self._refused(answer)
        del self._asked_for[checkpoint]
        return True

    async def suspend(self) -> None:
        """End what runs without closing the lineage: its store has the files, its journal the rest.

        Completes under cancellation.
        """
        with anyio.CancelScope(shield=True):
            self._closed = True
            for waiting in self._waiting.values():
                waiting.answered.set()
            await self._until_idle()
            self._sandboxes.clear()  # their store ends them
            if self._remembered is not None:
                self._acting += 1
                await self._sync(self._remembered)
            self._let_go_of_journal()

    def _let_go_of_journal(self) -> None:
        if self._remembered is not None:
            self._remembered.journal.close()
            self._remembered = None

    def _sync_soon(self) -> None:
        """Have the journal on the disk in a while; the store sees to what was kept in it."""
        if self._remembered is not None and not self._is_syncing:
            self._is_syncing = True
            self._acting += 1  # the journal is not closed meanwhile
            self._tasks.start_soon(self._sync, self._remembered)

    async def _sync(self, remembered: Remembered) -> None:
        self._is_syncing = False
        try:
            await remembered.sync()
        except BackendError as error:
            _log.warning("%s: what was kept may not outlive the machine: %s", self._name, error)
        finally:
            self._acted()

    async def _settle_swap(self) -> None:
        """Have what is canonical now on the disk, before that which was can be deleted."""
        if self._remembered is None or not self._has_swapped:
            return
        self._has_swapped = False
        try:
            await self._remembered.settle()
        except BackendError as error:
            _log.warning("%s: its state may not outlive the machine: %s", self._name, error)

    async def _until_idle(self) -> None:
        while self._acting:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def aclose(self) -> None:
        """End it, with its branches, and see that nothing is left. Idempotent; completes under cancellation."""
        with anyio.CancelScope(shield=True):
            if not self._closed:
                self._closed = True
                self._feed(LineageClosed(at_s=self._clock.monotonic_s(), lineage=self._name))
                for waiting in self._waiting.values():
                    waiting.answered.set()
            await self._until_idle()
            self._checkpoints.clear()  # and what only they have kept
            for sandbox in self._sandboxes.values():  # what acts that were cancelled have left
                await sandbox.aclose()
            self._sandboxes.clear()
            self._let_go_of_journal()

    # ------------------------------------------------------------ asking and answering

    def _about(self, request: RequestId) -> _About:
        return {"at_s": self._clock.monotonic_s(), "lineage": self._name, "request": request}

    def _new_request(self) -> RequestId:
        return RequestId(self._ids.new("req"))

    def _new_version(self) -> StateVersion:
        return StateVersion(self._ids.new("state"))

    async def _ask(self, event: TransactionRequest) -> _Answer:
        if self._remembered is not None and not isinstance(event, RunRequested):
            self._remembered.journal.make_room()
        waiting = self._waiting[event.request] = _Waiting()
        try:
            self._feed(event)
            if not waiting.answered.is_set():  # who is cancelled here does not know what has begun
                await waiting.answered.wait()
        finally:
            self._waiting.pop(event.request, None)
            self._files_only.discard(event.request)
            self._sessions.pop(event.request, None)
        if waiting.failure is not None:
            raise waiting.failure
        if waiting.answer is None:
            raise BackendError(f"{self._name} is gone: it was closed")
        return waiting.answer

    def _note_failure(self, request: RequestId, failure: Exception) -> None:
        """Have it raised where it was asked for; who has gone need not know."""
        if isinstance(failure, HeadstartError):
            self._tell_in_its_name(failure)
            if _FULL in str(failure):
                failure.hint = "what it may write is used up: delete something in it, and try again"
        if request in self._waiting:
            self._waiting[request].failure = failure

    def _tell_in_its_name(self, error: HeadstartError) -> None:
        """Its user does not know which sandbox it is at the moment: after a rollback or a commit, it has another id."""
        inner, told = self._canonical.id, str(error)
        if inner != self._name and inner in told:
            error.args = (told.replace(inner, self._name),)

    def _feed(self, event: TransactionEvent) -> None:
        for instruction in self._handle(event):
            self._take(instruction)
        self._moved.set()
        self._moved = anyio.Event()

    def _take(self, instruction: TransactionInstruction) -> None:
        match instruction:
            case CaptureCheckpoint():
                self._act(self._capture, instruction)
            case ForkBranch():
                self._act(self._fork, instruction)
            case StageRollback():
                self._act(self._stage, instruction)
            case StageCommit():  # it stands already, and in memory there is nothing to flush
                self._feed(StateStaged(**self._about(instruction.request)))
            case VerifyStaged():  # who was forked has told that all its layers stand and its init serves
                self._feed(StateVerified(**self._about(instruction.request)))
            case SwapIn():
                self._canonical = self._sandboxes[instruction.sandbox]
                self._has_swapped = True
                self._feed(StateSwapped(**self._about(instruction.request)))
                self.on_swap(instruction.sandbox, self._staged.pop(instruction.sandbox, None))
            case CollectGarbage():
                self._act(self._collect, instruction)
            case RestoreCanonical():
                self._canonical = self._sandboxes[instruction.sandbox]
            case _:
                self._answer(instruction)

    def _answer(self, answer: _Answer) -> None:
        waiting = self._waiting.get(answer.request)
        if waiting is not None:
            waiting.answer = answer
            waiting.answered.set()

    def _refused(self, answer: _Answer) -> Exception:
        """Return what to raise for an answer that is not the one that was hoped for."""
        match answer:
            case RefuseTransaction(refusal=TransactionRefusal.CLOSED):
                return BackendError(f"{self._name} is gone: it was closed")
            case RefuseTransaction():
                return TransactionRefused(answer.message, hint=_CURES.get(answer.refusal))
            case ReportConflict():
                return Conflict(answer.message, origin=answer.origin, canonical=answer.canonical)
            case ReportFailure():
                return BackendError(answer.reason)
            case _:
                raise AssertionError(f"{answer} answers nothing that was asked")

    # ------------------------------------------------------------ acts

    def _act(self, act: Callable[[_Act], Awaitable[None]], instruction: _Act) -> None:
        self._acting += 1
        self._tasks.start_soon(self._see_through, act, instruction)

    async def _see_through(self, act: Callable[[_Act], Awaitable[None]], instruction: _Act) -> None:
        try:
            await act(instruction)
        finally:
            self._acted()

    def _acted(self) -> None:
        self._acting -= 1
        if not self._acting:
            self._idle.set()

    async def _capture(self, wanted: CaptureCheckpoint) -> None:
        try:
            kept = await self._keep(self._sandboxes[wanted.sandbox], wanted)
        except Exception as error:  # noqa: BLE001 told to who asked
            self._note_failure(wanted.request, error)
            self._feed(CheckpointNotCaptured(**self._about(wanted.request), reason=str(error)))
        else:
            self._checkpoints[wanted.checkpoint] = kept
            is_wanted = wanted.request in self._waiting
            self._feed(CheckpointCaptured(**self._about(wanted.request)))
            self._sync_soon()
            if not is_wanted:  # nobody knows of it
                self._feed(CheckpointDropRequested(**self._about(self._new_request()), checkpoint=wanted.checkpoint))

    async def _keep(self, sandbox: RunningSandbox, wanted: CaptureCheckpoint) -> KeptState:
        sessions = self._sessions.get(wanted.request, NO_SESSIONS)
        files = await sandbox.checkpoint(files_only=wanted.request in self._files_only, beside=sessions.beside)
        kept = KeptState(files=files, sessions=replace(sessions, beside=()), whose=self._whose[sandbox.id])
        try:
            await sessions.settled()
            if self._remembered is not None:
                self._remembered.note_kept(wanted.checkpoint, kept)
        except BackendError:
            await sandbox.forget(files)
            raise
        return kept

    async def _fork(self, wanted: ForkBranch) -> None:
        origin = self._sandboxes[wanted.sandbox]
        try:
            branch = await self._forked(origin, wanted)
        except Exception as error:  # noqa: BLE001 told to who asked
            self._note_failure(wanted.request, error)
            self._whose.pop(wanted.branch, None)
            self._feed(ForkFailed(**self._about(wanted.request), reason=str(error)))
        else:
            await self._have(branch)
            self._feed(BranchForked(**self._about(wanted.request)))
            if wanted.branch in self._fresh and self.version_of(wanted.branch) is not None:
                self._change(wanted.branch)
        finally:
            self._fresh.discard(wanted.branch)

    async def _forked(self, origin: RunningSandbox, wanted: ForkBranch) -> RunningSandbox:
        sessions, kept = self._sessions.get(wanted.request, NO_SESSIONS), self._kept_as_it_is()
        if kept is not None:
            branch = await origin.fork(kept, self._identity(wanted.branch, self._whose[origin.id]))
        else:
            branch = await self._fork_from_now(origin, wanted)
        try:
            await sessions.settled()
        except BackendError:
            await branch.aclose()
            raise
        return branch

    def _identity(self, sandbox: SandboxId, whose: SandboxId) -> Identity:
        """Return what a sandbox that is made from another's state carries.

        Raises:
            BackendError: There is no room to remember it.
        """
        if sandbox in self._fresh:
            whose = sandbox
        elif self._remembered is not None:
            self._remembered.note_carried(sandbox, whose)
        self._whose[sandbox] = whose
        return self._identify(sandbox, whose)

    def _change(self, branch: SandboxId | None) -> None:
        """Have a state, a branch's or the canonical one, be another from now on."""
        request = self._new_request()
        sandbox = self.sandbox(branch).id
        version = self._new_version()
        self._feed(RunRequested(**self._about(request), effect=Effect.WRITE, version=version, branch=branch))
        self._feed(RunEnded(**self._about(request), sandbox=sandbox))

    def _kept_as_it_is(self) -> Checkpoint | None:
        """Return a checkpoint of the very state that is canonical now, if there is one."""
        view = self._machine.view()
        return next(
            (self._checkpoints[name].files for name, version in view.checkpoints if version == view.version), None
        )

    async def _fork_from_now(self, origin: RunningSandbox, wanted: ForkBranch) -> RunningSandbox:
        beside = self._sessions.get(wanted.request, NO_SESSIONS).beside
        kept = await origin.checkpoint(files_only=wanted.request in self._files_only, beside=beside)
        try:
            if kept.left_out and self._remembered is not None:
                self._remembered.note_forked_beside(wanted.branch)
            branch = await origin.fork(kept, self._identity(wanted.branch, self._whose[origin.id]))
        finally:
            await origin.forget(kept)
        if kept.left_out:
            self._beside.add(wanted.branch)
            if kept.capture is Capture.COPIED:  # then nobody can tell later whether more was written
                self._written_beside.add(wanted.branch)
        return branch

    async def _stage(self, wanted: StageRollback) -> None:
        try:
            kept = self._checkpoints[wanted.checkpoint]
            whose = kept.whose or self._whose[self._canonical.id]
            staged = await self._canonical.fork(kept.files, self._identity(wanted.staged, whose))
        except Exception as error:  # noqa: BLE001 told to who asked
            self._note_failure(wanted.request, error)
            self._whose.pop(wanted.staged, None)
            self._feed(StageFailed(**self._about(wanted.request), reason=str(error)))
        else:
            await self._have(staged)
            self._staged[wanted.staged] = wanted.checkpoint
            self._feed(StateStaged(**self._about(wanted.request)))
            if wanted.staged in self._fresh and self._canonical.id == wanted.staged:
                self._change(None)
        finally:
            self._fresh.discard(wanted.staged)

    async def _have(self, sandbox: RunningSandbox) -> None:
        """Note a sandbox that was made; it may be garbage by now."""
        if sandbox.id in self._unwanted:
            self._unwanted.discard(sandbox.id)
            await sandbox.aclose()
        else:
            self._sandboxes[sandbox.id] = sandbox

    async def _collect(self, garbage: CollectGarbage) -> None:
        await self._settle_swap()
        for name in garbage.sandboxes:
            self._beside.discard(name)
            self._written_beside.discard(name)
            self._staged.pop(name, None)
            self._whose.pop(name, None)
            sandbox = self._sandboxes.pop(name, None)
            if sandbox is None:
                self._unwanted.add(name)
            else:
                await sandbox.aclose()
        for name in garbage.checkpoints:
            kept = self._checkpoints.pop(name, None)
            if kept is not None:
                await self._canonical.forget(kept.files)
        self._feed(
            GarbageCollected(
                at_s=self._clock.monotonic_s(),
                lineage=self._name,
                sandboxes=garbage.sandboxes,
                checkpoints=garbage.checkpoints,
            )
        )
