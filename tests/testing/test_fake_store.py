"""The fake's stores keep what the contract says of stores, over the ends of backends and of machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from headstart.backends.contract import Command, FileStore, Identity, Limits, Prepared, Template
from headstart.errors import BackendError
from headstart.ids import SandboxId
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_store import FakeDisk

pytestmark = pytest.mark.anyio

LIMITS = Limits()
ONE, OTHER, THIRD = (Identity(sandbox=SandboxId(name)) for name in ("one", "other", "third"))


@asynccontextmanager
async def opened(disk: FakeDisk) -> AsyncGenerator[tuple[FakeBackend, FileStore, Prepared]]:
    async with FakeBackend(disk=disk) as backend:
        prepared = await backend.prepare(Template(name="t", command=Command(argv=("cat",))))
        yield backend, await backend.stores.open("store", limits=LIMITS), prepared


async def test_files_checkpoints_and_forks_outlive_the_backend() -> None:
    disk = FakeDisk()
    async with opened(disk) as (_, store, prepared):
        box = await store.start(prepared, ONE)
        await box.files.write("a", b"1")
        kept = await box.checkpoint()
        await box.files.write("a", b"2")
        await (await box.fork(kept, OTHER)).files.write("b", b"")
    async with opened(disk) as (backend, store, prepared):
        assert set(store.sandboxes) == {ONE.sandbox, OTHER.sandbox}
        assert [checkpoint.id for checkpoint in store.checkpoints] == [kept.id]
        assert backend.live == frozenset()
        box, fork = await store.start(prepared, ONE), await store.start(prepared, OTHER)
        assert await box.files.read("a") == b"2"
        assert [info.name for info in await fork.files.list()] == ["a", "b"]
        back = await box.fork(kept, THIRD)
        assert await back.files.read("a") == b"1"
        assert (await box.checkpoint()).id != kept.id


async def test_a_crash_in_the_middle_keeps_what_was_written() -> None:
    disk = FakeDisk()
    with anyio.move_on_after(5) as service:
        async with opened(disk) as (_, store, prepared):
            await (await store.start(prepared, ONE)).files.write("a", b"1")
            service.cancel()
            await anyio.sleep_forever()
    async with opened(disk) as (_, store, prepared):
        assert await (await store.start(prepared, ONE)).files.read("a") == b"1"


async def test_a_sandbox_that_was_lost_is_started_again_on_its_files() -> None:
    async with opened(FakeDisk()) as (backend, store, prepared):
        lost = await store.start(prepared, ONE)
        await lost.files.write("a", b"1")
        with pytest.raises(BackendError, match="runs already"):
            await store.start(prepared, ONE)
        backend.lose(ONE.sandbox)
        box = await store.start(prepared, ONE)
        await lost.aclose()
        assert await box.files.read("a") == b"1"


async def test_closing_deletes_and_stopping_keeps() -> None:
    async with opened(FakeDisk()) as (_, store, prepared):
        closed, stopped = await store.start(prepared, ONE), await store.start(prepared, OTHER)
        await closed.files.write("a", b"1")
        await stopped.files.write("a", b"1")
        await closed.aclose()
        await store.stop(OTHER.sandbox)
        await stopped.aclose()
        assert list(store.sandboxes) == [OTHER.sandbox]
        assert await (await store.start(prepared, ONE)).files.list() == []
        assert await (await store.start(prepared, OTHER)).files.read("a") == b"1"


async def test_only_what_is_wanted_is_kept() -> None:
    async with opened(FakeDisk()) as (backend, store, prepared):
        box = await store.start(prepared, ONE)
        first, second = await box.checkpoint(), await box.checkpoint()
        await box.fork(first, OTHER)
        await store.keep_only([OTHER.sandbox], [second.id])
        assert list(store.sandboxes) == [OTHER.sandbox]
        assert [checkpoint.id for checkpoint in store.checkpoints] == [second.id]
        assert backend.live == {OTHER.sandbox}


async def test_a_store_is_open_once_and_can_be_damaged_and_removed() -> None:
    disk = FakeDisk()
    async with opened(disk) as (_, store, prepared), FakeBackend(disk=disk) as other:
        for refused in (other.stores.open("store", limits=LIMITS), other.stores.remove("store")):
            with pytest.raises(BackendError, match="open already"):
                await refused
        await store.start(prepared, ONE)
        await store.aclose()
        with pytest.raises(BackendError, match="closed"):
            await store.start(prepared, ONE)
        disk.damaged["store"] = "layer 3 is missing"
        with pytest.raises(BackendError, match="layer 3 is missing"):
            await other.stores.open("store", limits=LIMITS)
        await other.stores.remove("store")
        assert await other.stores.names() == []
        anew = await other.stores.open("store", limits=LIMITS)
        assert anew.sandboxes == []
        await anew.remove()
        assert await other.stores.names() == []


async def test_after_a_power_cut_what_was_flushed_is_there() -> None:
    disk = FakeDisk()
    async with opened(disk) as (_, store, prepared):
        box = await store.start(prepared, ONE)
        await box.files.write("a", b"1")
        await store.flush()
        await box.files.write("a", b"2")
        await box.checkpoint()
    disk.lose_power()
    assert disk.flushes == ["store"]
    async with opened(disk) as (_, store, prepared):
        assert store.checkpoints == []
        assert await (await store.start(prepared, ONE)).files.read("a") == b"1"


async def test_what_cannot_name_a_store_is_refused() -> None:
    async with FakeBackend() as backend:
        for name in ("", "..", "a/b"):
            with pytest.raises(BackendError, match="cannot name"):
                await backend.stores.open(name, limits=LIMITS)
