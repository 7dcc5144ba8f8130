"""A backend without processes: sandboxes are coroutines with pipes, delays are events.

For tests of everything above the seam. Nothing sleeps, nothing touches the machine, and
every fault that a real backend can show can be asked for::

    async def echo(process: ProcessContext) -> int:
        async for chunk in process.stdin:
            await process.stdout.send(chunk)
        return 0

    async with FakeBackend(programs={"echo-server": echo}) as backend:
        prepared = await backend.prepare(Template(name="echo", command=Command(argv=("echo-server",))))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sbx_1")))
        async with sandbox.attach() as streams:
            await streams.stdin.send(b"hello")

A program is found by the last part of `argv[0]`. For MCP servers see `fake_mcp`.
"""

from __future__ import annotations

import signal
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final, Self

import anyio
from anyio.abc import TaskGroup

from headstart.backends.contract import (
    ByteStreams,
    Capabilities,
    Capture,
    Checkpoint,
    Command,
    Completed,
    ForkableProcess,
    Identity,
    Leftovers,
    Network,
    Prepared,
    Process,
    ProcessImage,
    Template,
    TerminalProcess,
    TerminalSize,
    Usage,
)
from headstart.backends.output import communicate
from headstart.backends.unkept import Unkept
from headstart.core.events import PrepareForm
from headstart.errors import BackendError, NotCapturable, SandboxPaused
from headstart.ids import CheckpointId, SandboxId
from headstart.testing.fake_files import FakeFiles
from headstart.testing.fake_process import FakeProcess, ProcessContext, Program
from headstart.testing.fake_store import FakeDisk, FakeLineage, FakeStores, KeptFiles

__all__ = ["FakeBackend", "FakePrepared", "FakeSandbox", "Hold", "ProcessContext", "Program", "StartRecord"]

OUTPUT_BYTES: Final = 1 << 20
IDLE_USAGE: Final = Usage(memory_bytes=20_000_000, cpu_s=0.05, processes=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRecord:
    """One `start` that the backend was asked for, in order."""

    sandbox: SandboxId
    template: str
    form: PrepareForm
    background: bool
    env: Mapping[str, str]
    identity: Identity


class Hold:
    """Keeps an operation waiting until it is released; for ever if it never is."""

    def __init__(self) -> None:
        self._released = anyio.Event()
        self._reached = anyio.Event()
        self.waiting = 0

    def release(self) -> None:
        """Let everybody through, those that come later too."""
        self._released.set()

    async def wait_reached(self) -> None:
        """Return once somebody waits (or has waited) here."""
        await self._reached.wait()

    async def pass_through(self) -> None:
        """Wait until released."""
        self.waiting += 1
        self._reached.set()
        try:
            await self._released.wait()
        finally:
            self.waiting -= 1


class FakeBackend:
    """An in-memory `Backend`.

    Args:
        programs: What `argv[0]`'s last part runs.
        zygotes: Whether templates with a preload are prepared as zygotes.
        preload_cpu_s: What preparing a zygote claims to have cost.
        grace_s: How long leaving `attach` waits after closing stdin, and again after SIGTERM.
        disk: Where its stores are; another one may go on with it.

    Attributes:
        starts: Every start asked for, failed ones included.
        commands: Every command run, oldest first.
        raised: Sandboxes whose priority was raised, in order.
    """

    def __init__(
        self,
        programs: Mapping[str, Program] | None = None,
        *,
        zygotes: bool = False,
        preload_cpu_s: float = 0.5,
        grace_s: float = 0.2,
        disk: FakeDisk | None = None,
    ) -> None:
        self.programs = dict(programs or {})
        self.capabilities = Capabilities(
            isolation="none (fake)",
            zygotes=zygotes,
            network=frozenset(Network),
            layers=True,
            pausing=True,
            durable=True,
        )
        self.stores = FakeStores(disk or FakeDisk(), self)
        self.preload_cpu_s = preload_cpu_s
        self.grace_s = grace_s
        self.starts: list[StartRecord] = []
        self.commands: list[Command] = []
        self.raised: list[SandboxId] = []
        self._sandboxes: dict[SandboxId, FakeSandbox] = {}
        self._usage: dict[str, Usage] = {}
        self._prepare_failures: defaultdict[str, deque[BackendError]] = defaultdict(deque)
        self._start_failures: defaultdict[str, deque[BackendError]] = defaultdict(deque)
        self._holds: dict[tuple[str, str], Hold] = {}
        self._tasks: TaskGroup | None = None

    @property
    def name(self) -> str:
        return "fake"

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(self, *_failure: object) -> None:
        tasks = self._task_group()
        with anyio.CancelScope(shield=True):
            await self.stores.aclose()
            for sandbox in list(self._sandboxes.values()):
                await sandbox.aclose()
        tasks.cancel_scope.cancel()
        self._tasks = None
        await tasks.__aexit__(None, None, None)  # the body's own exception goes on as it is, in no group

    # ---------------------------------------------------------------- the contract

    async def prepare(self, template: Template) -> Prepared:
        await self._pass("prepare", template.name)
        _raise_next(self._prepare_failures[template.name])
        if template.root is not None or template.base is not None:
            raise BackendError(f"{template.name} has files of its own, and a fake has none")
        zygote = template.preload is not None and self.capabilities.zygotes
        return FakePrepared(
            template=template,
            form=PrepareForm.ZYGOTE if zygote else PrepareForm.COLD,
            preload_cpu_s=self.preload_cpu_s if zygote else 0.0,
            held=self._usage.get(template.name, IDLE_USAGE) if zygote else _NOTHING,
        )

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> FakeSandbox:
        return await self.start_in(FakeLineage(), prepared, identity, background=background)

    async def leftovers(self) -> Leftovers:
        return Leftovers(processes=sum(sandbox.processes for sandbox in self._sandboxes.values()))

    # ---------------------------------------------------------------- for its stores

    async def start_in(
        self, lineage: FakeLineage, prepared: Prepared, identity: Identity, *, background: bool = False
    ) -> FakeSandbox:
        template = prepared.template
        self.starts.append(
            StartRecord(
                sandbox=identity.sandbox,
                template=template.name,
                form=prepared.form,
                background=background,
                env={**template.command.env, **identity.env},
                identity=identity,
            )
        )
        await self._pass("start", template.name)
        _raise_next(self._start_failures[template.name])
        sandbox = FakeSandbox(self, template, identity, lineage)
        self._sandboxes[sandbox.id] = sandbox
        return sandbox

    def runs(self, sandbox: SandboxId) -> bool:
        return sandbox in self._sandboxes and not self._sandboxes[sandbox].is_gone

    async def end(self, sandbox: SandboxId, *, keeps_files: bool) -> None:
        if sandbox in self._sandboxes:
            await self._sandboxes[sandbox].end(keeps_files=keeps_files)

    # ---------------------------------------------------------------- what tests ask for

    @property
    def live(self) -> frozenset[SandboxId]:
        """Sandboxes that were started and not closed."""
        return frozenset(self._sandboxes)

    def hold(self, operation: str, template: str = "*") -> Hold:
        """Keep `prepare`, `start`, `attach`, `run`, `pause` or `resume` of a template waiting until the hold is released."""
        return self._holds.setdefault((operation, template), Hold())

    def fail_prepare(self, template: str, *, times: int = 1, message: str = "prepare failed as asked") -> None:
        """Make the next `times` preparations of `template` raise `BackendError`."""
        self._prepare_failures[template].extend(BackendError(message) for _ in range(times))

    def fail_start(self, template: str, *, times: int = 1, message: str = "start failed as asked") -> None:
        """Make the next `times` starts of `template` raise `BackendError`."""
        self._start_failures[template].extend(BackendError(message) for _ in range(times))

    def crash(self, sandbox: SandboxId, *, signal_number: int = 9, out_of_memory: bool = False) -> None:
        """Kill what runs in a sandbox, from outside; the sandbox itself stays."""
        self._sandboxes[sandbox].kill(signal_number=signal_number, out_of_memory=out_of_memory)

    def lose(self, sandbox: SandboxId) -> None:
        """Kill a sandbox, init and all: every later operation on it raises `BackendError`."""
        self._sandboxes[sandbox].lose()

    def set_usage(self, template: str, usage: Usage) -> None:
        """Say what sandboxes of `template` (and its zygote) use from now on."""
        self._usage[template] = usage

    # ---------------------------------------------------------------- for FakeSandbox

    def spawn(self, command: Command, identity: Identity) -> FakeProcess:
        """Run `command` as a coroutine of this backend's task group."""
        program = self.programs.get(PurePath(command.argv[0]).name)
        if program is None:
            raise BackendError(f"{command.argv[0]}: not found", hint="give FakeBackend a program of this name")
        self.commands.append(command)
        process = FakeProcess(
            program,
            sandbox=identity.sandbox,
            argv=command.argv,
            env={**command.env, **identity.env},
            cwd=command.cwd,
        )
        self._task_group().start_soon(process.serve)
        return process

    async def pass_hold(self, operation: str, template: str) -> None:
        """Wait where a test said so."""
        await self._pass(operation, template)

    def usage_of(self, template: str, processes: int) -> Usage:
        """Tell what a sandbox with `processes` running uses."""
        told = self._usage.get(template, IDLE_USAGE)
        return Usage(memory_bytes=told.memory_bytes, cpu_s=told.cpu_s, processes=processes)

    def forget(self, sandbox: SandboxId) -> None:
        """Drop a closed sandbox."""
        self._sandboxes.pop(sandbox, None)

    async def _pass(self, operation: str, template: str) -> None:
        await anyio.lowlevel.checkpoint()
        for key in ((operation, template), (operation, "*")):
            if key in self._holds:
                await self._holds[key].pass_through()

    def _task_group(self) -> TaskGroup:
        if self._tasks is None:
            raise BackendError("the fake backend is not open", hint="use it in `async with`")
        return self._tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class FakePrepared:
    """A template made ready; holds nothing but what it was told to hold."""

    template: Template
    form: PrepareForm
    preload_cpu_s: float
    held: Usage

    async def usage(self) -> Usage:
        return self.held

    async def aclose(self) -> None:
        """Nothing to let go of."""


class FakeSandbox:
    """One sandbox of the fake backend."""

    def __init__(self, backend: FakeBackend, template: Template, identity: Identity, lineage: FakeLineage) -> None:
        self.id = identity.sandbox
        self._backend = backend
        self._template = template
        self._identity = identity
        self._running: list[FakeProcess] = []
        self._attached = False
        self._gone: str | None = None
        self._ended = False
        self._paused = False
        self._lost = anyio.Event()
        self._lineage = lineage
        files = lineage.files.setdefault(self.id, FakeFiles(template.private_home))
        self.files = files.checked_by(self._check_moving)
        """Its own; no program sees them, and they go with it unless a store has them."""

    @property
    def processes(self) -> int:
        return sum(process.running for process in self._running)

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        self._check_moving()
        await self._backend.pass_hold("run", self._template.name)
        async with self.start(command) as process:
            with anyio.fail_after(timeout_s):
                return await communicate(process, stdin)

    def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        if descriptors:
            raise BackendError(f"{self.id} is a fake: it can be given no descriptors")
        return self._start(command)

    @asynccontextmanager
    async def _start(self, command: Command) -> AsyncGenerator[ByteStreams]:
        self._check_moving()
        process = self._spawn(command)
        try:
            yield process
        finally:
            process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        return self._start_in_vain(self.start(command, descriptors=descriptors))

    @asynccontextmanager
    async def _start_in_vain(
        self, started: AbstractAsyncContextManager[ByteStreams]
    ) -> AsyncGenerator[ForkableProcess]:
        async with started as streams:
            yield Unkept(streams)

    def revive(
        self,
        image: ProcessImage,
        *,
        descriptors: Sequence[int] = (),  # noqa: ARG002
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        raise BackendError(f"{self.id} is a fake: {image.name} cannot go on in it")

    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:  # noqa: ARG002
        raise BackendError(f"{self.id} is a fake: it can be given no descriptors")

    def start_on_terminal(
        self,
        command: Command,  # noqa: ARG002
        size: TerminalSize,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[TerminalProcess]:
        raise BackendError(f"{self.id} is a fake: it has no terminals")

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        if descriptors:
            raise BackendError(f"{self.id} is a fake: it can be given no descriptors")
        return self._attach()

    @asynccontextmanager
    async def _attach(self) -> AsyncGenerator[FakeProcess]:
        self._check_moving()
        if self._attached:
            raise BackendError(f"{self.id}: the entry command was already started once")
        self._attached = True
        await self._backend.pass_hold("attach", self._template.name)
        async with AsyncExitStack() as stack:
            process = self._spawn(self._template.command)
            stack.push_async_callback(self._end, process)
            yield process

    @property
    def paused(self) -> bool:
        return self._paused

    async def pause(self) -> None:
        await self._backend.pass_hold("pause", self._template.name)
        self._stand_still(still=True)

    async def resume(self) -> None:
        await self._backend.pass_hold("resume", self._template.name)
        self._stand_still(still=False)

    def _stand_still(self, *, still: bool) -> None:
        self._check()
        self._paused = still
        for process in self._running:
            process.stand_still(still=still)

    async def raise_priority(self) -> None:
        self._check()
        self._backend.raised.append(self.id)

    async def checkpoint(
        self,
        *,
        files_only: bool = False,
        beside: Sequence[ForkableProcess | Process] = (),  # noqa: ARG002
    ) -> Checkpoint:
        await self._backend.pass_hold("checkpoint", self._template.name)
        self._check_moving()
        if self.processes and not files_only:
            raise NotCapturable(f"{self.id} runs {self.processes} processes", held=["a fake (1)"])
        checkpoint = Checkpoint(
            id=CheckpointId(f"{self.id}.{next(self._lineage.numbers)}"),
            capture=Capture.COPIED,
            left_out=("a fake (1)",) * self.processes,
        )
        self._lineage.kept[checkpoint.id] = KeptFiles(checkpoint=checkpoint, files=self.files.copy())
        return checkpoint

    async def fork(self, at: Checkpoint, identity: Identity) -> FakeSandbox:
        self._check_moving()
        if at.id not in self._lineage.kept:
            raise BackendError(f"{at.id} is no checkpoint of {self.id}")
        if identity.sandbox in self._lineage.files:
            raise BackendError(f"{identity.sandbox} is there already")
        cold = FakePrepared(template=self._template, form=PrepareForm.COLD, preload_cpu_s=0.0, held=_NOTHING)
        self._lineage.files[identity.sandbox] = self._lineage.kept[at.id].files.copy()
        try:
            return await self._backend.start_in(self._lineage, cold, identity)
        except BaseException:
            del self._lineage.files[identity.sandbox]
            raise

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:  # noqa: ARG002
        self._check_moving()
        raise BackendError(f"{self.id} is a fake and has no files on the host")

    async def forget(self, checkpoint: Checkpoint) -> None:
        self._lineage.kept.pop(checkpoint.id, None)

    async def usage(self) -> Usage:
        self._check()
        return self._backend.usage_of(self._template.name, self.processes)

    async def cpu_s(self) -> float:
        return (await self.usage()).cpu_s

    @property
    def memory_kills(self) -> int:
        return 0

    async def wait_lost(self) -> None:
        await self._lost.wait()

    async def aclose(self) -> None:
        await self.end(keeps_files=False)

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    async def end(self, *, keeps_files: bool) -> None:
        """End it, once; the files stay with its lineage if it `keeps_files`."""
        if self._ended:
            return
        self._ended = True
        if not keeps_files:
            self._lineage.files.pop(self.id, None)
        self._gone = self._gone or "it was closed"
        self._lost.set()
        self.kill()
        with anyio.CancelScope(shield=True):
            for process in self._running:
                await process.wait()
        self._backend.forget(self.id)

    def kill(self, *, signal_number: int = 9, out_of_memory: bool = False) -> None:
        """Kill what runs in it."""
        for process in self._running:
            process.kill(signal_number=signal_number, out_of_memory=out_of_memory)

    def lose(self) -> None:
        """Kill what runs in it, and the sandbox."""
        self._gone = "its init died"
        self._lost.set()
        self.kill()

    def _spawn(self, command: Command) -> FakeProcess:
        process = self._backend.spawn(command, self._identity)
        self._running.append(process)
        return process

    def _check(self) -> None:
        if self._gone is not None:
            raise BackendError(f"sandbox {self.id} is gone: {self._gone}")

    def _check_moving(self) -> None:
        self._check()
        if self._paused:
            raise SandboxPaused(self.id)

    async def _end(self, process: FakeProcess) -> None:
        with anyio.CancelScope(shield=True):
            await process.stdin.aclose()
            with anyio.move_on_after(self._backend.grace_s):
                await process.wait()
                return
            process.forced_by = signal.SIGTERM
            await process.terminate()
            with anyio.move_on_after(self._backend.grace_s):
                await process.wait()
                return
            process.forced_by = signal.SIGKILL
            process.kill()
            await process.wait()


_NOTHING: Final = Usage(memory_bytes=0, cpu_s=0.0, processes=0)


def _raise_next(failures: deque[BackendError]) -> None:
    if failures:
        raise failures.popleft()
