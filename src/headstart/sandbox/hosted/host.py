"""Sandboxes that outlive whoever made them: each is owned by a task of its own, everyone else has its id."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup, TaskStatus

from headstart.backends.contract import Backend, Usage
from headstart.clock import Clock
from headstart.errors import BackendError, ConfigError, HeadstartError, SandboxUnknown, TransactionRefused
from headstart.ids import IdSource
from headstart.runtime.lineage import SandboxCheckpoint
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.hosted.messages import Event, HostedEvent, HostedInfo, SandboxState
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Branch, Sandbox
from headstart.sandbox.sandboxes import Sandboxes
from headstart.sandbox.templates import TemplateStore

__all__ = ["SandboxHost"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SHORTEST_BEGINNING = 3
_MOST_ENDED = 1_000
_MOST_UNREAD_EVENTS = 1_000
_LOST = "it ended by itself: its first process is gone"

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Hosted:
    """One sandbox, or branch, that lives.

    Attributes:
        users: How many use it now; it is idle when nobody does.
        ending: Set to have its task end it; then `why` says for what reason.
        gone: Set when nothing of it is left.
    """

    box: Sandbox
    options: SandboxOptions
    name: str | None
    branch_of: str | None
    created_wall_s: float
    ends_after_idle_s: float | None
    used_at_s: float
    users: int = 0
    why: str = _LOST
    ending: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)

    def end(self, why: str) -> None:
        if not self.ending.is_set():
            self.why = why
            self.ending.set()


class SandboxHost:
    """Implements what clients of the service can do with sandboxes; opened with `SandboxHost.open`."""

    def __init__(self, sandboxes: Sandboxes, *, clock: Clock, tasks: TaskGroup) -> None:
        self._sandboxes = sandboxes
        self._clock = clock
        self._tasks = tasks
        self._hosted: dict[str, _Hosted] = {}
        self._ended: dict[str, str] = {}
        self._listeners: list[Callable[[Event], None]] = []

    @classmethod
    @asynccontextmanager
    async def open(
        cls, backend: Backend, *, templates: TemplateStore, clock: Clock, ids: IdSource
    ) -> AsyncGenerator[SandboxHost]:
        """Host sandboxes while the block runs; when it is left, all of them have ended."""
        async with Sandboxes.on(backend, templates=templates, ids=ids) as sandboxes, open_tasks() as tasks:
            host = cls(sandboxes, clock=clock, tasks=tasks)
            try:
                yield host
            finally:
                for hosted in host._hosted.values():
                    hosted.end("the service has ended")

    # ------------------------------------------------------------ what lives

    async def create(
        self, options: SandboxOptions, *, name: str | None = None, ends_after_idle_s: float | None = None
    ) -> Sandbox:
        """Make a sandbox that lives until it is killed, or nobody has used it for `ends_after_idle_s`.

        Raises:
            ConfigError: An option cannot be used, or the name is taken or is none.
            BackendError: It could not be started.
        """
        self._check(name, ends_after_idle_s)
        hosted: _Hosted = await self._tasks.start(self._own, options, name, ends_after_idle_s)
        return hosted.box

    async def fork(self, sandbox: str, *, files_only: bool = False) -> Branch:
        """Make a branch of a sandbox, which lives as that does.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.fork` raises.
        """
        with self.using(sandbox) as box:
            origin = self._hosted[box.id]
            branch = await box.fork(files_only=files_only)
            await self._tasks.start(self._own_branch, branch, origin)
            self.tell(HostedEvent.FORKED, box.id, about=branch.id)
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
            hosted = self._hosted[box.id]
            await box.commit()
            origin = hosted.branch_of or ""
            hosted.end(f"it was committed: it is {origin} now")
            self.tell(HostedEvent.COMMITTED, origin, about=box.id)
        await hosted.gone.wait()

    async def checkpoint(self, sandbox: str, *, files_only: bool = False) -> SandboxCheckpoint:
        """See `Sandbox.checkpoint`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.checkpoint` raises.
        """
        with self.using(sandbox) as box:
            kept = await box.checkpoint(files_only=files_only)
            self.tell(HostedEvent.CHECKPOINTED, box.id, about=kept.id)
            return kept

    async def rollback(self, sandbox: str, to: str) -> None:
        """See `Sandbox.rollback`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.rollback` raises.
        """
        with self.using(sandbox) as box:
            await box.rollback(to)
            self.tell(HostedEvent.ROLLED_BACK, box.id, about=to)

    async def pause(self, sandbox: str) -> None:
        """See `Sandbox.pause`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.pause` raises.
        """
        with self.using(sandbox) as box:
            await box.pause()
            self.tell(HostedEvent.PAUSED, box.id)

    async def resume(self, sandbox: str) -> None:
        """See `Sandbox.resume`.

        Raises:
            SandboxUnknown: There is none.
            Exception: What `Sandbox.resume` raises.
        """
        with self.using(sandbox) as box:
            await box.resume()
            self.tell(HostedEvent.RESUMED, box.id)

    async def kill(self, sandbox: str) -> None:
        """End a sandbox and its branches, or discard a branch; return when nothing of it is left.

        Raises:
            SandboxUnknown: There is none.
        """
        hosted = self._find(sandbox)
        hosted.end("it was discarded" if hosted.branch_of else "it was killed")
        await hosted.gone.wait()

    @contextmanager
    def using(self, sandbox: str) -> Generator[Sandbox]:
        """Yield a sandbox; while the block runs, it is not idle.

        Args:
            sandbox: Its id or name, or a beginning of its id that no other has.

        Raises:
            SandboxUnknown: There is none; the message says whether it has ended, and why.
        """
        hosted = self._find(sandbox)
        hosted.users += 1
        try:
            yield hosted.box
        finally:
            hosted.users -= 1
            hosted.used_at_s = self._clock.monotonic_s()

    async def look(self, sandbox: str) -> HostedInfo:
        """Return what there is to say about one.

        Raises:
            SandboxUnknown: There is none.
        """
        hosted = self._find(sandbox)
        try:
            usage = await hosted.box.usage()
        except (BackendError, TransactionRefused):  # it is ending
            usage = Usage(memory_bytes=0, cpu_s=0.0, processes=0)
        return HostedInfo(
            id=hosted.box.id,
            name=hosted.name,
            branch_of=hosted.branch_of,
            state=SandboxState.PAUSED if _is_paused(hosted.box) else SandboxState.RUNNING,
            version=hosted.box.state_version,
            created_wall_s=hosted.created_wall_s,
            idle_s=0.0 if hosted.users else self._clock.monotonic_s() - hosted.used_at_s,
            ends_after_idle_s=hosted.ends_after_idle_s,
            template=hosted.options.template,
            network=hosted.options.network,
            mounts=dict(hosted.options.mounts),
            usage=usage,
            checkpoints=hosted.box.checkpoints,
        )

    async def list(self) -> tuple[HostedInfo, ...]:
        """Return all that live, the oldest first."""
        return tuple([await self.look(name) for name in tuple(self._hosted) if name in self._hosted])

    # ------------------------------------------------------------ what happens

    def tell(self, event: HostedEvent, sandbox: str, *, about: str = "") -> None:
        """Tell whoever watches that something has happened."""
        told = Event(event=event, sandbox=sandbox, at_wall_s=self._clock.wall_s(), about=about)
        for listener in tuple(self._listeners):
            listener(told)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[AsyncGenerator[Event]]:
        """Yield what happens from now on. Who does not read a thousand events misses the oldest."""
        send, receive = anyio.create_memory_object_stream[Event](_MOST_UNREAD_EVENTS)

        def note(event: Event) -> None:
            try:
                send.send_nowait(event)
            except anyio.WouldBlock:
                receive.receive_nowait()
                send.send_nowait(event)

        async def events() -> AsyncGenerator[Event]:
            async for event in receive:
                yield event

        self._listeners.append(note)
        try:
            with send, receive:
                yield events()
        finally:
            self._listeners.remove(note)

    # ------------------------------------------------------------ owners

    async def _own(
        self,
        options: SandboxOptions,
        name: str | None,
        ends_after_idle_s: float | None,
        *,
        task_status: TaskStatus[_Hosted],
    ) -> None:
        """Own a sandbox from its beginning to its end."""
        async with self._sandboxes.create(options) as box:
            self._check(name, ends_after_idle_s)  # others may have come first
            hosted = self._host(box, options, name=name, branch_of=None, ends_after_idle_s=ends_after_idle_s)
            self.tell(HostedEvent.CREATED, box.id)
            task_status.started(hosted)
            await self._until_over(hosted)
            for branch in [each for each in self._hosted.values() if each.branch_of == box.id]:
                branch.end(f"the sandbox that it was forked from has ended ({hosted.why})")
                await branch.gone.wait()
            await self._see_end(hosted)

    async def _own_branch(self, branch: Branch, origin: _Hosted, *, task_status: TaskStatus[_Hosted]) -> None:
        async with branch:
            hosted = self._host(
                branch, origin.options, name=None, branch_of=origin.box.id, ends_after_idle_s=origin.ends_after_idle_s
            )
            task_status.started(hosted)
            await self._until_over(hosted)
            await self._see_end(hosted)

    def _host(
        self,
        box: Sandbox,
        options: SandboxOptions,
        *,
        name: str | None,
        branch_of: str | None,
        ends_after_idle_s: float | None,
    ) -> _Hosted:
        hosted = self._hosted[box.id] = _Hosted(
            box=box,
            options=options,
            name=name,
            branch_of=branch_of,
            created_wall_s=self._clock.wall_s(),
            ends_after_idle_s=ends_after_idle_s,
            used_at_s=self._clock.monotonic_s(),
        )
        return hosted

    async def _until_over(self, hosted: _Hosted) -> None:
        """Return when a sandbox is to end, or has ended by itself."""

        async def watch_life() -> None:
            await hosted.box.wait_lost()
            hosted.end(_LOST)

        async with anyio.create_task_group() as watchers:
            watchers.start_soon(watch_life)
            if hosted.ends_after_idle_s is not None:
                watchers.start_soon(self._watch_use, hosted, hosted.ends_after_idle_s)
            await hosted.ending.wait()
            watchers.cancel_scope.cancel()

    async def _watch_use(self, hosted: _Hosted, ends_after_s: float) -> None:
        while True:
            left_s = hosted.used_at_s + ends_after_s - self._clock.monotonic_s()
            if hosted.users:
                left_s = ends_after_s
            if left_s <= 0:
                hosted.end(f"nobody had used it for {ends_after_s:g} s")
                return
            await anyio.sleep(left_s)

    async def _see_end(self, hosted: _Hosted) -> None:
        """End a sandbox, and have it known that it has."""
        name = hosted.box.id
        try:
            await hosted.box.kill()
        except HeadstartError:
            _log.exception("sandbox %s did not end as it should", name)
        finally:
            del self._hosted[name]
            self._ended[name] = hosted.why
            while len(self._ended) > _MOST_ENDED:
                del self._ended[next(iter(self._ended))]
            hosted.gone.set()
            self.tell(HostedEvent.ENDED, name, about=hosted.why)

    # ------------------------------------------------------------ names

    def _check(self, name: str | None, ends_after_idle_s: float | None) -> None:
        if ends_after_idle_s is not None and ends_after_idle_s <= 0:
            raise ConfigError(
                f"{ends_after_idle_s:g} is no time", where="ends_after_idle_s", hint="say seconds above 0"
            )
        if name is None:
            return
        if not _NAME.fullmatch(name) or name.startswith("box_"):
            hint = "use letters, digits, _ . and -, at most 63, and do not begin with box_"
            raise ConfigError(f"{name!r} cannot be a sandbox's name", where="name", hint=hint)
        for hosted in self._hosted.values():
            if hosted.name == name:
                hint = "choose another, or kill that one first"
                raise ConfigError(f"{hosted.box.id} is called {name!r} already", where="name", hint=hint)

    def _find(self, sandbox: str) -> _Hosted:
        if sandbox in self._hosted:
            return self._hosted[sandbox]
        found = [hosted for hosted in self._hosted.values() if hosted.name == sandbox]
        beginning = sandbox.removeprefix("box_")
        if not found and len(beginning) >= _SHORTEST_BEGINNING:
            begun = [each for each in self._hosted if each.removeprefix("box_").startswith(beginning)]
            found = [self._hosted[each] for each in begun]
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(sorted(hosted.box.id for hosted in found))
            raise SandboxUnknown(f"{sandbox!r} could be {names}", hint="write more of its id")
        if sandbox in self._ended:
            raise SandboxUnknown(
                f"{sandbox} has ended: {self._ended[sandbox]}", hint="headstart sandbox list shows who lives"
            )
        names = [name for hosted in self._hosted.values() for name in (hosted.name, hosted.box.id) if name]
        near = difflib.get_close_matches(sandbox, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "headstart sandbox list shows who lives"
        raise SandboxUnknown(f"there is no sandbox {sandbox!r}", hint=hint)


def _is_paused(box: Sandbox) -> bool:
    try:
        return box.paused
    except TransactionRefused:  # a branch that has just ended
        return False
