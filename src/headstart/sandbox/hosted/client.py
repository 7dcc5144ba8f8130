"""Sandboxes that live in the running service, as a user of this machine has them.

    async with headstart.connect() as service:
        box = await service.create(name="work")
        print((await box.run("uname")).stdout)

They go on when the block is left, and when this process has ended; `kill` ends them.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import anyio

from headstart.backends.contract import ByteStreams, ExitStatus, FileInfo, TerminalProcess, TerminalSize, Usage
from headstart.backends.spawner.streams import PipeReceiveStream, PipeSendStream, StdioPipes
from headstart.errors import TransactionRefused
from headstart.runtime.identities import IdentityChoice, is_fresh
from headstart.runtime.kept import SandboxCheckpoint, id_of
from headstart.runtime.state_files import state_dir as usual_state_dir
from headstart.sandbox.commands import complete_command, run_to_end
from headstart.sandbox.hosted import messages as m
from headstart.sandbox.hosted.connection import Asked, Connection
from headstart.sandbox.hosted.line import LARGEST_FILE_BYTES, content_in, in_memory
from headstart.sandbox.kernels.result import CellResult, ShellResult
from headstart.sandbox.options import SandboxOptions, check_text
from headstart.sandbox.output import OnOutput
from headstart.sandbox.result import CommandResult

__all__ = ["HostedFiles", "HostedSandbox", "HostedSandboxes", "connect"]

_R = TypeVar("_R", CellResult, ShellResult)


@asynccontextmanager
async def connect(state_dir: str | Path | None = None) -> AsyncGenerator[HostedSandboxes]:
    """Use the sandboxes of the running service.

    Args:
        state_dir: The service's; the usual one, unless said.

    Raises:
        NoService: None is running there.
    """
    folder = usual_state_dir(None if state_dir is None else Path(state_dir))
    async with Connection.open(folder) as connection:
        yield HostedSandboxes(connection)


class HostedSandboxes:
    """The sandboxes that live in a service; made by `connect`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create(
        self,
        *,
        name: str | None = None,
        ends_after_idle_s: float | None = None,
        hibernates_after_idle_s: float | None = None,
        **options: Any,
    ) -> HostedSandbox:
        """Create a sandbox, which lives until it is killed.

        Args:
            name: By which it can be found, beside its id.
            ends_after_idle_s: End it when nobody has used it for so long; None: never.
            hibernates_after_idle_s: Hibernate it when nobody has used it for so long; None: never. One of the two.
            options: Fields of `SandboxOptions`.

        Raises:
            ConfigError: An option cannot be used, or another sandbox has that name.
            BackendError: It could not be started.
        """
        return await self.create_with(
            SandboxOptions(**options),
            name=name,
            ends_after_idle_s=ends_after_idle_s,
            hibernates_after_idle_s=hibernates_after_idle_s,
        )

    async def create_with(
        self,
        options: SandboxOptions,
        *,
        name: str | None = None,
        ends_after_idle_s: float | None = None,
        hibernates_after_idle_s: float | None = None,
    ) -> HostedSandbox:
        """As `create`, with options that were put together before."""
        record = m.Create(
            options=options.complete(),
            name=name,
            ends_after_idle_s=ends_after_idle_s,
            hibernates_after_idle_s=hibernates_after_idle_s,
        )
        return HostedSandbox(self._connection, (await self._connection.ask(record, m.Named)).id)

    async def get(self, sandbox: str) -> HostedSandbox:
        """Return a sandbox or branch.

        Args:
            sandbox: Its id or name, or a beginning of its id that no other has.

        Raises:
            SandboxUnknown: There is none; the message says whether it has ended, and why.
        """
        (info,) = (await self._connection.ask(m.LookUp(sandbox=sandbox), m.Sandboxes)).sandboxes
        return HostedSandbox(self._connection, info.id)

    async def list(self) -> Sequence[m.HostedInfo]:
        """Return what there is to say about each that lives, the oldest first."""
        return (await self._connection.ask(m.ListSandboxes(), m.Sandboxes)).sandboxes

    @asynccontextmanager
    async def watch(self) -> AsyncGenerator[AsyncIterator[m.Event]]:
        """Yield what happens to sandboxes from now on; who reads gets `BackendError` when the service has gone."""

        async def events() -> AsyncGenerator[m.Event]:
            async for event in asked.events:
                yield event
            await asked.answer(m.Done)

        async with self._connection.asking(m.Watch()) as asked:
            await asked.begun()
            yield events()


class HostedSandbox:
    """A sandbox, or a branch of one, that lives in the service. Its methods are those of `Sandbox`.

    One that is hibernated is woken by whatever needs it to run, and not by `info`, `keep_alive`, `pause` and `kill`.

    Each raises `SandboxUnknown` when it has ended, besides what it names there.
    """

    def __init__(
        self,
        connection: Connection,
        id: str,  # noqa: A002 it is what it is called
        *,
        frozen_secrets: tuple[str, ...] = (),
    ) -> None:
        self._connection = connection
        self.id = id
        self.frozen_secrets = frozen_secrets
        """Of a branch, from `fork` alone: see `Branch.frozen_secrets`."""
        self.files = HostedFiles(connection, id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def info(self) -> m.HostedInfo:
        """Return what there is to say about it."""
        (info,) = (await self._connection.ask(m.LookUp(sandbox=self.id), m.Sandboxes)).sandboxes
        return info

    async def usage(self) -> Usage:
        """See `Sandbox.usage`."""
        return (await self.info()).usage

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | AsyncIterable[bytes] = b"",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """See `Sandbox.run`. What it says comes straight from the command, not through the service."""
        started = self._start(command, cwd, env, alone=True)
        return await run_to_end(started, command, stdin=stdin, timeout_s=timeout_s, on_output=on_output)

    def start(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ByteStreams]:
        """See `Sandbox.start`."""
        return self._start(command, cwd, env, alone=False)

    @asynccontextmanager
    async def _start(
        self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None, *, alone: bool
    ) -> AsyncGenerator[ByteStreams]:
        complete = complete_command(command, cwd, env)
        pipes = StdioPipes.open()
        try:
            record = m.Start(sandbox=self.id, argv=complete.argv, env=complete.env, cwd=complete.cwd, alone=alone)
            async with _handing_over(self._connection, record, pipes) as asked:
                await asked.begun()
                yield _HostedStreams(
                    connection=self._connection,
                    asked=asked,
                    stdin=pipes.stdin,
                    stdout=pipes.stdout,
                    stderr=pipes.stderr,
                )
        finally:
            pipes.close()

    @asynccontextmanager
    async def start_on_terminal(
        self,
        command: str | Sequence[str] = ("bash", "-i"),
        size: TerminalSize = TerminalSize(),  # noqa: B008 it is frozen
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[TerminalProcess]:
        """See `Sandbox.start_on_terminal`."""
        complete = complete_command(command, cwd, env)
        record = m.StartOnTerminal(
            sandbox=self.id,
            argv=complete.argv,
            env=complete.env,
            cwd=complete.cwd,
            rows=size.rows,
            columns=size.columns,
        )
        async with self._connection.asking(record) as asked:
            await asked.begun()
            descriptor = asked.take_descriptor()
            try:
                yield _HostedOnTerminal(connection=self._connection, asked=asked, descriptor=descriptor)
            finally:
                os.close(descriptor)

    async def run_code(
        self, code: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> CellResult:
        """See `Sandbox.run_code`. The kernel stays when this process has ended."""
        check_text(code, where="code", hint="give Python code as text")
        record = m.RunCode(sandbox=self.id, code=code, timeout_s=timeout_s)
        return await self._evaluate(record, CellResult, on_output)

    async def run_in_shell(
        self, command: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> ShellResult:
        """See `Sandbox.run_in_shell`. The session stays when this process has ended."""
        check_text(command, where="command", hint="give code for bash as text")
        record = m.RunInShell(sandbox=self.id, code=command, timeout_s=timeout_s)
        return await self._evaluate(record, ShellResult, on_output)

    async def _evaluate(self, record: m.Code, kind: type[_R], on_output: OnOutput | None) -> _R:
        if on_output is None:
            return await self._connection.ask(record, kind)
        pipes = StdioPipes.open()
        try:
            async with _handing_over(self._connection, record, pipes, only_output=True) as asked:
                await _tell_all(on_output, pipes)
                return await asked.answer(kind)
        finally:
            pipes.close()

    async def checkpoint(self, *, files_only: bool = False, durable: bool = False) -> SandboxCheckpoint:
        """See `Sandbox.checkpoint`."""
        record = m.Checkpoint(sandbox=self.id, files_only=files_only, durable=durable)
        return await self._connection.ask(record, SandboxCheckpoint)

    async def rollback(self, to: SandboxCheckpoint | str, *, identity: IdentityChoice = "same") -> tuple[str, ...]:
        """See `Sandbox.rollback`."""
        record = m.Rollback(sandbox=self.id, checkpoint=id_of(to), fresh=is_fresh(identity))
        return (await self._connection.ask(record, m.Named)).frozen_secrets

    async def drop(self, checkpoint: SandboxCheckpoint | str) -> None:
        """See `Sandbox.drop`."""
        await self._do(m.Drop(sandbox=self.id, checkpoint=id_of(checkpoint)))

    async def fork(self, *, files_only: bool = False, identity: IdentityChoice = "same") -> HostedSandbox:
        """See `Sandbox.fork`. The branch lives until it is committed or killed, or this sandbox ends."""
        record = m.Fork(sandbox=self.id, files_only=files_only, fresh=is_fresh(identity))
        named = await self._connection.ask(record, m.Named)
        return HostedSandbox(self._connection, named.id, frozen_secrets=named.frozen_secrets)

    async def commit(self) -> None:
        """See `Branch.commit`.

        Raises:
            TransactionRefused: It is no branch; or as there.
        """
        await self._do(m.Commit(sandbox=self.id))

    async def discard(self) -> None:
        """Throw a branch away, with all that runs in it.

        Raises:
            TransactionRefused: It is no branch.
        """
        if (await self.info()).branch_of is None:
            raise TransactionRefused(
                f"{self.id} is no branch, and is not discarded", hint="kill it, if it is not wanted"
            )
        await self.kill()

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        await self._do(m.Pause(sandbox=self.id))

    async def resume(self) -> None:
        """See `Sandbox.resume`. One that is hibernated is woken."""
        await self._do(m.Resume(sandbox=self.id))

    async def hibernate(self) -> None:
        """End what runs in it, and keep the rest on disk: files, checkpoints, and the bash session if it has no jobs.

        It costs neither memory nor CPU then, also over restarts of the service, until something needs it. That a Python
        kernel was lost is told by the next cell. Idempotent. If cancelled, it may be hibernated.

        Raises:
            TransactionRefused: It is a branch, or has branches, which would be lost; or somebody waits for what it does.
                Or nothing of it is on disk.
        """
        await self._do(m.Hibernate(sandbox=self.id))

    async def keep_alive(self) -> None:
        """Count as having been used now."""
        await self._do(m.KeepAlive(sandbox=self.id))

    async def kill(self) -> None:
        """End it, and its branches, now."""
        await self._do(m.Kill(sandbox=self.id))

    async def _do(self, record: object) -> None:
        await self._connection.ask(record, m.Done)


class HostedFiles:
    """Implements `Files` for a sandbox that lives in the service."""

    def __init__(self, connection: Connection, sandbox: str) -> None:
        self._connection = connection
        self._sandbox = sandbox

    async def read(self, path: str, *, limit_bytes: int = LARGEST_FILE_BYTES) -> bytes:
        """See `Files.read`."""
        record = m.ReadFile(sandbox=self._sandbox, path=path, limit_bytes=limit_bytes)
        async with self._connection.asking(record) as asked:
            await asked.answer(m.Content)
            descriptor = asked.take_descriptor()
        try:
            return await content_in(descriptor)
        finally:
            os.close(descriptor)

    async def write(self, path: str, content: bytes | str, *, mode: int | None = None) -> None:
        """See `Files.write`; text is written as UTF-8."""
        data = content.encode() if isinstance(content, str) else content
        descriptor = await in_memory(data)
        try:
            record = m.WriteFile(sandbox=self._sandbox, path=path, mode=mode)
            await self._connection.ask(record, m.Done, (descriptor,))
        finally:
            os.close(descriptor)

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """See `Files.list`."""
        return (await self._connection.ask(m.ListFiles(sandbox=self._sandbox, path=path), m.FileInfos)).files

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        (info,) = (await self._connection.ask(m.StatFile(sandbox=self._sandbox, path=path), m.FileInfos)).files
        return info

    async def make_folder(self, path: str) -> None:
        """See `Files.make_folder`."""
        await self._connection.ask(m.MakeFolder(sandbox=self._sandbox, path=path), m.Done)

    async def rename(self, path: str, to: str) -> None:
        """See `Files.rename`."""
        await self._connection.ask(m.RenameFile(sandbox=self._sandbox, path=path, to=to), m.Done)

    async def remove(self, path: str) -> None:
        """See `Files.remove`."""
        await self._connection.ask(m.RemoveFile(sandbox=self._sandbox, path=path), m.Done)


@dataclass(slots=True, kw_only=True)
class _HostedProcess:
    """Implements `Process`."""

    connection: Connection
    asked: Asked

    async def wait(self) -> ExitStatus:
        return (await self.asked.answer(m.Ended)).status

    async def terminate(self) -> None:
        await self._signal(m.Signal.TERMINATE)

    async def interrupt(self) -> None:
        await self._signal(m.Signal.INTERRUPT)

    async def _signal(self, signal: m.Signal) -> None:
        await self.connection.ask(m.SignalProcess(number=self.asked.number, signal=signal), m.Done)


@dataclass(slots=True, kw_only=True)
class _HostedStreams(_HostedProcess):
    """Implements `ByteStreams`."""

    stdin: PipeSendStream
    stdout: PipeReceiveStream
    stderr: PipeReceiveStream
    forced_by: int | None = None


@dataclass(slots=True, kw_only=True)
class _HostedOnTerminal(_HostedProcess):
    """Implements `TerminalProcess`."""

    descriptor: int


@asynccontextmanager
async def _handing_over(
    connection: Connection, record: object, pipes: StdioPipes, *, only_output: bool = False
) -> AsyncGenerator[Asked]:
    """Ask for something that gets the other ends of pipes, which are closed here once it has them."""
    has_them = False
    try:
        async with connection.asking(record, pipes.theirs[1:] if only_output else pipes.theirs) as asked:
            has_them = True
            pipes.hand_over()
            yield asked
    finally:
        if not has_them:
            pipes.hand_over()


async def _tell_all(tell: OnOutput, pipes: StdioPipes) -> None:
    """Tell what comes, until nobody can write any more; what telling raises goes on as it is."""
    failures: list[Exception] = []

    async def read(name: Literal["stdout", "stderr"], pipe: PipeReceiveStream) -> None:
        try:
            async for chunk in pipe:
                await tell(name, chunk)
        except Exception as failure:  # noqa: BLE001 raised below, in no group
            failures.append(failure)
            reading.cancel_scope.cancel()

    async with anyio.create_task_group() as reading:
        reading.start_soon(read, "stdout", pipes.stdout)
        reading.start_soon(read, "stderr", pipes.stderr)
    for failure in failures:
        raise failure
