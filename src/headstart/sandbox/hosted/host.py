"""Sandboxes that outlive whoever made them: each is owned by a task of its own, everyone else has its id."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup, TaskStatus

from headstart.backends.contract import Backend
from headstart.clock import Clock
from headstart.errors import BackendError, ConfigError, HeadstartError, SandboxUnknown, TransactionRefused
from headstart.ids import CheckpointId, IdSource, NodeIds, SandboxId, SessionId, begins_id
from headstart.runtime.identities import IdentityChoice
from headstart.runtime.kept import SandboxCheckpoint
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.hosted.happenings import Happenings
from headstart.sandbox.hosted.infos import info_of, info_of_resting
from headstart.sandbox.hosted.keeping import KeptSandbox, SandboxKeeping
from headstart.sandbox.hosted.messages import HostedEvent, HostedInfo
from headstart.sandbox.hosted.record import HostedRecord, OfSession
from headstart.sandbox.hosted.register import Broken, Hibernated, Hosted, Register
from headstart.sandbox.hosted.summary import HostedSummary, MemoryCount, summary_of
from headstart.sandbox.hosted.waking import Waker
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Branch, Sandbox
from headstart.sandbox.sandboxes import Sandboxes
from headstart.sandbox.templates import TemplateStore

__all__ = ["SandboxHost"]

_LONGEST_IDLE_S = 1e9
_BROUGHT_BACK_AT_ONCE = 8
_MOST_LOSSES, _LOSSES_WITHIN_S = 3, 60.0
_LOST = "it ended by itself: its first process is gone"
_HIBERNATED = "it was hibernated"

_log = logging.getLogger(__name__)


class SandboxHost:
    """Implements what clients of the service can do with sandboxes; opened with `SandboxHost.open`."""

    def __init__(
        self, keeping: SandboxKeeping, *, clock: Clock, ids: IdSource, tasks: TaskGroup, node: str | None = None
    ) -> None:
        self._keeping = keeping
        self._clock = clock
        self._ids = ids
        self._tasks = tasks
        self._register = Register(node)
        self._happenings = Happenings(clock)
        self._memory = MemoryCount(self._register)
        self._losses: dict[str, list[float]] = {}
        self._held: set[SessionId] = set()
        """Sessions that are there, so that what is theirs stays."""
        self._is_ending = False
        self._waker = Waker(
            self._register,
            start=lambda record: tasks.start(self._own_again, record),
            tasks=tasks,
            happenings=self._happenings,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        backend: Backend,
        *,
        templates: TemplateStore,
        folder: Path,
        clock: Clock,
        ids: IdSource,
        node: str | None = None,
    ) -> AsyncGenerator[SandboxHost]:
        """Host sandboxes while the block runs, those of an earlier service first.

        When it is left, what runs in them has ended. Those that are on disk are there for the next service.

        Args:
            backend: What they are made of.
            templates: What they can be started from.
            folder: Where is what is remembered of them.
            clock: Tells their ages.
            ids: Names them.
            node: What this machine is called in their ids, where there are several; None: nothing.

        Raises:
            ConfigError: The folder cannot be used.
        """
        ids = ids if node is None else NodeIds(ids, node)
        async with Sandboxes.on(backend, templates=templates, ids=ids) as sandboxes, open_tasks() as tasks:
            keeping = SandboxKeeping(backend, sandboxes, folder, clock=clock, ids=ids)
            host = cls(keeping, clock=clock, ids=ids, tasks=tasks, node=node)
            try:
                await host._bring_back()
                yield host
            finally:
                host._is_ending = True
                for hosted in host._register.living:
                    host._end_for_now(hosted)

    async def _bring_back(self) -> None:
        """Start all again that an earlier service had, a few at a time; what fails is told and stays on disk.

        What is hibernated stays so.
        """
        at_once = anyio.CapacityLimiter(_BROUGHT_BACK_AT_ONCE)

        async def bring_back(record: HostedRecord) -> None:
            async with at_once:
                try:
                    await self._tasks.start(self._own_again, record)
                except HeadstartError as error:
                    self._note_broken(record, error)

        known = await self._keeping.known()
        async with anyio.create_task_group() as starting:
            for record in known:
                if record.hibernation is not None:
                    self._register.note_hibernated(record)
                else:
                    starting.start_soon(bring_back, record)

    def _note_broken(self, record: HostedRecord, error: HeadstartError) -> None:
        if isinstance(error, SandboxUnknown):
            self._register.note_ended(record.id, str(error), name=record.name)
            return
        for each in (record, *self._keeping.branches_of(record)):
            self._register.note_broken(each, str(error))
        _log.error("sandbox %s could not be brought back, and stays on disk: %s", record.id, error)
        self.happenings.tell(HostedEvent.ENDED, record.id, about=f"it could not be brought back: {error}")

    @property
    def happenings(self) -> Happenings:
        """What happens to sandboxes, for who watches."""
        return self._happenings

    # ------------------------------------------------------------ what lives

    async def create(
        self,
        options: SandboxOptions,
        *,
        name: str | None = None,
        ends_after_idle_s: float | None = None,
        hibernates_after_idle_s: float | None = None,
        session: OfSession | None = None,
    ) -> Sandbox:
        """Make a sandbox that lives until it is killed, or nobody has used it for `ends_after_idle_s`.

        Args:
            options: How it is to be.
            name: What it is called beside its id.
            ends_after_idle_s: None: it is not ended for that.
            hibernates_after_idle_s: After how long without use it is hibernated; None: never.
            session: Whose it is: it lives until `end_session`, and is held until then.

        Raises:
            ConfigError: An option cannot be used, or the name is taken or is none.
            BackendError: It could not be started.
        """
        _check_idle("ends_after_idle_s", ends_after_idle_s)
        _check_idle("hibernates_after_idle_s", hibernates_after_idle_s)
        self._register.check_name(name)
        record = HostedRecord(
            id=self._ids.new("box"),
            options=options.complete(),
            name=name,
            created_wall_s=self._clock.wall_s(),
            ends_after_idle_s=ends_after_idle_s,
            hibernates_after_idle_s=hibernates_after_idle_s,
            session=session,
        )
        if hibernates_after_idle_s is not None:
            self._check_can_wait(record, ends_after_idle_s)
        if session is not None:
            self._held.add(session.id)
        hosted: Hosted = await self._tasks.start(self._own, record)
        return hosted.box

    async def fork(self, sandbox: str, *, files_only: bool = False, identity: IdentityChoice = "same") -> Branch:
        """Make a branch of a sandbox, which lives as that does.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.fork` raises.
        """
        async with self.awake(sandbox) as box:
            origin = self._register.find_living(box.id)
            branch = await box.fork(files_only=files_only, identity=identity)
            record = await self._keeping.begin_branch(branch, origin.record)
            self._have_branch(branch, record)
            self.happenings.tell(HostedEvent.FORKED, box.id, about=branch.id)
            return branch

    async def commit(self, branch: str) -> None:
        """Let the sandbox that a branch was forked from be what the branch is; then the branch is gone.

        Raises:
            SandboxUnknown: There is none.
            TransactionRefused: It is no branch; or as `Branch.commit`.
            Conflict: See `Branch.commit`.
        """
        with self.using(branch) as box:
            if not isinstance(box, Branch):
                raise TransactionRefused(f"{box.id} is no branch, so there is nothing to commit", hint="fork it first")
            hosted = self._register.find_living(box.id)
            await box.commit()
            origin = hosted.branch_of or ""
            self.happenings.tell(HostedEvent.COMMITTED, origin, about=box.id)
        await hosted.gone.wait()

    async def checkpoint(self, sandbox: str, *, files_only: bool = False, durable: bool = False) -> SandboxCheckpoint:
        """See `Sandbox.checkpoint`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.checkpoint` raises.
        """
        async with self.awake(sandbox) as box:
            kept = await box.checkpoint(files_only=files_only, durable=durable)
            self.happenings.tell(HostedEvent.CHECKPOINTED, box.id, about=kept.id)
            return kept

    async def rollback(self, sandbox: str, to: str, *, identity: IdentityChoice = "same") -> tuple[str, ...]:
        """See `Sandbox.rollback`; the beginning of a checkpoint's id is enough, if no other of the sandbox's has it.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.rollback` raises.
        """
        async with self.awake(sandbox) as box:
            chosen = _checkpoint_of(box, to)
            frozen = await box.rollback(chosen, identity=identity)
            self.happenings.tell(HostedEvent.ROLLED_BACK, box.id, about=chosen)
            return frozen

    async def drop(self, sandbox: str, checkpoint: str) -> None:
        """See `Sandbox.drop`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.drop` raises.
        """
        async with self.awake(sandbox) as box:
            await box.drop(_checkpoint_of(box, checkpoint))

    async def pause(self, sandbox: str) -> None:
        """See `Sandbox.pause`. One that is hibernated stays so: it stands still.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.pause` raises.
        """
        if isinstance(self._register.find(sandbox), Hibernated):
            return
        with self.using(sandbox) as box:
            await box.pause()
            self.happenings.tell(HostedEvent.PAUSED, box.id)

    async def resume(self, sandbox: str) -> None:
        """See `Sandbox.resume`. One that is hibernated is woken.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.resume` raises.
        """
        async with self.awake(sandbox) as box:
            await box.resume()
            self.happenings.tell(HostedEvent.RESUMED, box.id)

    async def hibernate(self, sandbox: str) -> None:
        """End what runs in a sandbox and have it wait on disk until somebody uses it. Idempotent.

        Raises:
            SandboxUnknown: There is none.
            TransactionRefused: It is a branch, or has branches, or is being used, or nothing of it is on disk.
        """
        found = self._register.find(sandbox)
        if isinstance(found, Hibernated) and found.waking is None:
            return
        if isinstance(found, Hibernated):
            sandbox = await self._waker.woken(found.id)  # who wakes it has come first
            found = self._register.find(sandbox)
        if not (isinstance(found, Hosted) and found.hibernates):
            found = self._register.find_living(sandbox)
            self._check_may_hibernate(found)
            found.end(_HIBERNATED, goes_on=True, hibernates=True)
        await found.gone.wait()

    def _check_may_hibernate(self, hosted: Hosted) -> None:
        if hosted.branch_of is not None:
            raise TransactionRefused(
                f"{hosted.id} is a branch, and cannot be hibernated", hint="pause it; or commit or kill it"
            )
        self._check_can_wait(hosted.record)
        branches = ", ".join(each.id for each in self._register.branches_of(hosted))
        if branches:
            hint = "commit or kill them first, or pause it"
            raise TransactionRefused(f"{hosted.id} has branches that would be lost: {branches}", hint=hint)
        if hosted.users:
            hint = "wait until that has ended, or pause it"
            raise TransactionRefused(f"{hosted.id} is at something that somebody waits for", hint=hint)

    def _check_can_wait(self, record: HostedRecord, ends_after_idle_s: float | None = None) -> None:
        if ends_after_idle_s is not None:
            hint = "say one of the two: what is hibernated is not ended, as it costs no memory"
            raise ConfigError("it cannot end and be hibernated", where="hibernates_after_idle_s", hint=hint)
        if record.session is not None:
            raise TransactionRefused(f"{record.id} cannot be hibernated: it ends with its session", hint="pause it")
        if not self.is_durable:
            why = "no files can be kept on disk here"
            raise TransactionRefused(f"{record.id} cannot be hibernated: {why}", hint="headstart doctor tells why")

    async def kill(self, sandbox: str) -> None:
        """End a sandbox and its branches, or discard a branch; return when nothing of it is left.

        Raises:
            SandboxUnknown: There is none.
        """
        found = self._register.find(sandbox)
        if isinstance(found, Hosted) and found.hibernates:
            await found.gone.wait()
            found = self._register.find(found.id)
        if isinstance(found, Hibernated) and found.waking is not None:
            await found.waking.over.wait()
            found = self._register.find(found.id)
        if isinstance(found, Hosted):
            found.end("it was discarded" if found.branch_of else "it was killed")
            await found.gone.wait()
            if found.goes_on:  # it had been ending for a while only; whether it is back is told, or it is killed now
                await self.kill(found.id)
        else:
            await self._kill_resting(found, "it was killed")

    async def _kill_resting(self, resting: Broken | Hibernated, why: str) -> None:
        if isinstance(resting, Broken) and not resting.why:
            self._register.find_living(resting.id)  # which tells what it is at
        if resting.record.branch_of is not None:
            self._keeping.forget_branch(resting.record)  # its files go when its sandbox is brought back
        for branch in [each for each in self._register.broken if each.record.branch_of == resting.id]:
            self._note_killed(branch, "the sandbox that it was forked from was killed")
        self._note_killed(resting, why)  # before anybody can wake it
        if resting.record.branch_of is None:
            await self._keeping.remove(SandboxId(resting.id))

    def _note_killed(self, resting: Broken | Hibernated, why: str) -> None:
        self._register.note_ended(resting.id, why, name=resting.name)
        self.happenings.tell(HostedEvent.ENDED, resting.id, about=why)

    def end(self, sandbox: str, why: str) -> None:
        """Have a sandbox and its branches end, for a reason that is told; one that has ended is fine."""
        for hosted in self._register.living:
            if hosted.id == sandbox:
                hosted.end(why)

    # ------------------------------------------------------------ what is a session's

    @property
    def is_durable(self) -> bool:
        """Whether sandboxes outlive the service, and the loss of their processes, with their files."""
        return self._keeping.is_durable

    def take_up(self, session: SessionId) -> str | None:
        """Hold what a session had before the service was started, and return its sandbox; None if there is none."""
        own = [each for each in self._register.of_session(session) if not each.ending.is_set()]
        if not own:
            return None
        self._held.add(session)
        return max(own, key=lambda hosted: hosted.record.created_wall_s).id

    def branches_of(self, sandbox: str) -> tuple[str, ...]:
        """Return the ids of a living sandbox's branches."""
        return tuple(each.id for each in self._register.branches_of(self._register.find_living(sandbox)))

    def end_session(self, session: SessionId, why: str) -> None:
        """Have all that was made for a session end, for a reason that is told; idempotent."""
        self._held.discard(session)
        for hosted in self._register.of_session(session):
            hosted.end(why)
        for broken in self._register.broken:
            if broken.why and broken.record.is_of(session):
                self._tasks.start_soon(self._forget_broken, broken, why)

    async def _forget_broken(self, broken: Broken, why: str) -> None:
        try:
            await self._kill_resting(broken, why)
        except HeadstartError:
            _log.exception("sandbox %s did not end as it should", broken.id)

    def is_coming_back(self, sandbox: str) -> bool:
        """Whether one that cannot be used has lost its processes, and is being brought back."""
        try:
            found = self._register.find(sandbox)
        except SandboxUnknown:
            return False
        return (isinstance(found, Broken) and not found.why) or (isinstance(found, Hosted) and found.goes_on)

    # ------------------------------------------------------------ use

    @asynccontextmanager
    async def awake(self, sandbox: str) -> AsyncGenerator[Sandbox]:
        """Yield a sandbox as `using` does; one that is hibernated is woken first.

        Raises:
            SandboxUnknown: As `using`.
            BackendError: It cannot be woken, and stays as it is; the message says why.
        """
        with self.using(await self._waker.woken(sandbox)) as box:
            yield box

    def keep_alive(self, sandbox: str) -> None:
        """Count a sandbox as used now. One that is hibernated stays so, which ends it no sooner.

        Raises:
            SandboxUnknown: There is none.
        """
        if not isinstance(self._register.find(sandbox), Hibernated):
            with self.using(sandbox):
                pass

    @contextmanager
    def using(self, sandbox: str) -> Generator[Sandbox]:
        """Yield a sandbox that runs; while the block runs, it is not idle.

        Args:
            sandbox: Its id or name, or a beginning of its id that no other has.

        Raises:
            SandboxUnknown: There is none, or it ends meanwhile; the message says why. Or it is hibernated.
        """
        hosted = self._register.find_living(sandbox)
        hosted.users += 1
        try:
            yield hosted.box
        except BackendError as error:
            if hosted.ending.is_set():
                raise hosted.has_ended() from error
            raise
        finally:
            hosted.users -= 1
            hosted.used_at_s = self._clock.monotonic_s()
            self._note_sessions(hosted)

    def _note_sessions(self, hosted: Hosted) -> None:
        """Remember whether there is something that would be lost with its processes."""
        kernel, shell = hosted.box.kernel.has_state, hosted.box.shell.has_state
        hosted.has_had_kernel |= kernel
        hosted.has_had_shell |= shell
        had_kernel = kernel or (hosted.record.had_kernel and not hosted.has_had_kernel)
        had_shell = shell or (hosted.record.had_shell and not hosted.has_had_shell)
        asleep = hosted.record.shell if hosted.record.shell == hosted.box.shell.asleep else None  # else it has gone on
        record = replace(hosted.record, had_kernel=had_kernel, had_shell=had_shell, shell=asleep)
        if record != hosted.record and not hosted.ending.is_set():
            hosted.record = record
            self._keeping.remember_if_possible(record)

    async def look(self, sandbox: str) -> HostedInfo:
        """Return what there is to say about one.

        Raises:
            SandboxUnknown: There is none.
        """
        found = self._register.find(sandbox)
        if isinstance(found, Hibernated) or (isinstance(found, Broken) and found.why):
            return info_of_resting(found)
        return await info_of(self._register.find_living(sandbox), now_s=self._clock.monotonic_s())

    async def list(self) -> tuple[HostedInfo, ...]:
        """Return all that live, the oldest first."""
        found: list[HostedInfo] = []
        for each in (*self._register.living, *self._register.hibernated, *self._register.broken):
            with suppress(SandboxUnknown):  # it is ending, or being brought back
                found.append(await self.look(each.id))
        return tuple(sorted(found, key=lambda info: info.created_wall_s))

    async def memory_bytes(self) -> int:
        """Return what all use together, as far as is known: of many, some are measured each time."""
        return await self._memory.bytes()

    async def summary(self) -> HostedSummary:
        """Count them by what they are at."""
        return summary_of(self._register, memory_bytes=await self.memory_bytes())

    # ------------------------------------------------------------ owners

    async def _own(self, record: HostedRecord, *, task_status: TaskStatus[Hosted]) -> None:
        """Own a sandbox from its beginning to its end."""
        kept = await self._keeping.begin(record)
        try:
            self._register.check_name(record.name)  # others may have come first
        except ConfigError:
            await kept.leave(ends=True)
            raise
        hosted = self._host(kept.box, record)
        self.happenings.tell(HostedEvent.CREATED, kept.box.id)
        task_status.started(hosted)
        await self._live(hosted, kept)

    async def _own_again(self, record: HostedRecord, *, task_status: TaskStatus[None]) -> None:
        """Own a sandbox that there was before."""
        kept = await self._keeping.go_on(record)
        hosted = self._host(kept.box, kept.record)
        for each in kept.branches:
            self._have_branch(each.branch, each.record)
        task_status.started()
        await self._live(hosted, kept)

    async def _live(self, hosted: Hosted, kept: KeptSandbox) -> None:
        """Return when it has ended, or stands still on disk, and so have its branches."""
        try:
            await self._until_over(hosted)
        finally:
            self._end_for_now(hosted)
            with anyio.CancelScope(shield=True):
                for branch in self._register.branches_of(hosted):
                    why = f"the sandbox that it was forked from has ended ({hosted.why})"
                    branch.end(why, goes_on=hosted.goes_on)
                    await branch.gone.wait()
                await self._leave(hosted, kept)
        self._go_on_if_lost(hosted)

    async def _leave(self, hosted: Hosted, kept: KeptSandbox) -> None:
        kept.record = hosted.record
        try:
            await kept.leave(ends=not hosted.goes_on, hibernates=hosted.hibernates)
        except HeadstartError:
            _log.exception("sandbox %s did not end as it should", hosted.record.id)
        finally:
            hosted.record = kept.record
            self._note_gone(hosted)

    def _go_on_if_lost(self, hosted: Hosted) -> None:
        """Start a sandbox again that has lost its processes; but not one that does so again and again."""
        if hosted.why != _LOST or not hosted.goes_on:
            return
        if not self._may_go_on_again(hosted.record.id):
            self._note_broken(hosted.record, BackendError("its first process keeps being killed"))
            return

        async def go_on() -> None:
            try:
                await self._tasks.start(self._own_again, hosted.record)
            except HeadstartError as error:
                self._note_broken(hosted.record, error)
            else:
                self.happenings.tell(HostedEvent.BROUGHT_BACK, hosted.record.id)

        self._tasks.start_soon(go_on)

    def _may_go_on_again(self, sandbox: str) -> bool:
        now_s = self._clock.monotonic_s()
        recent = [at_s for at_s in self._losses.get(sandbox, ()) if now_s - at_s < _LOSSES_WITHIN_S]
        self._losses[sandbox] = [*recent, now_s]
        return len(recent) < _MOST_LOSSES

    def _have_branch(self, branch: Branch, record: HostedRecord) -> None:
        self._tasks.start_soon(self._own_branch, branch, self._host(branch, record))

    async def _own_branch(self, branch: Branch, hosted: Hosted) -> None:
        """Own a branch until it has ended, or stands still on disk: its sandbox stops it then."""
        try:
            await self._until_over(hosted)
        finally:
            self._end_for_now(hosted)
            with anyio.CancelScope(shield=True):
                await self._leave_branch(hosted, branch)
                self._note_gone(hosted)

    async def _leave_branch(self, hosted: Hosted, branch: Branch) -> None:
        try:
            await self._keeping.leave_branch(branch, hosted.record, ends=not hosted.goes_on)
        except HeadstartError:
            _log.exception("branch %s did not end as it should", branch.id)

    def _host(self, box: Sandbox, record: HostedRecord) -> Hosted:
        hosted = Hosted(box=box, record=record, used_at_s=self._clock.monotonic_s())
        self._register.note_living(hosted)
        if self._is_ending:  # it was being made meanwhile
            self._end_for_now(hosted)
        return hosted

    def _end_for_now(self, hosted: Hosted) -> None:
        hosted.end("the service has ended", goes_on=self.is_durable)

    async def _until_over(self, hosted: Hosted) -> None:
        """Return when a sandbox is to end, or has ended by itself."""

        async def watch_life() -> None:
            try:
                await hosted.box.wait_lost()
            except TransactionRefused:  # a branch that was committed before anybody could look
                return
            goes_on = self.is_durable and hosted.branch_of is None
            hosted.end(_LOST, goes_on=goes_on)

        async def watch_commit() -> None:
            await hosted.box.wait_committed()
            hosted.end(f"it was committed: it is {hosted.branch_of} now")

        async with anyio.create_task_group() as watchers:
            watchers.start_soon(watch_life)
            watchers.start_soon(watch_commit)
            ends_s, hibernates_s = hosted.record.ends_after_idle_s, hosted.record.hibernates_after_idle_s
            if ends_s is not None:
                watchers.start_soon(self._watch_use, hosted, ends_s, self._end_unused)
            if hibernates_s is not None:
                watchers.start_soon(self._watch_use, hosted, hibernates_s, self._hibernate_unused)
            if (session := hosted.record.session) is not None:
                watchers.start_soon(self._watch_use, hosted, session.away_s, self._end_forsaken)
            await hosted.ending.wait()
            watchers.cancel_scope.cancel()

    async def _watch_use(self, hosted: Hosted, idle_s: float, act: Callable[[Hosted, str], None]) -> None:
        """Act each time when nobody has used it for so long; it may go on."""
        while True:
            left_s = hosted.used_at_s + idle_s - self._clock.monotonic_s()
            if hosted.users:
                left_s = idle_s
            if left_s <= 0:
                act(hosted, f"nobody had used it for {idle_s:g} s")
                left_s = idle_s
            await anyio.sleep(left_s)

    def _end_unused(self, hosted: Hosted, why: str) -> None:
        hosted.end(why)

    def _end_forsaken(self, hosted: Hosted, why: str) -> None:
        if hosted.record.session is not None and hosted.record.session.id not in self._held:
            hosted.end(f"the session that it was made for has not come back: {why}")

    def _hibernate_unused(self, hosted: Hosted, why: str) -> None:
        if not self._register.branches_of(hosted):
            hosted.end(why, goes_on=True, hibernates=True)

    def _note_gone(self, hosted: Hosted) -> None:
        """Have it known that a sandbox has ended, and that nothing of it is left here."""
        self._register.note_gone(hosted)
        if hosted.goes_on and not (hosted.hibernates or self._is_ending):
            self._register.note_broken(hosted.record)  # until it runs again
        if hosted.hibernates:
            self._register.note_hibernated(hosted.record)
        hosted.gone.set()
        event = HostedEvent.HIBERNATED if hosted.hibernates else HostedEvent.ENDED
        self.happenings.tell(event, hosted.id, about=hosted.why)


def _checkpoint_of(box: Sandbox, said: str) -> CheckpointId:
    """Return which of its checkpoints is meant; one that it does not have is told by who looks for it."""
    known = [each.id for each in box.checkpoints]
    if said in known:
        return CheckpointId(said)
    found = [each for each in known if begins_id(each, said)]
    if len(found) > 1:
        raise TransactionRefused(f"{said!r} could be {', '.join(found)}", hint="write more of its id")
    return found[0] if found else CheckpointId(said)


def _check_idle(where: str, idle_s: float | None) -> None:
    if idle_s is not None and not 0 < idle_s < _LONGEST_IDLE_S:
        hint = "say seconds above 0, or nothing for a sandbox that lives until it is killed"
        raise ConfigError(f"{idle_s:g} is no time", where=where, hint=hint)
