"""What outlives the service of a lineage: its files in a store, and what has happened to them in a journal.

Whoever has lost its power finds what was on the disk. So before the files of a state that was
replaced are deleted, the new one's are there, and so is the line of the journal that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio.to_thread

from headstart.backends.contract import Checkpoint
from headstart.core.transaction import Lineage, TransactionEvent, TransactionInstruction
from headstart.ids import CheckpointId
from headstart.runtime.lineage_journal import KeptAs, LineageJournal

__all__ = ["KeptState", "Remembered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """What a checkpoint is made of.

    Attributes:
        files: The backend's part.
        shell: The state of a bash session; None if there was none.
    """

    files: Checkpoint
    shell: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What outlives the service of one lineage.

    Attributes:
        lineage: As what was written so far tells it; it is the lineage's own from now on.
        kept: Its checkpoints.
        journal: Gets to know what happens from now on.
        flush: Returns when the files are on the disk.
    """

    lineage: Lineage
    journal: LineageJournal
    flush: Callable[[], Awaitable[None]]
    kept: Mapping[CheckpointId, KeptState] = field(default_factory=dict[CheckpointId, KeptState])

    def handle(self, event: TransactionEvent) -> list[TransactionInstruction]:
        """Return what is to be done; what has to be known of it after a crash is written by then."""
        before = self.lineage.view()
        instructions = self.lineage.handle(event)
        self.journal.note(event, before=before, after=self.lineage.view(), instructions=instructions)
        return instructions

    def note_kept(self, checkpoint: CheckpointId, state: KeptState) -> None:
        """Write how a checkpoint can be found again, before it counts as captured.

        Raises:
            BackendError: There is no room for it.
        """
        self.journal.note_kept(KeptAs(checkpoint=checkpoint, kept=state.files.id, shell=state.shell))

    async def sync(self) -> None:
        """Return when the journal is on the disk.

        Raises:
            BackendError: It cannot be written.
        """
        await anyio.to_thread.run_sync(self.journal.sync)

    async def settle(self) -> None:
        """Return when all is on the disk, the files first.

        Raises:
            BackendError: It cannot be written.
        """
        await self.flush()
        await self.sync()
