"""Hosted sandboxes on disk: a service that was stopped, killed or restarted has them again, with their files.

Of each there is a folder with a record (`record`) and a journal (`runtime.lineage_journal`), and a store
of the backend's with the files. The folder is made first and goes last, so that nothing lies about that
nobody knows: a folder without a journal, and a store without a folder, belong to what was cut off. A branch
has a record, too, in its origin's folder, from before anybody is told of it: one without was cut off. It is there as
long as the journal says that it is a branch.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, FileStore
from headstart.backends.local.manifest import this_boot
from headstart.clock import Clock
from headstart.core.transaction import (
    Lineage,
    LineageId,
    LineageOpened,
    LineageView,
    RuntimeRestarted,
    StateVersion,
    TransactionEvent,
    recover,
    replayed,
    retold,
)
from headstart.errors import BackendError, HeadstartError, InvalidTransition, SandboxUnknown
from headstart.ids import IdSource, SandboxId
from headstart.runtime.identities import identity_of
from headstart.runtime.lineage_journal import Carried, ForkedBeside, JournalTold, LineageJournal, read_journal
from headstart.runtime.remembered import KeptState, Remembered, SessionState
from headstart.runtime.state_files import unusable
from headstart.sandbox.hosted.record import (
    Hibernation,
    HostedRecord,
    branch_path,
    read_branches,
    read_record,
    remove_branches,
    write_record,
)
from headstart.sandbox.sandbox import Branch, Sandbox
from headstart.sandbox.sandboxes import Ready, Sandboxes

__all__ = ["KeptBranch", "KeptSandbox", "SandboxKeeping"]

_RECORD = "record.json"
_JOURNAL = "journal"
_PREFIX = "box_"
_SLEEP_S = 3.0

_log = logging.getLogger(__name__)


class KeptSandbox:
    """A hosted sandbox that runs.

    Args:
        record: What is remembered of it; when it was left, with what can go on.
        store: Where its files are; None: in memory, so they go with it.
        branches: Those that an earlier service had of it.
    """

    def __init__(
        self,
        keeping: SandboxKeeping,
        box: Sandbox,
        record: HostedRecord,
        store: FileStore | None,
        branches: Sequence[KeptBranch] = (),
    ) -> None:
        self.box = box
        self.record = record
        self.branches = branches
        self._keeping = keeping
        self._store = store

    async def leave(self, *, ends: bool, hibernates: bool = False) -> None:
        """End what runs in it, and it; or (not `ends`) have it ready to go on. Completes under cancellation.

        Args:
            ends: Nothing of it is to be left.
            hibernates: It goes on when somebody uses it, not with the next service.

        Raises:
            BackendError: It did not end as it should.
        """
        with anyio.CancelScope(shield=True):
            if ends or self._store is None:
                await self.box.kill()
                if self._store is not None:
                    await self._keeping.remove(SandboxId(self.record.id), self._store)
                return
            await _put_to_sleep(self.box)
            self._remember(hibernates=hibernates)
            await self.box.suspend()
            if hibernates:
                await self._settle(self._store)
            await self._store.aclose()
            for branch in self._keeping.branches_of(self.record):
                self._keeping.remember_if_possible(replace(branch, boot=None))

    async def _settle(self, store: FileStore) -> None:
        """Have all that was written on the disk: nobody will see to that while it is hibernated."""
        try:
            for sandbox in store.sandboxes:
                await store.stop(sandbox)
            await store.flush()
        except BackendError as error:
            _log.warning("%s may not outlive the machine as it is: %s", self.record.id, error)

    def _remember(self, *, hibernates: bool) -> None:
        hibernation = Hibernation(version=self.box.state_version, checkpoints=self.box.checkpoints)
        self.record = replace(self.record, shell=self.box.shell.asleep, hibernation=hibernation if hibernates else None)
        self._keeping.remember_if_possible(self.record)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBranch:
    """A branch that runs again.

    Attributes:
        record: What is remembered of it.
    """

    branch: Branch
    record: HostedRecord


async def _put_to_sleep(box: Sandbox) -> None:
    """Have ready what can go on: a bash session can."""
    with anyio.move_on_after(_SLEEP_S):
        try:
            await box.resume()  # what stands still tells nothing
            await box.shell.put_to_sleep()
        except HeadstartError as error:
            _log.debug("the bash session of %s is lost: %s", box.id, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FoundAgain:
    """What an earlier service has left of a sandbox.

    Attributes:
        sandboxes: What is to run: the canonical one, then its branches.
        branches: What is remembered of these.
        beside: Those of them that may have been overtaken by what no journal tells: something ran on while they were forked, or the
            machine has lost its power.
    """

    record: HostedRecord
    told: JournalTold
    sandboxes: Sequence[SandboxId]
    branches: Sequence[HostedRecord]
    beside: frozenset[SandboxId]
    remembered: Remembered


class SandboxKeeping:
    """Has the sandboxes of a host on disk, where the backend can; else they live as long as the service.

    Args:
        folder: Where their folders are.
    """

    def __init__(self, backend: Backend, sandboxes: Sandboxes, folder: Path, *, clock: Clock, ids: IdSource) -> None:
        self._backend = backend
        self._sandboxes = sandboxes
        self._folder = folder
        self._clock = clock
        self._ids = ids

    @property
    def is_durable(self) -> bool:
        """Whether sandboxes outlive the service."""
        return self._backend.capabilities.durable

    async def known(self) -> Sequence[HostedRecord]:
        """Return what an earlier service has left, the oldest first; what cannot be read is told, and stays.

        Raises:
            ConfigError: The folder cannot be used.
        """
        if not self.is_durable:
            return ()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders = sorted(path for path in self._folder.iterdir() if path.is_dir())
        except OSError as error:
            raise unusable(self._folder, error) from error
        await self._remove_stores_without_folder({path.name for path in folders})
        await self._sandboxes.let_go_of_all_templates_but({path.name for path in folders})
        records: list[HostedRecord] = []
        for folder in folders:
            if not (folder / _JOURNAL).exists():  # it was never told to anybody, or had ended
                await self.remove(SandboxId(folder.name))
                continue
            try:
                records.append(read_record(folder / _RECORD))
            except BackendError as error:
                _log.error("a sandbox cannot be brought back: %s", error)
        return sorted(records, key=lambda record: record.created_wall_s)

    async def _remove_stores_without_folder(self, known: set[str]) -> None:
        for name in await self._backend.stores.names():
            if name.startswith(_PREFIX) and name not in known:
                await self._backend.stores.remove(name)

    async def begin(self, record: HostedRecord) -> KeptSandbox:
        """Start a new sandbox.

        Raises:
            ConfigError: An option cannot be used.
            BackendError: It could not be started; nothing of it is left.
        """
        name = SandboxId(record.id)
        if not self.is_durable:
            ready = await self._sandboxes.prepare(record.options)
            running = await self._backend.start(ready.prepared, identity_of(name))
            return KeptSandbox(self, self._sandboxes.have(running, ready, name=LineageId(name)), record, None)
        store: FileStore | None = None
        try:
            ready = await self._sandboxes.prepare(record.options, owner=name)
            store = await self._make_place(record, ready)
            running = await store.start(ready.prepared, identity_of(name))
            remembered = self._begun(name, store)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.remove(name, store)
            raise
        box = self._sandboxes.have(running, ready, name=LineageId(name), remembered=remembered)
        return KeptSandbox(self, box, record, store)

    async def _make_place(self, record: HostedRecord, ready: Ready) -> FileStore:
        folder = self._folder / record.id
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise unusable(folder, error) from error
        write_record(folder / _RECORD, record)
        return await self._backend.stores.open(record.id, limits=ready.prepared.template.limits)

    def _begun(self, name: SandboxId, store: FileStore) -> Remembered:
        opened = LineageOpened(
            at_s=self._clock.monotonic_s(),
            lineage=LineageId(name),
            sandbox=name,
            version=StateVersion(self._ids.new("state")),
        )
        journal = LineageJournal.begin(self._folder / name / _JOURNAL, [opened])
        return Remembered(lineage=Lineage(opened), journal=journal, flush=store.flush)

    async def go_on(self, record: HostedRecord) -> KeptSandbox:
        """Start a sandbox again that an earlier service had, in the state that its journal says is canonical.

        Raises:
            SandboxUnknown: It had been ended; nothing of it is left.
            ConfigError: What it was made with cannot be used any more.
            BackendError: It could not be started, or what is remembered is damaged; all stays as it is.
        """
        name = SandboxId(record.id)
        told = await anyio.to_thread.run_sync(read_journal, self._folder / record.id / _JOURNAL)
        was = self._was(record, told.events)
        if was.sandbox is None:
            await self.remove(name)
            raise SandboxUnknown(f"{name} had been ended")
        ready = await self._sandboxes.prepare(record.options, owner=name)
        store = await self._backend.stores.open(name, limits=ready.prepared.template.limits)
        try:
            found = await self._found_again(record, was, told, store)
            try:
                return await self._run_again(found, ready, store)
            except BaseException:
                found.remembered.journal.close()
                raise
        except BaseException:
            await store.aclose()
            raise

    async def _run_again(self, found: _FoundAgain, ready: Ready, store: FileStore) -> KeptSandbox:
        boot, whose = self._ids.new("boot"), found.told.whose
        canonical, *others = [
            await store.start(ready.prepared, identity_of(name, whose.get(name), boot=boot)) for name in found.sandboxes
        ]
        box = self._sandboxes.have(
            canonical, ready, name=LineageId(found.record.id), remembered=found.remembered, boot=boot
        )
        branches: list[KeptBranch] = []
        for running, record in zip(others, found.branches, strict=True):
            is_beside = running.id in found.beside
            branch = box.go_on_with(running, whose=whose.get(running.id), is_beside=is_beside)
            branches.append(KeptBranch(branch=branch, record=self._with_sessions(branch, record)))
        return KeptSandbox(self, box, self._with_sessions(box, found.record), store, branches)

    def _with_sessions(self, box: Sandbox, record: HostedRecord) -> HostedRecord:
        """Have a sandbox go on with the bash session that was put to sleep, and tell what else was lost.

        What is lost counts as there until it is told, also if the sandbox ends once more before that.
        """
        if record.shell is not None:
            box.shell.go_on_as(record.shell)
        elif record.had_shell:
            box.shell.note_lost()
        if record.had_kernel:
            box.kernel.note_lost()
        going_on = replace(record, hibernation=None)
        self.remember_if_possible(going_on)  # with the session: until it runs, it may be needed again
        return going_on

    def _was(self, record: HostedRecord, told: Sequence[TransactionEvent]) -> LineageView:
        """Return what there was when the earlier service ended."""
        try:
            return replayed(told, LineageId(record.id)).view()
        except (ValueError, InvalidTransition) as error:
            raise BackendError(f"the journal of {record.id} is damaged: {error}") from error

    async def _found_again(
        self, record: HostedRecord, was: LineageView, told: JournalTold, store: FileStore
    ) -> _FoundAgain:
        """Return what to go on with; in the store, and beside the journal, there is nothing else any more."""
        folder = self._folder / record.id
        records = await anyio.to_thread.run_sync(read_branches, folder)
        branches = [records[each.id] for each in was.branches if each.id in records and each.id in store.sandboxes]
        view = self._restarted(told.events, was.id, [SandboxId(each.id) for each in branches])
        canonical = view.sandbox
        if canonical is None or canonical not in store.sandboxes:
            raise BackendError(
                f"the files of {view.id} are not there", hint="headstart sandbox kill lets go of the rest"
            )
        there = {each.id for each in view.branches}
        boot = this_boot()
        beside = told.beside | {SandboxId(each.id) for each in branches if each.boot not in {None, boot}}
        branches = [each for each in branches if each.id in there]
        sandboxes = (canonical, *(SandboxId(each.id) for each in branches))
        files = {each.id: each for each in store.checkpoints}
        known = {name: told.kept[name] for name, _ in view.checkpoints if name in told.kept}
        kept = {
            name: KeptState(
                files=files[each.kept],
                sessions=SessionState(shell=each.shell, has_lost_kernel=each.kernel),
                whose=each.whose,
            )
            for name, each in known.items()
            if each.kept in files
        }
        noted = [
            *(known[name] for name in kept),
            *(Carried(sandbox=name, whose=told.whose[name]) for name in sandboxes if name in told.whose),
            *(ForkedBeside(branch=name) for name in sandboxes if name in beside),
        ]
        view = replace(view, checkpoints=tuple((name, version) for name, version in view.checkpoints if name in kept))
        await store.keep_only(sandboxes, [each.files.id for each in kept.values()])
        story = retold(view, canonical, at_s=self._clock.monotonic_s())
        journal = LineageJournal.begin(folder / _JOURNAL, story, noted)
        remove_branches(folder, but={each.id for each in branches})
        return _FoundAgain(
            record=record,
            told=told,
            sandboxes=sandboxes,
            branches=[replace(each, boot=boot) for each in branches],
            beside=beside,
            remembered=Remembered(
                lineage=replayed(story, view.id),
                journal=journal,
                flush=store.flush,
                kept=kept,
                whose=told.whose.get(canonical),
            ),
        )

    def _restarted(
        self, told: Sequence[TransactionEvent], lineage: LineageId, branches: Sequence[SandboxId]
    ) -> LineageView:
        """Return what there is now; all of it has lost what ran in it."""
        restarted = RuntimeRestarted(
            at_s=self._clock.monotonic_s(),
            lineage=lineage,
            version=StateVersion(self._ids.new("state")),
            branches=tuple((each, StateVersion(self._ids.new("state"))) for each in branches),
        )
        return recover(told, restarted).lineage.view()

    def remember(self, record: HostedRecord) -> None:
        """Write what is remembered of a sandbox, if that is on disk at all.

        Raises:
            BackendError: It cannot be written.
        """
        if self.is_durable:
            write_record(self._path(record), record)

    def remember_if_possible(self, record: HostedRecord) -> None:
        """Write what is remembered of a sandbox, and tell in the log if that cannot be."""
        try:
            self.remember(record)
        except BackendError as error:
            _log.warning("%s", error)

    async def begin_branch(self, branch: Branch, origin: HostedRecord) -> HostedRecord:
        """Have a branch outlive the service, if its origin does, and return what is remembered of it.

        Raises:
            BackendError: It cannot be remembered; nothing of it is left.
        """
        record = replace(
            origin,
            id=branch.id,
            branch_of=origin.id,
            name=None,
            session=None,
            created_wall_s=self._clock.wall_s(),
            hibernates_after_idle_s=None,
            had_kernel=branch.kernel.has_state,
            had_shell=branch.shell.has_state,
            boot=this_boot(),
        )
        try:
            self.remember(record)
        except BackendError:
            with anyio.CancelScope(shield=True):
                await branch.discard()
            raise
        return record

    async def leave_branch(self, branch: Branch, record: HostedRecord, *, ends: bool) -> None:
        """Discard a branch; or (not `ends`) have it ready to go on, before its sandbox is left.

        Raises:
            BackendError: It did not end as it should.
        """
        if ends:
            self.forget_branch(record)
            await branch.discard()
            return
        await _put_to_sleep(branch)
        self.remember_if_possible(replace(record, shell=branch.shell.asleep))
        await branch.suspend()

    def branches_of(self, record: HostedRecord) -> Sequence[HostedRecord]:
        """Return what is remembered of the branches of a sandbox that does not run; nothing, if that is damaged."""
        try:
            return tuple(read_branches(self._folder / record.id).values())
        except BackendError as error:
            _log.error("the branches of %s are not told: %s", record.id, error)
            return ()

    def forget_branch(self, record: HostedRecord) -> None:
        """A branch has ended, or is to be: nobody is told of it any more."""
        self._path(record).unlink(missing_ok=True)

    def _path(self, record: HostedRecord) -> Path:
        if record.branch_of is None:
            return self._folder / record.id / _RECORD
        return branch_path(self._folder / record.branch_of, record.id)

    async def remove(self, name: SandboxId, store: FileStore | None = None) -> None:
        """Delete a sandbox's journal, so that it is known to have ended, then its files, then the rest.

        Raises:
            BackendError: It cannot be deleted.
        """
        folder = self._folder / name
        (folder / _JOURNAL).unlink(missing_ok=True)
        if store is not None:
            await store.remove()
        else:
            await self._backend.stores.remove(name)
        await self._sandboxes.let_go_of_template(name)
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
