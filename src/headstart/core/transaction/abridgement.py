"""A journal without what recovery does not need: a sandbox runs a thousand commands between two checkpoints.

Runs are left out (but those that name an action, which a commit compares), and so is what was refused. What a run leaves behind is a version, and nobody
needs to know it before something is made of the state that it names; so the one run that
brings a state to its version is written right before what builds on it. A run that begins where a
branch was forked is written at once: from then on the branch conflicts, also after a crash. A journal that was
abridged is read by `recover` as any other, and tells the same: the canonical sandbox, what is
kept of it and at which versions, which branches there are and from where, and what is garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypedDict

from headstart.core.actions import Effect
from headstart.core.transaction.events import (
    BranchForked,
    CheckpointCaptured,
    CheckpointRequested,
    ForkRequested,
    GarbageCollected,
    LineageId,
    LineageOpened,
    RequestId,
    RollbackRequested,
    RunEnded,
    RunRequested,
    StateStaged,
    StateSwapped,
    StateVerified,
    StateVersion,
    TransactionEvent,
)
from headstart.core.transaction.instructions import (
    RefuseTransaction,
    ReportCheckpoint,
    ReportConflict,
    TransactionInstruction,
)
from headstart.core.transaction.parts import LineageView
from headstart.ids import CheckpointId, SandboxId

__all__ = ["Abridgement", "retold"]


class Abridgement:
    """What is to be written of a lineage's events, in their order.

    Args:
        told: The lineage as what is written so far tells it.
    """

    def __init__(self, told: LineageView) -> None:
        self._versions: dict[SandboxId | None, StateVersion] = {}
        self._left_out: dict[RequestId, RunRequested] = {}
        self._note(told)

    def written(
        self,
        event: TransactionEvent,
        *,
        before: LineageView,
        after: LineageView,
        instructions: Sequence[TransactionInstruction],
    ) -> list[TransactionEvent]:
        """Return what to write of an event that was handled; before what it causes is done.

        Args:
            event: What has happened.
            before: The lineage when it did.
            after: The lineage since.
            instructions: What came out of it.
        """
        begun: list[TransactionEvent] = []
        match event:
            case RunRequested(action=None) if not _begins_at_an_origin(event, before):
                self._left_out[event.request] = event
                return []
            case RunEnded(request=request) if request in self._left_out:
                begun.append(self._left_out.pop(request))
                if not instructions:  # else it was seen to change what it should only read
                    return []
            case _ if _changes_nothing(event, instructions):
                return []
            case _:
                begun += self._reads_in_flight()
        runs = self._runs_until(before, event.at_s)
        self._note(after)
        return [*runs, *begun, event]

    def _reads_in_flight(self) -> list[RunRequested]:
        """What is forked beside them is discarded if they turn out to have changed something: they are told from now on."""
        reads = [run for run in self._left_out.values() if run.effect is Effect.READ]
        for run in reads:
            del self._left_out[run.request]
        return reads

    def _runs_until(self, view: LineageView, at_s: float) -> list[TransactionEvent]:
        states: list[tuple[SandboxId | None, StateVersion]] = [(None, view.version)]
        states += [(branch.id, branch.version) for branch in view.branches]
        return [
            each
            for branch, version in states
            if self._versions.get(branch, version) != version
            for each in _run(view, branch, version, at_s)
        ]

    def _note(self, view: LineageView) -> None:
        self._versions = {None: view.version, **{branch.id: branch.version for branch in view.branches}}


def retold(view: LineageView, sandbox: SandboxId, *, at_s: float) -> list[TransactionEvent]:
    """Return the shortest journal of a lineage that has just been restarted: it forgets how things came about."""
    stops: list[tuple[StateVersion, CheckpointId | None]] = [(version, name) for name, version in view.checkpoints]
    known = {view.version, *dict(view.checkpoints).values()}
    stops += [(origin, None) for origin in dict.fromkeys(each.origin for each in view.branches) if origin not in known]
    stops.append((view.version, None))
    story = _Story(view, sandbox, versions=[version for version, _ in stops], at_s=at_s)
    for version, checkpoint in stops:
        story.come_to(version)
        if checkpoint is not None:
            story.keep(checkpoint)
        story.fork()
    return story.events


class _About(TypedDict):
    at_s: float
    lineage: LineageId
    request: RequestId


class _Story:
    """A lineage's events, made up: runs come to versions that are new, rollbacks to those that were kept."""

    def __init__(self, view: LineageView, sandbox: SandboxId, *, versions: Sequence[StateVersion], at_s: float) -> None:
        self._lineage = view.id
        self._at_s = at_s
        self._kept: dict[StateVersion, CheckpointId] = {}
        self._unforked = list(view.branches)
        steps = [version for before, version in pairwise(versions) if version != before]
        self._rollbacks_left = len(steps) - len(set(steps) - {versions[0]})
        self._last = sandbox
        self._version, self._sandbox = versions[0], self._next_sandbox()
        opened = LineageOpened(at_s=at_s, lineage=view.id, sandbox=self._sandbox, version=self._version)
        self.events: list[TransactionEvent] = [opened]

    def _next_sandbox(self) -> SandboxId:
        """Return the name of the one that is canonical until the next rollback; the last one's is known."""
        left = self._rollbacks_left
        return SandboxId(f"{self._last}-{left}-rollbacks-before") if left else self._last

    def come_to(self, version: StateVersion) -> None:
        if version == self._version:
            return
        if version in self._kept:
            self._roll_back(self._kept[version])
        else:
            self.events += _run_in(self._lineage, self._sandbox, None, version, self._at_s)
        self._version = version

    def keep(self, checkpoint: CheckpointId) -> None:
        self._kept.setdefault(self._version, checkpoint)
        about: _About = {"at_s": self._at_s, "lineage": self._lineage, "request": RequestId(f"kept-{checkpoint}")}
        self.events += [CheckpointRequested(**about, checkpoint=checkpoint), CheckpointCaptured(**about)]

    def fork(self) -> None:
        """Fork what has its origin here, and have it come to its version."""
        for branch in [each for each in self._unforked if each.origin == self._version]:
            self._unforked.remove(branch)
            about: _About = {"at_s": self._at_s, "lineage": self._lineage, "request": RequestId(f"fork-{branch.id}")}
            self.events += [ForkRequested(**about, branch=branch.id), BranchForked(**about)]
            if branch.version != branch.origin:
                self.events += _run_in(self._lineage, branch.id, branch.id, branch.version, self._at_s)

    def _roll_back(self, to: CheckpointId) -> None:
        replaced = self._sandbox
        self._rollbacks_left -= 1
        self._sandbox = self._next_sandbox()
        request = RequestId(f"back-{self._rollbacks_left}")
        about: _About = {"at_s": self._at_s, "lineage": self._lineage, "request": request}
        self.events += [
            RollbackRequested(**about, checkpoint=to, staged=self._sandbox),
            StateStaged(**about),
            StateVerified(**about),
            StateSwapped(**about),
            GarbageCollected(at_s=self._at_s, lineage=self._lineage, sandboxes=(replaced,), checkpoints=()),
        ]


def _begins_at_an_origin(event: RunRequested, before: LineageView) -> bool:
    return event.branch is None and any(branch.origin == before.version for branch in before.branches)


def _changes_nothing(event: TransactionEvent, instructions: Sequence[TransactionInstruction]) -> bool:
    match list(instructions):
        case [RefuseTransaction() | ReportConflict()]:
            return True
        case [ReportCheckpoint()]:
            return isinstance(event, CheckpointRequested)  # that very state is kept already
        case _:
            return False


def _run(
    view: LineageView, branch: SandboxId | None, version: StateVersion, at_s: float
) -> tuple[RunRequested, RunEnded] | tuple[()]:
    sandbox = branch or view.sandbox
    return () if sandbox is None else _run_in(view.id, sandbox, branch, version, at_s)


def _run_in(
    lineage: LineageId, sandbox: SandboxId, branch: SandboxId | None, version: StateVersion, at_s: float
) -> tuple[RunRequested, RunEnded]:
    request = RequestId(f"run-{version}")
    begun = RunRequested(
        at_s=at_s, lineage=lineage, request=request, effect=Effect.WRITE, version=version, branch=branch
    )
    return begun, RunEnded(at_s=at_s, lineage=lineage, request=request, sandbox=sandbox)
