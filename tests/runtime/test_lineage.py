"""A sandbox with its checkpoints and branches, over the fake backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from headstart.backends.contract import Capture, Command, Template
from headstart.clock import ManualClock
from headstart.core.transaction import LineageId
from headstart.errors import BackendError, Conflict, NotCapturable, TransactionRefused
from headstart.ids import CheckpointId, SandboxId, SequentialIds
from headstart.runtime.identities import identity_of
from headstart.runtime.lineage import SandboxLineage
from headstart.runtime.remembered import SessionState
from headstart.runtime.tasks import open_tasks
from headstart.testing.fake_backend import FakeBackend, ProcessContext

pytestmark = pytest.mark.anyio

BOX = Template(name="box", command=Command(argv=("sleep",)))


async def sleep(process: ProcessContext) -> int:
    await process.stdin.receive()
    return 0


@dataclass(kw_only=True)
class World:
    backend: FakeBackend
    lineage: SandboxLineage

    async def write(self, content: bytes, branch: SandboxId | None = None) -> None:
        async with self.lineage.running(branch) as sandbox:
            await sandbox.files.write("file", content)

    async def read(self, branch: SandboxId | None = None) -> bytes:
        async with self.lineage.running(branch) as sandbox:
            return await sandbox.files.read("file")


@asynccontextmanager
async def world() -> AsyncGenerator[World]:
    async with FakeBackend({"sleep": sleep}) as backend, open_tasks() as tasks:
        first = await backend.start(await backend.prepare(BOX), identity_of(SandboxId("box_0")))
        lineage = SandboxLineage(
            first,
            name=LineageId("box_0"),
            identify=identity_of,
            ids=SequentialIds(),
            clock=ManualClock(),
            tasks=tasks,
        )
        try:
            yield World(backend=backend, lineage=lineage)
        finally:
            await lineage.aclose()
            assert backend.live == frozenset(), "nothing is left of it"


async def test_every_run_makes_a_new_state_version_and_a_rollback_returns_the_kept_one() -> None:
    async with world() as it:
        versions = [it.lineage.version]
        await it.write(b"1")
        versions.append(it.lineage.version)
        kept = await it.lineage.checkpoint()
        assert kept.version == versions[-1]
        await it.write(b"2")
        versions.append(it.lineage.version)
        assert len(set(versions)) == 3
        await it.lineage.rollback(kept.id)
        assert it.lineage.version == kept.version
        assert await it.lineage.canonical.files.read("file") == b"1"


async def test_a_checkpoint_of_what_has_not_changed_is_the_one_before() -> None:
    async with world() as it:
        await it.write(b"1")
        first, second = await it.lineage.checkpoint(), await it.lineage.checkpoint()
        assert (first.id, first.version) == (second.id, second.version)
        assert second.capture is Capture.UNCHANGED


async def test_a_branch_is_apart_until_it_is_committed() -> None:
    async with world() as it:
        await it.write(b"before")
        branch = await it.lineage.fork()
        await it.write(b"after", branch)
        assert await it.lineage.canonical.files.read("file") == b"before"
        was = it.lineage.canonical.id
        await it.lineage.commit(branch)
        assert (it.lineage.canonical.id, await it.read()) == (branch, b"after")
        await anyio.wait_all_tasks_blocked()
        assert it.backend.live == {branch}, f"{was} is gone"


async def test_what_was_kept_beside_a_branch_is_there_after_its_commit() -> None:
    async with world() as it:
        await it.write(b"1")
        branch = await it.lineage.fork()
        kept = await it.lineage.checkpoint()
        await it.write(b"2", branch)
        await it.lineage.commit(branch)
        await it.lineage.rollback(kept.id)
        assert await it.read() == b"1"


async def test_a_stale_branch_is_a_conflict_that_names_both_versions_and_loses_nothing() -> None:
    async with world() as it:
        branch, origin = await it.lineage.fork(), it.lineage.version
        await it.write(b"in the branch", branch)
        await it.write(b"meanwhile")
        with pytest.raises(Conflict) as conflict:
            await it.lineage.commit(branch)
        assert (conflict.value.origin, conflict.value.canonical) == (origin, it.lineage.version)
        assert await it.lineage.canonical.files.read("file") == b"meanwhile"
        assert await it.read(branch) == b"in the branch"
        await it.lineage.discard(branch)
        with pytest.raises(TransactionRefused, match="discarded"):
            await it.lineage.commit(branch)
        await anyio.wait_all_tasks_blocked()
        assert it.backend.live == {"box_0"}


async def test_a_discarded_branch_leaves_nothing() -> None:
    async with world() as it:
        branch = await it.lineage.fork()
        await it.write(b"x", branch)
        await it.lineage.discard(branch)
        await it.lineage.discard(branch)
        await anyio.wait_all_tasks_blocked()
        assert it.backend.live == {"box_0"}
        with pytest.raises(TransactionRefused):
            await it.write(b"y", branch)


async def test_nothing_is_kept_forked_or_replaced_while_something_runs() -> None:
    async with world() as it:
        kept = await it.lineage.checkpoint()
        branch = await it.lineage.fork()
        async with it.lineage.running():
            for refused in (
                it.lineage.checkpoint,
                it.lineage.fork,
                lambda: it.lineage.rollback(kept.id),
                lambda: it.lineage.commit(branch),
            ):
                with pytest.raises(TransactionRefused, match="run"):
                    await refused()
        with pytest.raises(Conflict):  # it ran, so the state may be another
            await it.lineage.commit(branch)


async def test_what_runs_on_by_itself_is_left_out_only_if_asked_for() -> None:
    async with world() as it, it.lineage.canonical.start(Command(argv=("sleep",))):
        with pytest.raises(NotCapturable) as refusal:
            await it.lineage.checkpoint()
        assert refusal.value.held
        with pytest.raises(NotCapturable):
            await it.lineage.fork()
        first = await it.lineage.checkpoint(files_only=True)
        await it.lineage.canonical.files.write("file", b"by what runs")  # no run of ours
        second = await it.lineage.checkpoint(files_only=True)
        assert first.id != second.id, "what goes on writing makes another state"
        branch = await it.lineage.fork(files_only=True)
        assert await it.read(branch) == b"by what runs"


class Unmade:
    """A program's state that turns out not to be there, when the files are kept already."""

    name = "kernel.1"
    is_gone = False

    async def settled(self) -> None:
        await anyio.lowlevel.checkpoint()
        raise BackendError("no memory")


async def test_nothing_is_kept_or_forked_if_what_ran_turns_out_not_to_be_kept() -> None:
    async with world() as it:
        await it.write(b"1")
        lost = SessionState(kernel=Unmade())
        for act in (it.lineage.checkpoint, it.lineage.fork):
            with pytest.raises(BackendError, match="no memory"):
                await act(sessions=lost)
        assert it.lineage.checkpoints == ()
        kept = await it.lineage.checkpoint()
        assert kept.capture is not Capture.UNCHANGED, "nobody has kept that"
        assert it.backend.live == {"box_0"}


async def test_a_checkpoint_that_is_not_there_is_refused() -> None:
    async with world() as it:
        kept = await it.lineage.checkpoint()
        await it.lineage.drop(kept.id)
        with pytest.raises(TransactionRefused, match="dropped"):
            await it.lineage.rollback(kept.id)
        with pytest.raises(TransactionRefused, match="no checkpoint of box_0"):
            await it.lineage.rollback(CheckpointId("chk_of_another"))


async def test_a_rollback_that_fails_leaves_the_state_as_it_was() -> None:
    async with world() as it:
        await it.write(b"1")
        kept = await it.lineage.checkpoint()
        await it.write(b"2")
        it.backend.fail_start("box", message="no memory is left")
        with pytest.raises(BackendError, match="no memory is left"):
            await it.lineage.rollback(kept.id)
        assert await it.lineage.canonical.files.read("file") == b"2"
        await it.lineage.rollback(kept.id)
        assert await it.read() == b"1"


@pytest.mark.parametrize("act", ["fork", "checkpoint", "rollback"])
async def test_who_is_cancelled_leaves_nothing_half_done(act: str) -> None:
    async with world() as it:
        await it.write(b"1")
        kept = await it.lineage.checkpoint()
        await it.write(b"2")
        hold = it.backend.hold("checkpoint" if act == "checkpoint" else "start", "box")
        acts = {
            "fork": it.lineage.fork,
            "checkpoint": it.lineage.checkpoint,
            "rollback": lambda: it.lineage.rollback(kept.id),
        }
        task = asyncio.ensure_future(acts[act]())
        await hold.wait_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hold.release()
        await anyio.wait_all_tasks_blocked()
        assert len(it.backend.live) == 1
        known = it.lineage._machine.view().checkpoints  # pyright: ignore[reportPrivateUsage]
        assert [name for name, _ in known] == [kept.id], "what nobody knows of is not kept"
        await it.lineage.checkpoint()
        assert await it.read() == (b"1" if act == "rollback" else b"2")


async def test_closing_ends_all_of_it_also_what_is_being_made() -> None:
    async with world() as it:
        await it.lineage.fork()
        hold = it.backend.hold("start", "box")
        forking = asyncio.ensure_future(it.lineage.fork())
        await hold.wait_reached()
        closing = asyncio.ensure_future(it.lineage.aclose())
        await anyio.wait_all_tasks_blocked()
        hold.release()
        await closing
        with pytest.raises((BackendError, TransactionRefused)):
            await forking
        with pytest.raises(BackendError, match="closed"):
            await it.write(b"x")
        await it.lineage.aclose()


def names(it: World, sandbox: SandboxId) -> tuple[str, str | None, str | None]:
    [told] = [each.identity for each in it.backend.starts if each.sandbox == sandbox]
    assert told.sandbox == sandbox
    return told.hostname, told.machine_id, told.boot_id


async def test_a_branch_carries_its_origins_identity_or_a_fresh_one() -> None:
    async with world() as it:
        same, fresh = await it.lineage.fork(), await it.lineage.fork(fresh=True)
        assert names(it, same) == names(it, SandboxId("box_0"))
        assert not set(names(it, fresh)) & set(names(it, same)), "all of it is new"
        await it.lineage.commit(fresh)
        assert names(it, await it.lineage.fork()) == names(it, fresh), "a branch that was committed keeps it"


async def test_a_rollback_carries_the_identity_that_was_kept_or_a_fresh_one() -> None:
    async with world() as it:
        kept = await it.lineage.checkpoint()
        await it.lineage.commit(await it.lineage.fork(fresh=True))
        later = await it.lineage.checkpoint()
        of_branch = names(it, it.lineage.canonical.id)
        await it.lineage.rollback(kept.id)
        assert names(it, it.lineage.canonical.id) == names(it, SandboxId("box_0"))
        await it.lineage.rollback(later.id)
        assert names(it, it.lineage.canonical.id) == of_branch
        await it.lineage.rollback(later.id, fresh=True)
        seen = names(it, it.lineage.canonical.id)
        assert not set(seen) & {*of_branch, *names(it, SandboxId("box_0"))}


async def test_a_state_with_a_fresh_identity_is_another_state() -> None:
    async with world() as it:
        kept = await it.lineage.checkpoint()
        same, fresh, other = [await it.lineage.fork(fresh=new) for new in (False, True, True)]
        versions = [it.lineage.version_of(each) for each in (same, fresh, other)]
        assert versions[0] == it.lineage.version
        assert len(set(versions)) == 3
        await it.lineage.rollback(kept.id, fresh=True)
        assert it.lineage.version not in {kept.version, *versions}
        await it.lineage.rollback(kept.id)
        assert it.lineage.version == kept.version


async def test_a_fresh_identity_is_not_passed_on_by_what_failed_or_was_refused() -> None:
    async with world() as it:
        kept = await it.lineage.checkpoint()
        it.backend.fail_start(BOX.name)
        with pytest.raises(BackendError, match="as asked"):
            await it.lineage.fork(fresh=True)
        it.backend.fail_start(BOX.name)
        with pytest.raises(BackendError, match="as asked"):
            await it.lineage.rollback(kept.id, fresh=True)
        with pytest.raises(TransactionRefused):
            await it.lineage.rollback(CheckpointId("chk_none"), fresh=True)
        async with it.lineage.running():
            with pytest.raises(TransactionRefused):
                await it.lineage.fork(fresh=True)
        assert names(it, await it.lineage.fork()) == names(it, SandboxId("box_0"))
