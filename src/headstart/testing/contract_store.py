"""Promises about stores: whose files outlive a backend, and which do not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from headstart.backends.contract import Backend, Capabilities, FileStore, Identity, Limits, Prepared, RunningSandbox
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId
from headstart.testing.contract_trial import Check, NotClaimed, Trial, check, expect

__all__ = ["STORE_CHECKS"]

STORE: Final = "kept"
LIMITS: Final = Limits(scratch_bytes=64_000_000)
ONE, OTHER, THIRD = (Identity(sandbox=SandboxId(f"sbx_{name}")) for name in ("one", "other", "third"))


def _durable(capabilities: Capabilities) -> bool:
    return capabilities.durable


@asynccontextmanager
async def _service(trial: Trial) -> AsyncGenerator[tuple[Backend, Prepared]]:
    """Open a backend, the next one on the same state, and prepare a template."""
    template = trial.subject.adapt(trial.template())
    if template.preload is not None:
        raise NotClaimed("forks of a zygote have no files in a store")
    async with trial.backend_on("served") as backend:
        prepared = await backend.prepare(template)
        yield backend, prepared
        await prepared.aclose()


@asynccontextmanager
async def _store(trial: Trial) -> AsyncGenerator[tuple[FileStore, Prepared]]:
    """Open the store in a backend of its own, which ends without closing it, as one does that is killed."""
    async with _service(trial) as (backend, prepared):
        yield await backend.stores.open(STORE, limits=LIMITS), prepared


async def _names(sandbox: RunningSandbox) -> Sequence[str]:
    return [info.name for info in await sandbox.files.list()]


async def _expect_refusal(what: str, act: Awaitable[object]) -> None:
    try:
        await act
    except BackendError:
        return
    expect(kept=False, promise=f"{what} is a BackendError", seen="it worked")


@check("files of a store are there for the next service, under the same id", claimed=_durable)
async def outliving(trial: Trial) -> None:
    script = "cd ~; mkdir -p a/b; echo 1 > a/b/c; ln -s a link; echo x > run; chmod 700 run; echo 2 > /tmp/t; rm gone"
    async with _store(trial) as (store, prepared):
        expect(not store.sandboxes and not store.checkpoints, "a new store is empty", store.sandboxes)
        sandbox = await store.start(prepared, ONE)
        expect(await _names(sandbox) == [], "a new sandbox has no files", await _names(sandbox))
        await sandbox.files.write("gone", b"")
        await trial.sh(sandbox, script)
    for written in range(2):
        async with _store(trial) as (store, prepared):
            expect(list(store.sandboxes) == [ONE.sandbox], "it is listed", store.sandboxes)
            sandbox = await store.start(prepared, ONE)
            expect(sandbox.id == ONE.sandbox, "it has its id", sandbox.id)
            seen = await trial.sh(sandbox, "cd ~; cat a/b/c /tmp/t; readlink link; stat -c %a run; ls -A; touch again")
            wanted = b"1\n2\na\n700\n" + b"a\n" + b"again\n" * written + b"link\nrun\n"
            expect(seen.stdout == wanted, "its files are what they were", seen)


@check("checkpoints and forks of a store outlive the service, each with its own files", claimed=_durable)
async def outliving_checkpoints(trial: Trial) -> None:
    async with _store(trial) as (store, prepared):
        sandbox = await store.start(prepared, ONE)
        await sandbox.files.write("a", b"1")
        first = await sandbox.checkpoint()
        await sandbox.files.write("a", b"2")
        await sandbox.files.write("b", b"")
        second = await sandbox.checkpoint()
        await sandbox.files.remove("a")
        fork = await sandbox.fork(first, OTHER)
        await fork.files.write("of the fork", b"")
    async with _store(trial) as (store, prepared):
        expect(set(store.sandboxes) == {ONE.sandbox, OTHER.sandbox}, "both are there", store.sandboxes)
        expect({kept.id for kept in store.checkpoints} == {first.id, second.id}, "both are kept", store.checkpoints)
        sandbox, fork = await store.start(prepared, ONE), await store.start(prepared, OTHER)
        expect(await _names(sandbox) == ["b"], "one is what it was", await _names(sandbox))
        expect(await _names(fork) == ["a", "of the fork"], "so is the other", await _names(fork))
        for kept, wanted in ((first, b"1"), (second, b"2")):
            back = await sandbox.fork(kept, THIRD)
            expect(await back.files.read("a") == wanted, "one can go back", wanted)
            await back.aclose()
        third = await fork.checkpoint()
        expect(third.id not in {first.id, second.id}, "a new checkpoint has a new id", third)
    async with _store(trial) as (store, prepared):
        expect(THIRD.sandbox not in store.sandboxes, "what was closed is gone", store.sandboxes)


@check("closing a sandbox of a store deletes its files, stopping it does not", claimed=_durable)
async def closing(trial: Trial) -> None:
    async with _store(trial) as (store, prepared):
        closed, stopped = await store.start(prepared, ONE), await store.start(prepared, OTHER)
        for sandbox in (closed, stopped):
            await sandbox.files.write("a", b"1")
        await closed.aclose()
        await store.stop(OTHER.sandbox)
        await store.stop(OTHER.sandbox)
        await stopped.aclose()
        expect(list(store.sandboxes) == [OTHER.sandbox], "one is there", store.sandboxes)
        await _expect_refusal("using one that was stopped", stopped.files.read("a"))
        stopped = await store.start(prepared, OTHER)
        expect(await stopped.files.read("a") == b"1", "it goes on with its files", "else")
        anew = await store.start(prepared, ONE)
        expect(await _names(anew) == [], "the other begins anew", await _names(anew))


@check("a sandbox of a store runs once", claimed=_durable)
async def once(trial: Trial) -> None:
    async with _store(trial) as (store, prepared):
        sandbox = await store.start(prepared, ONE)
        await sandbox.files.write("a", b"1")
        await _expect_refusal("starting it again", store.start(prepared, ONE))
        kept = await sandbox.checkpoint()
        await _expect_refusal("a fork with the same id", sandbox.fork(kept, ONE))
        expect(await sandbox.files.read("a") == b"1", "a refusal changes nothing", "else")


@check("a store keeps only what it is told to keep", claimed=_durable)
async def keeping(trial: Trial) -> None:
    async with _store(trial) as (store, prepared):
        sandbox = await store.start(prepared, ONE)
        await sandbox.files.write("a", b"1")
        first = await sandbox.checkpoint()
        await sandbox.files.write("a", b"2")
        second = await sandbox.checkpoint()
        await (await sandbox.fork(first, OTHER)).files.write("b", b"")
        await (await store.start(prepared, THIRD)).files.write("c", b"")
        await store.stop(THIRD.sandbox)
    async with _store(trial) as (store, prepared):
        running = await store.start(prepared, THIRD)
        await store.keep_only([OTHER.sandbox], [second.id, CheckpointId("unknown")])
        await _expect_refusal("using one that was not kept", running.files.list())
    async with _store(trial) as (store, prepared):
        expect(list(store.sandboxes) == [OTHER.sandbox], "no other sandbox is there", store.sandboxes)
        expect([kept.id for kept in store.checkpoints] == [second.id], "nor checkpoint", store.checkpoints)
        fork = await store.start(prepared, OTHER)
        expect(await _names(fork) == ["a", "b"], "what was kept is whole", await _names(fork))
        back = await fork.fork(second, ONE)
        expect(await back.files.read("a") == b"2", "so is the checkpoint", "else")


@check("a store is open once; one that is closed can be opened again, one that is removed is gone", claimed=_durable)
async def open_once(trial: Trial) -> None:
    async with _service(trial) as (backend, prepared):
        store = await backend.stores.open(STORE, limits=LIMITS)
        await _expect_refusal("opening it again", backend.stores.open(STORE, limits=LIMITS))
        await _expect_refusal("removing one that is open", backend.stores.remove(STORE))
        sandbox = await store.start(prepared, ONE)
        await sandbox.files.write("a", b"1")
        await store.flush()
        await store.aclose()
        await store.aclose()
        await _expect_refusal("using what runs no more", sandbox.files.read("a"))
        await _expect_refusal("starting in a store that is closed", store.start(prepared, ONE))
        expect(list(await backend.stores.names()) == [STORE], "it is listed", await backend.stores.names())
        store = await backend.stores.open(STORE, limits=LIMITS)
        sandbox = await store.start(prepared, ONE)
        expect(await sandbox.files.read("a") == b"1", "its files are there", "else")
        await store.remove()
        await store.remove()
        expect(not await backend.stores.names(), "it is gone", await backend.stores.names())
        store = await backend.stores.open(STORE, limits=LIMITS)
        expect(not store.sandboxes, "and begins anew", store.sandboxes)
        await store.aclose()
        await backend.stores.remove(STORE)
        await backend.stores.remove(STORE)
        expect(not await backend.stores.names(), "one that is not open can be removed", await backend.stores.names())


@check("what cannot name a store is a BackendError", claimed=_durable)
async def names(trial: Trial) -> None:
    async with _service(trial) as (backend, _):
        for name in ("", ".", "..", "a/b", "../a", ".a", "a\n", "a" * 300, "ä"):
            await _expect_refusal(f"{name!r}", backend.stores.open(name, limits=LIMITS))
            await _expect_refusal(f"removing {name!r}", backend.stores.remove(name))
        expect(not await backend.stores.names(), "nothing was made", await backend.stores.names())


@check("without stores, wanting one is a BackendError, and there are none", claimed=lambda able: not able.durable)
async def without(trial: Trial) -> None:
    await _expect_refusal("opening one", trial.backend.stores.open(STORE, limits=LIMITS))
    expect(not await trial.backend.stores.names(), "there are none", await trial.backend.stores.names())
    await trial.backend.stores.remove(STORE)


STORE_CHECKS: Final[tuple[Check, ...]] = (
    outliving,
    outliving_checkpoints,
    closing,
    once,
    keeping,
    open_once,
    names,
    without,
)
