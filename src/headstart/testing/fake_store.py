"""Stores in memory, on a disk that outlives the fake backends that use it.

A backend that is left, or whose task is cancelled, has crashed as far as its stores go: what was in
them is there for the next one on the same disk::

    disk = FakeDisk()
    async with FakeBackend(disk=disk) as backend:
        store = await backend.stores.open("lineage", limits=Limits())
        ...
    async with FakeBackend(disk=disk) as backend:
        store = await backend.stores.open("lineage", limits=Limits())  # with all that was in it
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import anyio
import anyio.lowlevel

from headstart.backends.contract import Checkpoint, Identity, Limits, Prepared, RunningSandbox
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId
from headstart.testing.fake_files import FakeFiles

__all__ = ["FakeDisk", "FakeLineage", "FakeStore", "FakeStores", "Host", "KeptFiles"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptFiles:
    """A checkpoint and its files."""

    checkpoint: Checkpoint
    files: FakeFiles


@dataclass(slots=True)
class FakeLineage:
    """The files of sandboxes that were forked from each other, or are in one store."""

    files: dict[SandboxId, FakeFiles] = field(default_factory=dict[SandboxId, FakeFiles])
    kept: dict[CheckpointId, KeptFiles] = field(default_factory=dict[CheckpointId, KeptFiles])
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    """Of checkpoints; none is used twice."""

    def copy(self) -> FakeLineage:
        """Return it as it is now."""
        kept = {
            name: KeptFiles(checkpoint=each.checkpoint, files=each.files.copy()) for name, each in self.kept.items()
        }
        return FakeLineage({name: files.copy() for name, files in self.files.items()}, kept, self.numbers)


class FakeDisk:
    """What outlives fake backends.

    Attributes:
        stores: What is in each store, by name.
        damaged: Why a store cannot be opened, by name; for a test to fill in.
        flushes: The stores that were flushed, in order.
        open_now: Those that a backend has open.
    """

    def __init__(self) -> None:
        self.stores: dict[str, FakeLineage] = {}
        self.damaged: dict[str, str] = {}
        self.flushes: list[str] = []
        self.open_now: set[str] = set()
        self._flushed: dict[str, FakeLineage] = {}

    def flush(self, name: str) -> None:
        """Have what a store holds now survive `lose_power`."""
        self.flushes.append(name)
        self._flushed[name] = self.stores[name].copy()

    def remove(self, name: str) -> None:
        """Delete a store."""
        for kept in (self.stores, self.damaged, self._flushed):
            kept.pop(name, None)

    def lose_power(self) -> None:
        """Go back to what was flushed; the backends on it must have ended."""
        self.stores = {name: lineage.copy() for name, lineage in self._flushed.items()}


class Host(Protocol):
    """Where the sandboxes of a store run: a `FakeBackend`."""

    async def start_in(
        self, lineage: FakeLineage, prepared: Prepared, identity: Identity, *, background: bool = False
    ) -> RunningSandbox:
        """Start a sandbox on the files that its lineage has for it, or on none."""
        ...

    def runs(self, sandbox: SandboxId) -> bool:
        """Whether it was started, and has not ended."""
        ...

    async def end(self, sandbox: SandboxId, *, keeps_files: bool) -> None:
        """End it; one that does not run is fine."""
        ...


class FakeStores:
    """Implements `FileStores` on a disk."""

    def __init__(self, disk: FakeDisk, host: Host) -> None:
        self._disk = disk
        self._host = host
        self._mine: dict[str, FakeStore] = {}

    async def names(self) -> Sequence[str]:
        """See `FileStores.names`."""
        await anyio.lowlevel.checkpoint()
        return sorted(self._disk.stores)

    async def open(self, name: str, *, limits: Limits) -> FakeStore:  # noqa: ARG002  it has none
        """See `FileStores.open`."""
        await self._check(name)
        if name in self._disk.damaged:
            raise BackendError(f"the store {name} cannot be opened: {self._disk.damaged[name]}", hint="remove it")
        lineage = self._disk.stores.setdefault(name, FakeLineage())
        self._disk.open_now.add(name)
        self._mine[name] = store = FakeStore(name, lineage, self._disk, self._host)
        return store

    async def remove(self, name: str) -> None:
        """See `FileStores.remove`."""
        await self._check(name)
        self._disk.remove(name)

    async def aclose(self) -> None:
        """Let go of all, as a service that dies does."""
        for store in self._mine.values():
            await store.aclose()

    async def _check(self, name: str) -> None:
        await anyio.lowlevel.checkpoint()
        if not _NAME.fullmatch(name):
            raise BackendError(f"{name!r} cannot name a store")
        if name in self._disk.open_now:
            raise BackendError(f"the store {name} is open already", hint="close it first")


class FakeStore:
    """Implements `FileStore`."""

    def __init__(self, name: str, lineage: FakeLineage, disk: FakeDisk, host: Host) -> None:
        self.name = name
        self._lineage = lineage
        self._disk = disk
        self._host = host
        self._is_closed = self._is_removed = False

    @property
    def sandboxes(self) -> Sequence[SandboxId]:
        """See `FileStore.sandboxes`."""
        return list(self._lineage.files)

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """See `FileStore.checkpoints`."""
        return [kept.checkpoint for kept in self._lineage.kept.values()]

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        """See `FileStore.start`."""
        self._check()
        if self._host.runs(identity.sandbox):
            raise BackendError(f"{identity.sandbox} runs already")
        await self.stop(identity.sandbox)
        return await self._host.start_in(self._lineage, prepared, identity, background=background)

    async def stop(self, sandbox: SandboxId) -> None:
        """See `FileStore.stop`."""
        if sandbox in self._lineage.files:
            await self._host.end(sandbox, keeps_files=True)

    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        """See `FileStore.keep_only`."""
        self._check()
        for sandbox in set(self._lineage.files) - set(sandboxes):
            await self._host.end(sandbox, keeps_files=False)
            self._lineage.files.pop(sandbox, None)
        for checkpoint in set(self._lineage.kept) - set(checkpoints):
            del self._lineage.kept[checkpoint]

    async def flush(self) -> None:
        """See `FileStore.flush`."""
        self._check()
        await anyio.lowlevel.checkpoint()
        self._disk.flush(self.name)

    async def aclose(self) -> None:
        """See `FileStore.aclose`."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                for sandbox in list(self._lineage.files):
                    await self._host.end(sandbox, keeps_files=True)
            self._disk.open_now.discard(self.name)

    async def remove(self) -> None:
        """See `FileStore.remove`."""
        await self.aclose()
        if not self._is_removed:
            self._is_removed = True
            self._disk.remove(self.name)

    def _check(self) -> None:
        if self._is_closed:
            raise BackendError(f"the store {self.name} is closed", hint="open it again")
