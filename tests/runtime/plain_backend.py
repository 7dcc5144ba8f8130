"""A backend of plain processes with real zygotes: what the choice of a form needs, and no isolation."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream, ByteSendStream

from headstart.backends.contract import (
    ByteStreams,
    Capabilities,
    Checkpoint,
    Command,
    Completed,
    ExitStatus,
    Files,
    FileStores,
    ForkableProcess,
    Identity,
    Leftovers,
    Network,
    Prepared,
    Process,
    ProcessImage,
    RunningSandbox,
    Template,
    TerminalProcess,
    TerminalSize,
    Usage,
)
from headstart.backends.storeless import NoStores
from headstart.backends.zygote import ForkRequest, ZygoteProcess, zygote_command
from headstart.core.events import PrepareForm
from headstart.ids import SandboxId

CONFINE = Path(__file__).parents[1] / "backends" / "zygote" / "plain_confine.py"
GUARD_S = 30.0
ABLE = Capabilities(isolation="none", zygotes=True, network=frozenset({Network.HOST}))


class PipeOut(ByteReceiveStream):
    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        while True:
            try:
                data = os.read(self.fd, max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self.fd)
                continue
            if not data:
                raise anyio.EndOfStream
            return data

    async def aclose(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class PipeIn(ByteSendStream):
    def __init__(self, fd: int) -> None:
        self.fd = fd

    async def send(self, item: bytes) -> None:
        try:
            await anyio.to_thread.run_sync(os.write, self.fd, item)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


@dataclass
class Streams:
    stdin: PipeIn
    stdout: PipeOut
    stderr: PipeOut
    forced_by: int | None = None

    async def wait(self) -> ExitStatus:
        raise NotImplementedError

    async def terminate(self) -> None:
        raise NotImplementedError

    async def interrupt(self) -> None:
        raise NotImplementedError


@dataclass
class PlainPrepared:
    template: Template
    zygote: ZygoteProcess | None = None
    keeper: subprocess.Popen[bytes] | None = None
    preload_cpu_s: float = 0.0

    @property
    def form(self) -> PrepareForm:
        return PrepareForm.COLD if self.zygote is None else PrepareForm.ZYGOTE

    async def usage(self) -> Usage:
        return Usage(memory_bytes=0, cpu_s=0.0, processes=0)

    async def aclose(self) -> None:
        if self.zygote is not None and self.keeper is not None:
            self.zygote.close()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.keeper.wait, GUARD_S)


def _placing(descriptors: Sequence[int]) -> list[str]:
    """Words that put inherited descriptors at 3, 4, … before the words after them run."""
    moves = " ".join(f"{place}<&{fd} {fd}<&-" for place, fd in enumerate(descriptors, 3) if place != fd)
    return ["/bin/bash", "-c", f'exec "$@" {moves}', "bash"] if moves else []


@dataclass
class PlainSandbox:
    """Its home is its own folder, and differs from every other's."""

    id: SandboxId
    prepared: PlainPrepared
    home: Path
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None

    @asynccontextmanager
    async def attach(self, *, descriptors: Sequence[int] = ()) -> AsyncGenerator[Streams]:
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        try:
            await self._start((stdin[0], stdout[1], stderr[1]), descriptors)
        finally:
            for fd in (stdin[0], stdout[1], stderr[1]):
                os.close(fd)
        streams = Streams(PipeIn(stdin[1]), PipeOut(stdout[0]), PipeOut(stderr[0]))
        try:
            yield streams
        finally:
            for stream in (streams.stdin, streams.stdout, streams.stderr):
                await stream.aclose()

    async def _start(self, stdio: tuple[int, int, int], more: Sequence[int]) -> None:
        command = self.prepared.template.command
        env = {**command.env, "HOME": str(self.home)}
        if self.prepared.zygote is None:
            self.process = subprocess.Popen(  # noqa: ASYNC220
                [*_placing(more), *command.argv], env=env, cwd=command.cwd, pass_fds=more,
                stdin=stdio[0], stdout=stdio[1], stderr=stdio[2],
            )  # fmt: skip
            return
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            await self.prepared.zygote.fork(
                ForkRequest(env=env, cwd=command.cwd, stdio=stdio, plan_fds={"control_fd": theirs.fileno()})
            )

    @property
    def files(self) -> Files:
        raise NotImplementedError

    def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        raise NotImplementedError

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        raise NotImplementedError

    def revive(
        self, image: ProcessImage, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        raise NotImplementedError

    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:
        raise NotImplementedError

    def start_on_terminal(self, command: Command, size: TerminalSize) -> AbstractAsyncContextManager[TerminalProcess]:
        raise NotImplementedError

    async def wait_lost(self) -> None:
        raise NotImplementedError

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        raise NotImplementedError

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        raise NotImplementedError

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        raise NotImplementedError

    async def forget(self, checkpoint: Checkpoint) -> None:
        raise NotImplementedError

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        raise NotImplementedError

    async def raise_priority(self) -> None: ...

    @property
    def paused(self) -> bool:
        return False

    async def pause(self) -> None:
        raise NotImplementedError

    async def resume(self) -> None:
        raise NotImplementedError

    async def usage(self) -> Usage:
        return Usage(memory_bytes=1, cpu_s=0.1, processes=1)

    async def cpu_s(self) -> float:
        return 0.1

    @property
    def memory_kills(self) -> int:
        return 0

    async def aclose(self) -> None:
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self.process.wait, GUARD_S)


@dataclass
class PlainBackend:
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp()))
    one_home: bool = True
    """Every sandbox has the same home; else each its own."""
    name: str = "plain"
    capabilities: Capabilities = ABLE
    prepared: list[PlainPrepared] = field(default_factory=list[PlainPrepared])
    stores: FileStores = field(default_factory=lambda: NoStores("it is plain", cure="use another backend"))

    def _home(self, name: str) -> Path:
        home = self.folder / ("home" if self.one_home else name)
        home.mkdir(exist_ok=True)
        return home

    async def prepare(self, template: Template) -> PlainPrepared:
        made = PlainPrepared(template)
        self.prepared.append(made)
        if template.preload is None:
            return made
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            made.keeper = subprocess.Popen(  # noqa: ASYNC220
                zygote_command(template.preload, control=theirs.fileno()),
                pass_fds=[theirs.fileno()],
                env={**template.command.env, "HOME": str(self._home("zygote"))},
                cwd=template.command.cwd,
            )
        made.zygote = ZygoteProcess(ours, name=template.name)
        try:
            made.preload_cpu_s = (await made.zygote.preload(template.preload, confine=CONFINE)).cpu_s
        except BaseException:
            await made.aclose()
            raise
        return made

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> PlainSandbox:
        assert isinstance(prepared, PlainPrepared)
        return PlainSandbox(identity.sandbox, prepared, self._home(identity.sandbox))

    async def leftovers(self) -> Leftovers:
        return Leftovers()
