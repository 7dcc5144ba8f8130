"""What a lineage and a branch can go through, as tables.

A lineage does one operation on its canonical state at a time::

           ┌─captured, not captured, unchanged── capturing ◄──capture begun──┐
           ▼                                                                 │
         idle ──stage begun──► staging ──staged──► verifying ──verified──► swapping
           ▲                      │                    │                     │  │
           ├───────failed─────────┴────────────────────┴─────────────────────┘  │
           └───────────────────────────────swapped──────────────────────────────┘

Only `swapped` makes another state canonical. From everywhere, `restarted` leads to idle and
`closed` to closed, which nothing leaves.

A branch::

    forking ──forked──► open ──commit begun──► committing ──committed──► ended
       │  │               └──discarded, exited──►┐   └──commit failed──►┐
       │  └──fork failed──────────────────────────────────────────────► ended
       └──discarded──► doomed ──forked, fork failed──────────────────► ended

A doomed branch was discarded while it was being made: it can be collected only when the fork
has ended. A branch that exits while it is forked or committed is dealt with by the failure
that the runtime reports of that act. `lost` (restarted, closed) ends it from everywhere; `kept`
(restarted, and it is still there) leaves it open, or opens it again: its commit did not happen.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

__all__ = ["BranchHappening", "BranchState", "Happening", "Stage", "next_branch_state", "next_stage"]


class Stage(Enum):
    """Where a lineage's operation on its canonical state is."""

    IDLE = "idle"
    CAPTURING = "capturing"
    STAGING = "staging"
    VERIFYING = "verifying"
    SWAPPING = "swapping"
    CLOSED = "closed"


class Happening(Enum):
    """What can happen to an operation."""

    CAPTURE_BEGUN = "capture begun"
    CAPTURED = "captured"
    NOT_CAPTURED = "not captured"
    UNCHANGED = "unchanged"
    STAGE_BEGUN = "stage begun"
    STAGED = "staged"
    VERIFIED = "verified"
    SWAPPED = "swapped"
    FAILED = "failed"
    RESTARTED = "restarted"
    CLOSED = "closed"


class BranchState(Enum):
    """Where a branch is in its life."""

    FORKING = "forking"
    DOOMED = "doomed"
    """Discarded while it is being made."""
    OPEN = "open"
    COMMITTING = "committing"
    ENDED = "ended"


class BranchHappening(Enum):
    """What can happen to a branch."""

    FORKED = "forked"
    FORK_FAILED = "fork failed"
    DISCARDED = "discarded"
    EXITED = "exited"
    COMMIT_BEGUN = "commit begun"
    COMMIT_FAILED = "commit failed"
    COMMITTED = "committed"
    KEPT = "kept"
    LOST = "lost"


_S, _H = Stage, Happening
_WORKING: Final = (_S.CAPTURING, _S.STAGING, _S.VERIFYING, _S.SWAPPING)

_STAGES: Final[dict[tuple[Stage, Happening], Stage]] = {
    (_S.IDLE, _H.CAPTURE_BEGUN): _S.CAPTURING,
    (_S.IDLE, _H.STAGE_BEGUN): _S.STAGING,
    (_S.CAPTURING, _H.CAPTURED): _S.IDLE,
    (_S.CAPTURING, _H.NOT_CAPTURED): _S.IDLE,
    (_S.CAPTURING, _H.UNCHANGED): _S.IDLE,
    (_S.STAGING, _H.STAGED): _S.VERIFYING,
    (_S.STAGING, _H.FAILED): _S.IDLE,
    (_S.VERIFYING, _H.VERIFIED): _S.SWAPPING,
    (_S.VERIFYING, _H.FAILED): _S.IDLE,
    (_S.SWAPPING, _H.SWAPPED): _S.IDLE,
    (_S.SWAPPING, _H.FAILED): _S.IDLE,
    **{(stage, _H.RESTARTED): _S.IDLE for stage in (_S.IDLE, *_WORKING)},
    **{(stage, _H.CLOSED): _S.CLOSED for stage in (_S.IDLE, *_WORKING)},
}

_B, _T = BranchState, BranchHappening
_ALIVE: Final = (_B.FORKING, _B.DOOMED, _B.OPEN, _B.COMMITTING)

_BRANCHES: Final[dict[tuple[BranchState, BranchHappening], BranchState]] = {
    (_B.FORKING, _T.FORKED): _B.OPEN,
    (_B.FORKING, _T.FORK_FAILED): _B.ENDED,
    (_B.FORKING, _T.DISCARDED): _B.DOOMED,
    (_B.FORKING, _T.EXITED): _B.FORKING,
    (_B.DOOMED, _T.FORKED): _B.ENDED,
    (_B.DOOMED, _T.FORK_FAILED): _B.ENDED,
    (_B.DOOMED, _T.EXITED): _B.DOOMED,
    (_B.OPEN, _T.DISCARDED): _B.ENDED,
    (_B.OPEN, _T.EXITED): _B.ENDED,
    (_B.OPEN, _T.COMMIT_BEGUN): _B.COMMITTING,
    (_B.COMMITTING, _T.COMMITTED): _B.ENDED,
    (_B.COMMITTING, _T.COMMIT_FAILED): _B.ENDED,
    (_B.COMMITTING, _T.EXITED): _B.COMMITTING,
    **{(state, _T.KEPT): _B.OPEN for state in (_B.OPEN, _B.COMMITTING)},
    **{(state, _T.LOST): _B.ENDED for state in _ALIVE},
}


def next_stage(stage: Stage, happening: Happening) -> Stage | None:
    """Return where it leads, or None if that cannot be.

    >>> next_stage(Stage.VERIFYING, Happening.VERIFIED)
    <Stage.SWAPPING: 'swapping'>
    >>> next_stage(Stage.STAGING, Happening.SWAPPED) is None
    True
    """
    return _STAGES.get((stage, happening))


def next_branch_state(state: BranchState, happening: BranchHappening) -> BranchState | None:
    """Return where it leads, or None if that cannot be."""
    return _BRANCHES.get((state, happening))
