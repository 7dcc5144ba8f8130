"""After a crash: what a journal says is canonical, and what is garbage.

Recovery is no second opinion. The journal is handed to the same machine, event by event, and
then the restart is: an event like any other, which the runtime journals next. So a journal
that is cut after any event has one answer, a crash during recovery gets the same one, and a
second crash reads through the first.

An event that the machine refused with `InvalidTransition` is in the journal too, if it is what
ended the runtime: it comes last, or right before a restart. It changed nothing then and is
passed over now. Anywhere else it says that events are missing, and the journal is not believed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headstart.core.transaction.events import (
    LineageId,
    LineageOpened,
    RequestId,
    RuntimeRestarted,
    StateVersion,
    TransactionEvent,
)
from headstart.core.transaction.instructions import TransactionInstruction
from headstart.core.transaction.lineage import Lineage
from headstart.core.transaction.parts import BranchFate
from headstart.errors import InvalidTransition
from headstart.ids import CheckpointId, SandboxId

__all__ = ["Recovery", "recover", "replayed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What is left of a lineage.

    Attributes:
        lineage: The machine, restarted; it goes on from here.
        canonical: The sandbox that the lineage's name means; None if it was closed.
        version: The canonical state's.
        checkpoints: What can still be rolled back to.
        garbage_sandboxes / garbage_checkpoints: What may still be on the machine and is to be removed.
        branches: How those that are not there any more have ended, of the branches that there were at the crash.
        interrupted: The requests that were in flight and did not happen, or stopped in the middle (runs).
        instructions: What the runtime is to do first.
    """

    lineage: Lineage
    canonical: SandboxId | None
    version: StateVersion
    checkpoints: tuple[CheckpointId, ...]
    garbage_sandboxes: tuple[SandboxId, ...]
    garbage_checkpoints: tuple[CheckpointId, ...]
    branches: tuple[tuple[SandboxId, BranchFate], ...]
    interrupted: tuple[RequestId, ...]
    instructions: tuple[TransactionInstruction, ...]


def recover(events: Iterable[TransactionEvent], restarted: RuntimeRestarted) -> Recovery:
    """Read one lineage's journal, and restart it; events of other lineages are passed over.

    Raises:
        ValueError: The journal does not begin with the lineage's `LineageOpened`.
        InvalidTransition: Events are missing from the journal.
    """
    return _restart(replayed(events, restarted.lineage), restarted)


def replayed(events: Iterable[TransactionEvent], lineage: LineageId) -> Lineage:
    """Read one lineage's journal as far as it goes: what there was, and was in flight, when the runtime ended.

    Raises:
        ValueError: The journal does not begin with the lineage's `LineageOpened`.
        InvalidTransition: Events are missing from the journal.
    """
    mine = [event for event in events if event.lineage == lineage]
    if not mine or not isinstance(mine[0], LineageOpened):
        raise ValueError(f"the journal has no beginning of {lineage}: its first event must be LineageOpened")
    found = Lineage(mine[0])
    for following, event in enumerate(mine[1:], start=2):
        try:
            found.handle(event)
        except InvalidTransition:
            if following < len(mine) and not isinstance(mine[following], RuntimeRestarted):
                raise
    return found


def _restart(lineage: Lineage, restarted: RuntimeRestarted) -> Recovery:
    before = lineage.view()
    interrupted = lineage.in_flight()
    instructions = lineage.handle(restarted)
    after = lineage.view()
    there = {each.id for each in after.branches}
    gone = [each.id for each in before.branches if each.id not in there]
    fates = ((branch, lineage.fate_of(branch) or BranchFate.LOST) for branch in gone)
    return Recovery(
        lineage=lineage,
        canonical=after.sandbox,
        version=after.version,
        checkpoints=tuple(checkpoint for checkpoint, _ in after.checkpoints),
        garbage_sandboxes=after.garbage_sandboxes,
        garbage_checkpoints=after.garbage_checkpoints,
        branches=tuple(fates),
        interrupted=interrupted,
        instructions=tuple(instructions),
    )
