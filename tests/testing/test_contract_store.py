"""The contract suite notices stores that break their promises: mutants of the local backend's."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headstart.backends.contract import (
    Backend,
    Checkpoint,
    FileStore,
    FileStores,
    Identity,
    Limits,
    Prepared,
    RunningSandbox,
)
from headstart.backends.local import open_local_backend
from headstart.errors import BackendUnavailable
from headstart.ids import CheckpointId, SandboxId
from headstart.testing.contract import ContractViolation, NotClaimed, Subject

from .test_contract import Mutant, MutantSandbox, named

pytestmark = pytest.mark.anyio


class MutantStore:
    """Delegates everything; mutants override what they get wrong."""

    def __init__(self, inner: FileStore) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def sandboxes(self) -> Sequence[SandboxId]:
        return self.inner.sandboxes

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        return self.inner.checkpoints

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return await self.inner.start(prepared, identity, background=background)

    async def stop(self, sandbox: SandboxId) -> None:
        await self.inner.stop(sandbox)

    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        await self.inner.keep_only(sandboxes, checkpoints)

    async def flush(self) -> None:
        await self.inner.flush()

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def remove(self) -> None:
        await self.inner.remove()


class MutantStores:
    """Delegates everything; mutants override what they get wrong."""

    def __init__(self, inner: FileStores, store: Callable[[FileStore], FileStore] = MutantStore) -> None:
        self.inner = inner
        self.store = store

    async def names(self) -> Sequence[str]:
        return await self.inner.names()

    async def open(self, name: str, *, limits: Limits) -> FileStore:
        return self.store(await self.inner.open(name, limits=limits))

    async def remove(self, name: str) -> None:
        await self.inner.remove(name)


class Forgets(MutantStores):
    numbers = itertools.count(1)

    async def open(self, name: str, *, limits: Limits) -> FileStore:
        return await super().open(f"{name}-{next(self.numbers)}", limits=limits)


class OpensTwice(MutantStores):
    known: FileStore | None = None

    async def open(self, name: str, *, limits: Limits) -> FileStore:
        self.known = self.known or await super().open(name, limits=limits)
        return self.known


class TakesAnyName(MutantStores):
    async def open(self, name: str, *, limits: Limits) -> FileStore:
        return await super().open("".join(letter for letter in name if letter.isalnum()) or "x", limits=limits)


class ListsNoCheckpoints(MutantStore):
    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        return ()


class BeginsAnew(MutantStore):
    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        if identity.sandbox in self.sandboxes:
            await self.inner.keep_only([name for name in self.sandboxes if name != identity.sandbox], [])
        return await super().start(prepared, identity, background=background)


class RunsTwice(MutantStore):
    known: RunningSandbox | None = None

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        self.known = self.known or await super().start(prepared, identity, background=background)
        return self.known


class OnlyStops(MutantSandbox):
    def __init__(self, inner: RunningSandbox, store: FileStore) -> None:
        super().__init__(inner)
        self.store = store

    async def aclose(self) -> None:
        await self.store.stop(self.id)


class KeepsWhatIsClosed(MutantStore):
    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        return OnlyStops(await super().start(prepared, identity, background=background), self.inner)


class LosesWhatIsStopped(MutantStore):
    async def stop(self, sandbox: SandboxId) -> None:
        await self.inner.keep_only([name for name in self.sandboxes if name != sandbox], [])


class KeepsEverything(MutantStore):
    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        """Nothing is lost, says its author."""


class LosesAllCheckpoints(MutantStore):
    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        await self.inner.keep_only(sandboxes, ())


class RemovesNothing(MutantStore):
    async def remove(self) -> None:
        await self.aclose()


MUTANTS: list[tuple[Callable[[FileStore], FileStore], str, str]] = [
    (BeginsAnew, "files of a store are there", "its files are what they were"),
    (ListsNoCheckpoints, "checkpoints and forks of a store", "both are kept"),
    (KeepsWhatIsClosed, "closing a sandbox of a store", "one is there"),
    (LosesWhatIsStopped, "closing a sandbox of a store", "one is there"),
    (RunsTwice, "a sandbox of a store runs once", "starting it again is a BackendError"),
    (KeepsEverything, "a store keeps only", "using one that was not kept"),
    (LosesAllCheckpoints, "a store keeps only", "nor checkpoint"),
    (RemovesNothing, "a store is open once", "it is gone"),
]

STORES_MUTANTS: list[tuple[Callable[[FileStores], FileStores], str, str]] = [
    (Forgets, "files of a store are there", "it is listed"),
    (OpensTwice, "a store is open once", "opening it again is a BackendError"),
    (TakesAnyName, "what cannot name a store", "'' is a BackendError"),
]


class StoringMutant(Mutant):
    def __init__(self, inner: Backend, stores: FileStores) -> None:
        super().__init__(inner)
        self.wrong = stores

    @property
    def stores(self) -> FileStores:
        return self.wrong


def storing(make: Callable[[FileStores], FileStores]) -> Subject:
    @asynccontextmanager
    async def opened(state: Path) -> AsyncGenerator[Backend]:
        async with open_local_backend(state) as backend:
            yield StoringMutant(backend, make(backend.stores))

    return Subject(open=opened)


async def notices(subject: Subject, part: str, promise: str, folder: Path) -> None:
    try:
        with pytest.raises(ContractViolation, match=promise):
            await named(part)(subject, folder)
    except (BackendUnavailable, NotClaimed) as gap:
        pytest.skip(f"the local backend cannot do this here: {gap}")


@pytest.mark.parametrize(("make", "part", "promise"), MUTANTS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_broken_promise_of_a_store_is_noticed(
    make: Callable[[FileStore], FileStore], part: str, promise: str, tmp_path: Path
) -> None:
    await notices(storing(lambda stores: MutantStores(stores, make)), part, promise, tmp_path)


@pytest.mark.parametrize(("make", "part", "promise"), STORES_MUTANTS, ids=lambda each: getattr(each, "__name__", ""))
async def test_a_broken_promise_about_stores_is_noticed(
    make: Callable[[FileStores], FileStores], part: str, promise: str, tmp_path: Path
) -> None:
    await notices(storing(make), part, promise, tmp_path)


async def test_an_honest_store_passes(tmp_path: Path) -> None:
    try:
        await named("a store keeps only")(storing(MutantStores), tmp_path)
    except (BackendUnavailable, NotClaimed) as gap:
        pytest.skip(f"the local backend cannot do this here: {gap}")
