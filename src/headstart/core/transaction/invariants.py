"""What holds in a lineage after every event, for tests.

`check_state` looks at what is, `check_step` at what one event changed. The five invariants of
speculation are named where they are asserted.
"""

from __future__ import annotations

from collections import Counter

from headstart.core.actions import Effect
from headstart.core.transaction.events import (
    RunEnded,
    RunRequested,
    RuntimeRestarted,
    StateSwapped,
    TransactionEvent,
)
from headstart.core.transaction.parts import CommitTarget, LineageView, Operation, RollbackTarget
from headstart.core.transaction.stages import BranchState, Stage
from headstart.core.transaction.state import LineageState

__all__ = ["check_state", "check_step"]


def check_state(state: LineageState) -> None:
    """Assert that the parts of a lineage agree.

    Raises:
        AssertionError: They do not.
    """
    _check_names(state)
    _check_operation(state)
    _check_runs(state)
    _check_versions(state)


def check_step(before: LineageView, event: TransactionEvent, after: LineageView) -> None:
    """Assert that an event changed the canonical state only if it may, and lost nothing.

    Raises:
        AssertionError: It did more.
    """
    _check_canonical_change(before, event, after)
    _check_origins(before, event, after)
    gone = _things(before) - _things(after)
    collected = {*getattr(event, "sandboxes", ()), *getattr(event, "checkpoints", ())}
    _hold(gone <= collected, f"{gone} vanished without being collected")
    back = {*before.garbage_sandboxes, *before.garbage_checkpoints} & _alive(after)
    _hold(not back, f"{back} was garbage and is used again")


def _check_names(state: LineageState) -> None:
    staged = [state.staged] if state.staged and state.staged not in state.branches else []
    canonical = [] if state.stage is Stage.CLOSED else [state.canonical.sandbox]
    _hold_unique([*canonical, *state.branches, *staged, *state.garbage.sandboxes])
    capturing = [state.capturing] if state.capturing else []
    _hold_unique([*state.checkpoints, *capturing, *state.garbage.checkpoints])
    if state.stage is Stage.CLOSED:
        _hold(not (state.branches or state.checkpoints or state.runs), "something lives in a closed lineage")


def _check_operation(state: LineageState) -> None:
    _hold(
        (state.operation is None) == (state.stage in {Stage.IDLE, Stage.CLOSED}),
        f"stage {state.stage.value}, but the operation is {state.operation}",
    )
    committing = [each for each in state.branches.values() if each.state is BranchState.COMMITTING]
    match state.operation:
        case Operation(target=CommitTarget() as target):
            _hold([each.id for each in committing] == [target.sandbox], f"{committing} commit, not {target.sandbox}")
            same = committing[0].origin == state.canonical.version
            _hold(same, "state identity: a branch is committed whose origin is not the canonical version")
        case Operation(target=RollbackTarget() as target):
            _hold(target.checkpoint in state.checkpoints, f"rollback to {target.checkpoint}, which is not kept")
            _hold(not committing, f"{committing} commit during a rollback")
        case _:
            _hold(not committing, f"{committing} commit, and no commit is in flight")
    _hold(not (state.operation and state.being_forked()), "something is forked during an operation")
    ended = [each.id for each in state.branches.values() if each.state is BranchState.ENDED]
    _hold(not ended, f"{ended} have ended and are still there")


def _check_runs(state: LineageState) -> None:
    canonical = state.runs_in(state.canonical.sandbox)
    _hold(not (canonical and state.operation), "a run is open in the canonical sandbox during an operation")
    changing = any(run.may_change for run in canonical)
    _hold(not (changing and state.being_forked()), "what is being forked is being changed")
    for run in state.runs.values():
        if run.sandbox != state.canonical.sandbox:
            branch = state.branches.get(run.sandbox)
            _hold(branch is not None and branch.state is BranchState.OPEN, f"{run} runs in no open branch")
            _hold(run.effect is not Effect.EXTERNAL, "side-effect control: an EXTERNAL run is open in a branch")


def _check_versions(state: LineageState) -> None:
    """A branch that its own runs have changed shares its version with nothing."""
    touched = [each for each in state.branches.values() if each.version != each.origin]
    others = Counter(version for version in state.checkpoints.values())
    others.update([state.canonical.version, *(each.version for each in state.branches.values())])
    for branch in touched:
        _hold(others[branch.version] == 1, f"state identity: {branch.version} of {branch.id} names two states")
    _hold(len(set(state.checkpoints.values())) == len(state.checkpoints), "two checkpoints hold the same version")


def _check_canonical_change(before: LineageView, event: TransactionEvent, after: LineageView) -> None:
    if (before.sandbox, before.version) == (after.sandbox, after.version) or after.sandbox is None:
        return
    match event:
        case StateSwapped():
            _check_swap(before, after)
        case RunRequested(branch=None) | RuntimeRestarted():
            _hold(after.sandbox == before.sandbox, "a run changed which sandbox is canonical")
            _hold(after.version == event.version, "the canonical state's version is not the one that came with it")
        case RunEnded(changed=True):
            _hold(event.sandbox == before.sandbox == after.sandbox, "branch isolation: a branch's run changed it")
        case _:
            raise AssertionError(f"deterministic fallback: {type(event).__name__} changed the canonical state")


def _check_origins(before: LineageView, event: TransactionEvent, after: LineageView) -> None:
    """A branch has the origin that it was forked from; a restart moves it along with the canonical state alone."""
    origins = {each.id: each.origin for each in before.branches}
    for branch in after.branches:
        origin = origins.get(branch.id, branch.origin)
        moved_along = isinstance(event, RuntimeRestarted) and (origin, branch.origin) == (before.version, after.version)
        _hold(branch.origin == origin or moved_along, f"state identity: {branch.id} has got another origin")


def _check_swap(before: LineageView, after: LineageView) -> None:
    _hold(before.stage is Stage.SWAPPING, "swapped before it was verified")
    _hold(before.sandbox in after.garbage_sandboxes, "the old canonical sandbox is not collected")
    committed = [each for each in before.branches if each.state is BranchState.COMMITTING]
    for branch in committed:
        _hold(branch.origin == before.version, "state identity: the origin was not the canonical version")
        _hold((branch.id, branch.version) == (after.sandbox, after.version), "something else was committed")
    if not committed:
        _hold(after.version in dict(before.checkpoints).values(), "rolled back to what no checkpoint holds")


def _things(view: LineageView) -> set[str]:
    made = [each for each in (view.staged, view.capturing) if each]
    return {*_alive(view), *made, *view.garbage_sandboxes, *view.garbage_checkpoints}


def _alive(view: LineageView) -> set[str]:
    canonical = [view.sandbox] if view.sandbox else []
    return {*canonical, *(each.id for each in view.branches), *(checkpoint for checkpoint, _ in view.checkpoints)}


def _hold_unique(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    _hold(not twice, f"{twice} is two things at once")


def _hold(truth: object, otherwise: str) -> None:
    if not truth:
        raise AssertionError(otherwise)
