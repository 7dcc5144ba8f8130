"""What a user is told of a checkpoint; apart from `lineage`, which clients need not load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headstart.backends.contract import Capture
from headstart.ids import CheckpointId, StateVersion, begins_id

__all__ = ["SandboxCheckpoint", "id_meant", "id_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCheckpoint:
    """A state of a sandbox that is kept.

    Attributes:
        version: The state's; two states that may differ never share one.
        capture: How it came about.
        left_out: What ran and is no part of it, for people: `python3 (41)`.
    """

    id: CheckpointId
    version: StateVersion
    capture: Capture
    left_out: tuple[str, ...] = ()


def id_of(checkpoint: SandboxCheckpoint | str) -> CheckpointId:
    """Return the id of a checkpoint, which may be given by that alone."""
    return CheckpointId(checkpoint) if isinstance(checkpoint, str) else checkpoint.id


def id_meant(said: str, checkpoints: Iterable[SandboxCheckpoint]) -> str:
    """Return the whole id of the one checkpoint that has this beginning; else what was said, which means none of them."""
    found = [each.id for each in checkpoints if begins_id(each.id, said)]
    return found[0] if len(found) == 1 else said
