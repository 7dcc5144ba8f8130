"""A journal without what recovery does not need: a sandbox runs a thousand commands between two checkpoints.

Runs are left out (but those that name an action, which a commit compares), and so is what was refused. What a run leaves behind is a version, and nobody
needs to know it before something is made of the state that it names; so the one run that
brings a state to its version is written right before what builds on it. A journal that was
abridged is read by `recover` as any other, and tells the same: the canonical sandbox, what is
kept of it and at which versions, and what is garbage.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.core.actions import Effect
from headstart.core.transaction.events import (
    CheckpointCaptured,
    CheckpointRequested,
    LineageId,
    LineageOpened,
    RequestId,
    RunEnded,
    RunRequested,
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
from headstart.ids import SandboxId

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
            case RunRequested(action=None):
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
    """Return the shortest journal of a lineage at rest, whose branches have ended: it forgets how things came about."""
    first = view.checkpoints[0][1] if view.checkpoints else view.version
    events: list[TransactionEvent] = [LineageOpened(at_s=at_s, lineage=view.id, sandbox=sandbox, version=first)]
    version = first
    for checkpoint, kept in view.checkpoints:
        if kept != version:
            events += _run_in(view.id, sandbox, None, kept, at_s)
            version = kept
        request = RequestId(f"kept-{checkpoint}")
        events.append(CheckpointRequested(at_s=at_s, lineage=view.id, request=request, checkpoint=checkpoint))
        events.append(CheckpointCaptured(at_s=at_s, lineage=view.id, request=request))
    if view.version != version:
        events += _run_in(view.id, sandbox, None, view.version, at_s)
    return events


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
