"""The machine loses its power: what was on the disk is there, and it is one whole state.

The backend is a fake whose disk forgets what was not flushed; the journal forgets what was not synced.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.clock import SystemClock
from headstart.errors import BackendError, Conflict
from headstart.ids import RandomIds
from headstart.runtime.lineage_journal import LineageJournal
from headstart.sandbox.hosted import SandboxHost, keeping
from headstart.sandbox.hosted.messages import SandboxState
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.templates import TemplateStore
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_store import FakeDisk

pytestmark = pytest.mark.anyio


class Machine:
    """A host, and a disk that has what was written to it for good."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.disk = FakeDisk()
        self.synced: dict[Path, bytes] = {}
        self.happened: list[str] = []
        sync, flush = LineageJournal.sync, self.disk.flush

        def noted_sync(journal: LineageJournal) -> None:
            sync(journal)
            self.happened.append("sync")
            self.note_synced()

        def noted_flush(name: str) -> None:
            flush(name)
            self.happened.append("flush")

        monkeypatch.setattr(LineageJournal, "sync", noted_sync)
        monkeypatch.setattr(self.disk, "flush", noted_flush)

    @asynccontextmanager
    async def host(self) -> AsyncGenerator[SandboxHost]:
        async with (
            FakeBackend({}, disk=self.disk) as backend,
            SandboxHost.open(
                backend,
                templates=TemplateStore(self.folder / "templates"),
                folder=self.folder / "hosted",
                clock=SystemClock(),
                ids=RandomIds(),
            ) as opened,
        ):
            yield opened

    def note_synced(self) -> None:
        self.synced = {path: path.read_bytes() for path in (self.folder / "hosted").rglob("*") if path.is_file()}

    def lose_power(self, before: tuple[dict[Path, bytes], FakeDisk]) -> None:
        """Have on the disk what was there for good at a moment, whatever the end of the host has written since."""
        files, disk = before
        shutil.rmtree(self.folder / "hosted")
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self.disk.stores, self.disk._flushed = disk.stores, disk._flushed  # pyright: ignore[reportPrivateUsage]
        self.disk.lose_power()

    def moment(self) -> tuple[dict[Path, bytes], FakeDisk]:
        now = FakeDisk()
        now.stores = {name: lineage.copy() for name, lineage in self.disk.stores.items()}
        now._flushed = {name: lineage.copy() for name, lineage in self.disk._flushed.items()}  # pyright: ignore[reportPrivateUsage]
        return dict(self.synced), now


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


async def begin(host: SandboxHost) -> str:
    box = await host.create(SandboxOptions())
    await box.files.write("f", b"1")
    await host.checkpoint(box.id, durable=True)
    await box.files.write("f", b"2")
    return box.id


async def roll_back(host: SandboxHost, name: str) -> None:
    with host.using(name) as box:
        kept = box.checkpoints[0].id
    await host.rollback(name, kept)


async def commit(host: SandboxHost, name: str) -> None:
    branch = await host.fork(name)
    await branch.files.write("f", b"1")
    await host.commit(branch.id)


@pytest.mark.parametrize("act", [roll_back, commit])
async def test_what_was_replaced_is_deleted_when_what_replaces_it_is_on_the_disk(
    act: Callable[[SandboxHost, str], Coroutine[Any, Any, None]], machine: Machine
) -> None:
    async with machine.host() as host:
        name = await begin(host)
        machine.happened.clear()
        await act(host, name)
        with anyio.fail_after(10):
            while len(machine.disk.stores[name].files) > 1:  # noqa: ASYNC110  what was replaced goes in a while
                await anyio.sleep(0.01)
        assert machine.happened[:2] == ["flush", "sync"]
        moment = machine.moment()
    machine.lose_power(moment)
    async with machine.host() as host:
        assert (await host.look(name)).state is SandboxState.RUNNING
        with host.using(name) as box:
            assert await box.files.read("f") == b"1"


async def test_a_checkpoint_that_was_waited_for_is_there_and_can_be_gone_back_to(machine: Machine) -> None:
    async with machine.host() as host:
        name = await begin(host)
        moment = machine.moment()
    machine.lose_power(moment)
    async with machine.host() as host, anyio.create_task_group():
        await roll_back(host, name)
        with host.using(name) as box:
            assert await box.files.read("f") == b"1"


async def test_a_checkpoint_that_cannot_be_noted_is_refused_and_nothing_of_it_is_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.host() as host:
        name = await begin(host)
        kept = set(machine.disk.stores[name].kept)

        def full(_journal: LineageJournal, _kept: object) -> None:
            raise BackendError("no room")

        monkeypatch.setattr(LineageJournal, "note_beside", full)
        with pytest.raises(BackendError, match="no room"):
            await host.checkpoint(name)
        monkeypatch.undo()
        assert set(machine.disk.stores[name].kept) == kept
        await roll_back(host, name)
        with host.using(name) as box:
            assert await box.files.read("f") == b"1"


async def test_a_sandbox_that_was_hibernated_is_on_the_disk_as_it_was(machine: Machine) -> None:
    async with machine.host() as host:
        name = await begin(host)
        machine.happened.clear()
        await host.hibernate(name)
        assert set(machine.happened) == {"flush", "sync"}
        moment = machine.moment()
    machine.lose_power(moment)
    async with machine.host() as host:
        info = await host.look(name)
        assert (info.state, len(info.checkpoints)) == (SandboxState.HIBERNATED, 1)
        async with host.awake(name) as box:
            assert await box.files.read("f") == b"2"


async def have_branch(host: SandboxHost, name: str) -> str:
    """Have one on the disk, of a state that is there, too."""
    branch = await host.fork(name)
    await branch.files.write("f", b"3")
    await host.checkpoint(name, durable=True)
    return branch.id


async def test_a_branch_is_not_committed_over_what_no_journal_has_after_a_loss_of_power(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.host() as host:
        name = await begin(host)
        branch = await have_branch(host, name)
        with host.using(name) as box:
            await box.files.write("f", b"4")
        machine.disk.flush(name)  # as kernels do, of files and not of the journal
        moment = machine.moment()
    machine.lose_power(moment)
    monkeypatch.setattr(keeping, "this_boot", lambda: "another")
    for _ in range(2):
        async with machine.host() as host:
            with host.using(branch) as box:
                assert await box.files.read("f") == b"3"
            with pytest.raises(Conflict):
                await host.commit(branch)
            with host.using(name) as box:
                assert await box.files.read("f") == b"4"


async def test_a_branch_can_be_committed_when_the_machine_has_been_started_again_in_good_order(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with machine.host() as host:
        branch = await have_branch(host, await begin(host))
    monkeypatch.setattr(keeping, "this_boot", lambda: "another")
    async with machine.host() as host:
        await host.commit(branch)


async def test_a_branch_whose_files_were_not_on_the_disk_is_gone(machine: Machine) -> None:
    async with machine.host() as host:
        name = await begin(host)
        branch = await host.fork(name)
        machine.note_synced()
        moment = machine.moment()
    machine.lose_power(moment)
    async with machine.host() as host:
        assert [each.id for each in await host.list()] == [name]
        assert branch.id not in machine.disk.stores[name].files
