"""What outlives the service of a lineage: its files in a store, and what has happened to them in a journal.

Whoever has lost its power finds what was on the disk. So before the files of a state that was
replaced are deleted, the new one's are there, and so is the line of the journal that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio.to_thread

from headstart.backends.contract import Checkpoint, ForkableProcess, Process, ProcessImage
from headstart.core.transaction import Lineage, TransactionEvent, TransactionInstruction
from headstart.ids import CheckpointId, SandboxId
from headstart.runtime.lineage_journal import Carried, ForkedBeside, KeptAs, LineageJournal

__all__ = ["NO_SESSIONS", "KeptState", "Remembered", "SessionState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """What kept its state between commands, at one moment.

    Attributes:
        shell: The state of a bash session; None if there was none.
        kernel: That of a Python kernel, for as long as the service lives; None if there was none.
        has_lost_kernel: There was one, and its state was not kept, or is not any more.
        unseeded: Libraries in it that go on drawing the same random numbers, also with another identity.
        beside: What runs on, and is kept by that.
    """

    shell: str | None = None
    kernel: ProcessImage | None = None
    has_lost_kernel: bool = False
    unseeded: tuple[str, ...] = ()
    beside: tuple[ForkableProcess | Process, ...] = ()

    async def settled(self) -> None:
        """Return when all of it is kept for sure.

        Raises:
            BackendError: It is not.
        """
        if self.kernel is not None:
            await self.kernel.settled()


NO_SESSIONS = SessionState()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptState:
    """What a checkpoint is made of.

    Attributes:
        files: The backend's part.
        sessions: The rest of it.
        whose: For which sandbox the identity was made that it was kept with; None: not known.
    """

    files: Checkpoint
    sessions: SessionState = NO_SESSIONS
    whose: SandboxId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What outlives the service of one lineage.

    Attributes:
        lineage: As what was written so far tells it; it is the lineage's own from now on.
        kept: Its checkpoints.
        whose: For which sandbox the identity was made that the canonical one carries; None: for itself.
        journal: Gets to know what happens from now on.
        flush: Returns when the files are on the disk.
    """

    lineage: Lineage
    journal: LineageJournal
    flush: Callable[[], Awaitable[None]]
    kept: Mapping[CheckpointId, KeptState] = field(default_factory=dict[CheckpointId, KeptState])
    whose: SandboxId | None = None

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
        sessions = state.sessions
        self.journal.note_beside(
            KeptAs(
                checkpoint=checkpoint,
                kept=state.files.id,
                shell=sessions.shell,
                kernel=sessions.kernel is not None or sessions.has_lost_kernel,
                whose=state.whose,
            )
        )

    def note_carried(self, sandbox: SandboxId, whose: SandboxId) -> None:
        """Write whose identity a sandbox carries, before it is there.

        Raises:
            BackendError: There is no room for it.
        """
        self.journal.note_beside(Carried(sandbox=sandbox, whose=whose))

    def note_forked_beside(self, branch: SandboxId) -> None:
        """Write that something runs on in the canonical sandbox while a branch is forked, before the branch is there.

        Raises:
            BackendError: There is no room for it.
        """
        self.journal.note_beside(ForkedBeside(branch=branch))

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
