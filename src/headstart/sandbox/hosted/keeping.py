"""Hosted sandboxes on disk: a service that was stopped, killed or restarted has them again, with their files.

Of each there is a folder with a record (`record`) and a journal (`runtime.lineage_journal`), and a store
of the backend's with the files. The folder is made first and goes last, so that nothing lies about that
nobody knows: a folder without a journal, and a store without a folder, belong to what was cut off.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, FileStore
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
    retold,
)
from headstart.errors import BackendError, HeadstartError, InvalidTransition, SandboxUnknown
from headstart.ids import IdSource, SandboxId
from headstart.runtime.identities import identity_of
from headstart.runtime.lineage_journal import Carried, JournalTold, LineageJournal, read_journal
from headstart.runtime.remembered import KeptState, Remembered, SessionState
from headstart.runtime.state_files import unusable
from headstart.sandbox.hosted.record import Hibernation, HostedRecord, read_record, write_record
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.sandboxes import Ready, Sandboxes

__all__ = ["KeptSandbox", "SandboxKeeping"]

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
    """

    def __init__(self, keeping: SandboxKeeping, box: Sandbox, record: HostedRecord, store: FileStore | None) -> None:
        self.box = box
        self.record = record
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
            await self._put_to_sleep()
            self._remember(hibernates=hibernates)
            await self.box.suspend()
            if hibernates:
                await self._settle(self._store)
            await self._store.aclose()

    async def _settle(self, store: FileStore) -> None:
        """Have all that was written on the disk: nobody will see to that while it is hibernated."""
        try:
            for sandbox in store.sandboxes:
                await store.stop(sandbox)
            await store.flush()
        except BackendError as error:
            _log.warning("%s may not outlive the machine as it is: %s", self.record.id, error)

    async def _put_to_sleep(self) -> None:
        """Have ready what can go on: a bash session can."""
        with anyio.move_on_after(_SLEEP_S):
            try:
                await self.box.resume()  # what stands still tells nothing
                await self.box.shell.put_to_sleep()
            except HeadstartError as error:
                _log.debug("the bash session of %s is lost: %s", self.record.id, error)

    def _remember(self, *, hibernates: bool) -> None:
        hibernation = Hibernation(version=self.box.state_version, checkpoints=self.box.checkpoints)
        self.record = replace(self.record, shell=self.box.shell.asleep, hibernation=hibernation if hibernates else None)
        try:
            self._keeping.remember(self.record)
        except BackendError as error:
            _log.warning("%s", error)


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
        name, path = SandboxId(record.id), self._folder / record.id / _JOURNAL
        boot = self._ids.new("boot")
        told = await anyio.to_thread.run_sync(read_journal, path)
        view = self._recovered(record, told.events)
        if view.sandbox is None:
            await self.remove(name)
            raise SandboxUnknown(f"{name} had been ended")
        ready = await self._sandboxes.prepare(record.options, owner=name)
        store = await self._backend.stores.open(name, limits=ready.prepared.template.limits)
        try:
            remembered, canonical = await self._remembered(path, view, told, store)
            running = await store.start(ready.prepared, identity_of(canonical, remembered.whose, boot=boot))
        except BaseException:
            await store.aclose()
            raise
        box = self._sandboxes.have(running, ready, name=LineageId(name), remembered=remembered, boot=boot)
        return KeptSandbox(self, box, self._with_sessions(box, record), store)

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
        try:
            self.remember(going_on)  # with the session: until it runs, it may be needed again
        except BackendError as error:
            _log.warning("%s", error)
        return replace(going_on, shell=None)

    def _recovered(self, record: HostedRecord, told: Sequence[TransactionEvent]) -> LineageView:
        restarted = RuntimeRestarted(
            at_s=self._clock.monotonic_s(),
            lineage=LineageId(record.id),
            version=StateVersion(self._ids.new("state")),
        )
        try:
            return recover(told, restarted).lineage.view()
        except (ValueError, InvalidTransition) as error:
            raise BackendError(f"the journal of {record.id} is damaged: {error}") from error

    async def _remembered(
        self, path: Path, view: LineageView, told: JournalTold, store: FileStore
    ) -> tuple[Remembered, SandboxId]:
        """Return what to go on with; in the store there is nothing else any more."""
        canonical = view.sandbox
        if canonical is None or canonical not in store.sandboxes:
            raise BackendError(
                f"the files of {view.id} are not there", hint="headstart sandbox kill lets go of the rest"
            )
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
        whose = told.whose.get(canonical)
        carried = [] if whose is None else [Carried(sandbox=canonical, whose=whose)]
        view = replace(view, checkpoints=tuple((name, version) for name, version in view.checkpoints if name in kept))
        await store.keep_only([canonical], [each.files.id for each in kept.values()])
        story = retold(view, canonical, at_s=self._clock.monotonic_s())
        journal = LineageJournal.begin(path, story, [*(known[name] for name in kept), *carried])
        remembered = Remembered(lineage=_told(story), journal=journal, flush=store.flush, kept=kept, whose=whose)
        return remembered, canonical

    def remember(self, record: HostedRecord) -> None:
        """Write what is remembered of a sandbox, if that is on disk at all.

        Raises:
            BackendError: It cannot be written.
        """
        if self.is_durable:
            write_record(self._folder / record.id / _RECORD, record)

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


def _told(story: Sequence[TransactionEvent]) -> Lineage:
    """Return the lineage that a story tells."""
    opened, *since = story
    if not isinstance(opened, LineageOpened):
        raise AssertionError(opened)  # noqa: TRY004 no user has made it
    lineage = Lineage(opened)
    for event in since:
        lineage.handle(event)
    return lineage
