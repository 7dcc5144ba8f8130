"""Files that outlive the service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from headstart.backends.contract.files import Checkpoint
from headstart.backends.contract.sandbox import Prepared, RunningSandbox
from headstart.backends.contract.template import Identity, Limits
from headstart.ids import CheckpointId, SandboxId

__all__ = ["FileStore", "FileStores"]


class FileStore(Protocol):
    """A lineage's files, on disk: they outlive the service; what runs on them ends with it.

    A sandbox of a store is as any other, but its `aclose` removes its files, too, and its forks live in the same
    store. At any moment every process may be killed, and nothing that was written is lost; when the machine
    goes, what was written until the last `flush` is there.
    """

    @property
    def name(self) -> str: ...

    @property
    def sandboxes(self) -> Sequence[SandboxId]:
        """Whose files are there, whether they run or not."""
        ...

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """What is kept; a sandbox of the store can be forked at each."""
        ...

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        """Start a sandbox: a new one, with no files yet, or one that the store knows, with its files as they were.

        Raises:
            BackendError: It runs already; its files were made for a template with other private folders;
                it could not be started. Its files are what they were.
        """
        ...

    async def stop(self, sandbox: SandboxId) -> None:
        """End a sandbox and keep its files; `start` goes on with them. One that does not run is fine."""
        ...

    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        """End and delete everything else: what a crash has left, say."""
        ...

    async def flush(self) -> None:
        """Return when what was written until now is on the disk.

        Raises:
            BackendError: It cannot be written.
        """
        ...

    async def aclose(self) -> None:
        """End what runs, and keep the files. Idempotent; completes under cancellation."""
        ...

    async def remove(self) -> None:
        """End what runs, and delete everything. Idempotent; completes under cancellation."""
        ...


class FileStores(Protocol):
    """The stores of a backend, by name. A name is a file's: letters, digits, `.`, `_`, `-`."""

    async def names(self) -> Sequence[str]:
        """List those that there are, open or not."""
        ...

    async def open(self, name: str, *, limits: Limits) -> FileStore:
        """Open what an earlier service has left, or make it. What it may hold is `limits.scratch_bytes`, when made.

        Raises:
            BackendError: Somebody has it open; it was damaged; it cannot be made
                (without `Capabilities.durable`, never).
        """
        ...

    async def remove(self, name: str) -> None:
        """Delete one that is not open, damaged or not. One that is not there is fine.

        Raises:
            BackendError: It is open.
        """
        ...
