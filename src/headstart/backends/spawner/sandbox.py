"""A sandbox that is reached through its init: the part that all spawned backends share."""

from __future__ import annotations

import fcntl
import os
import posixpath
import signal
import struct
import termios
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from headstart.backends.contract import (
    ByteStreams,
    Checkpoint,
    Command,
    Completed,
    ExitStatus,
    ForkableProcess,
    Identity,
    Process,
    ProcessImage,
    RunningSandbox,
    TerminalProcess,
    TerminalSize,
    Usage,
)
from headstart.backends.output import communicate
from headstart.backends.spawner.accounting import tree_cpu_s
from headstart.backends.spawner.channel import Channel, Execution
from headstart.backends.spawner.files import SpawnedFiles
from headstart.backends.spawner.gate import Gate
from headstart.backends.spawner.guest.freezing import Still, freeze
from headstart.backends.spawner.streams import PipeReceiveStream, PipeSendStream, StdioPipes
from headstart.backends.unkept import Unkept
from headstart.errors import BackendError, SandboxPaused
from headstart.ids import SandboxId

__all__ = ["SpawnedSandbox", "inner_pids"]

_ALWAYS_SET = ("PATH", "HOME", "TMPDIR")
_POLITE_S = 1.0
"""How long an attached command may take to end: after stdin closes, and after SIGTERM."""

_BEGUN_S = 10.0
"""How long pausing waits for what has been begun: a file that is being written, a command that is being started."""

_T = TypeVar("_T")


@dataclass(slots=True, kw_only=True)
class GivenProcess:
    """Implements `Process`."""

    execution: Execution

    async def wait(self) -> ExitStatus:
        return await self.execution.wait()

    async def terminate(self) -> None:
        await self.execution.signal(signal.SIGTERM)

    async def interrupt(self) -> None:
        await self.execution.signal(signal.SIGINT)


@dataclass(slots=True, kw_only=True)
class CommandOnTerminal(GivenProcess):
    """Implements `TerminalProcess`."""

    descriptor: int


@dataclass(slots=True, kw_only=True)
class CommandStreams(GivenProcess):
    """Implements `ByteStreams`."""

    stdin: PipeSendStream
    stdout: PipeReceiveStream
    stderr: PipeReceiveStream
    forced_by: int | None = None


class SpawnedSandbox:
    """Implements `RunningSandbox` over a `Channel`; backends add usage, priority and removal."""

    def __init__(self, sandbox: SandboxId, channel: Channel, entry: Command, *, polite: bool = True) -> None:
        """`entry` is complete; its folder is the default, and its PATH, HOME and TMPDIR are under every environment.

        It is given time to end by itself when it is detached only if that is `polite`: what it does then may matter.
        """
        self._id = sandbox
        self._channel = channel
        self._entry = entry
        self._base_env = {name: entry.env[name] for name in _ALWAYS_SET if name in entry.env}
        self._gate = Gate()
        self._files = SpawnedFiles(channel, home=entry.env.get("HOME", "/"), gate=self._gate)
        self._polite = polite
        self._attached = False
        self._still: Still | None = None
        self._closed = False
        self._closing = anyio.Lock()

    @property
    def id(self) -> SandboxId:
        return self._id

    @property
    def files(self) -> SpawnedFiles:
        return self._files

    @property
    def polite(self) -> bool:
        """Whether its entry command is given time to end by itself."""
        return self._polite

    @property
    def pid(self) -> int:
        """Its init's, as the service sees it."""
        return self._channel.pid

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """See `RunningSandbox.run`."""
        async with self.start(command) as streams:
            with anyio.fail_after(timeout_s):
                return await communicate(streams, stdin)

    @asynccontextmanager
    async def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AsyncGenerator[ByteStreams]:
        """See `RunningSandbox.start`."""
        pipes = StdioPipes.open()
        try:
            execution = await self._execute(self._complete(command), pipes, descriptors, own_tree=True)
            async with _ending(execution):
                yield _streams(pipes, execution)
        finally:
            pipes.close()

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """See `RunningSandbox.start_forkable`."""
        return self._start_in_vain(command, descriptors)

    @asynccontextmanager
    async def _start_in_vain(self, command: Command, descriptors: Sequence[int]) -> AsyncGenerator[ForkableProcess]:
        async with self.start(command, descriptors=descriptors) as streams:
            yield Unkept(streams)

    def revive(
        self,
        image: ProcessImage,
        *,
        descriptors: Sequence[int] = (),  # noqa: ARG002
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """See `RunningSandbox.revive`."""
        raise BackendError(
            f"{self.id} keeps no programs, so {image.name} is none of it", hint='use the backend "local"'
        )

    @asynccontextmanager
    async def start_on(self, command: Command, descriptors: Sequence[int]) -> AsyncGenerator[Process]:
        """See `RunningSandbox.start_on`."""
        async with self._gate.passing():
            execution = await self._channel.execute(self._complete(command), descriptors, own_tree=True)
        async with _ending(execution):
            yield GivenProcess(execution=execution)

    @asynccontextmanager
    async def start_on_terminal(self, command: Command, size: TerminalSize) -> AsyncGenerator[TerminalProcess]:
        """See `RunningSandbox.start_on_terminal`."""
        descriptor, path = await self._make_terminal(size)
        try:
            async with self._gate.passing():
                execution = await self._channel.execute(self._complete(command), (), own_tree=True, terminal=path)
            async with _ending(execution):
                yield CommandOnTerminal(execution=execution, descriptor=descriptor)
        finally:
            os.close(descriptor)

    async def _make_terminal(self, size: TerminalSize) -> tuple[int, str]:
        """Return a descriptor of our side of a new terminal, and the path of the other inside."""
        async with self._gate.passing():
            told, descriptors = await self._channel.ask("terminal", path="/dev/ptmx")
        match told, descriptors:
            case {"path": str() as path}, [descriptor] if os.isatty(descriptor):
                fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", size.rows, size.columns, 0, 0))
                return descriptor, path
            case _:
                for each in descriptors:
                    os.close(each)
                raise BackendError(f"{self.id} has no terminal to give: {told.get('error', 'it does not say why')}")

    def _complete(self, command: Command) -> Command:
        folder = posixpath.join(self._entry.cwd or "/", command.cwd or "")
        return replace(command, env={**self._base_env, **command.env}, cwd=folder)

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        """See `RunningSandbox.attach`."""
        return self._attach(descriptors)

    @asynccontextmanager
    async def _attach(self, descriptors: Sequence[int]) -> AsyncGenerator[ByteStreams]:
        self._gate.check()
        if self._attached:
            raise BackendError(f"{self._id}: the entry command has been started already")
        self._attached = True
        pipes, execution = await self._start_entry(descriptors)
        entry = _streams(pipes, execution)
        try:
            yield entry
        finally:
            if self._polite:
                pipes.stdin.close()
                entry.forced_by = await _end_politely(execution)
            else:
                await _end_at_once(execution)
            pipes.close()

    async def _start_entry(self, descriptors: Sequence[int]) -> tuple[StdioPipes, Execution]:
        pipes = StdioPipes.open()
        try:
            return pipes, await self._execute(self._entry, pipes, descriptors, own_tree=False)
        except BaseException:
            pipes.close()
            raise

    async def start_entry_as(self, argv: tuple[str, ...], descriptors: Sequence[int]) -> Execution:
        """Start another program in the place of the entry command, with its environment and folder.

        Raises:
            BackendError: It cannot be started, or the sandbox is gone.
        """
        self._attached = True
        return await self._channel.execute(replace(self._entry, argv=argv), descriptors)

    async def _execute(self, command: Command, pipes: StdioPipes, more: Sequence[int], *, own_tree: bool) -> Execution:
        try:
            async with self._gate.passing():
                return await self._channel.execute(command, [*pipes.theirs, *more], own_tree=own_tree)
        finally:
            pipes.hand_over()

    @property
    def paused(self) -> bool:
        """See `RunningSandbox.paused`."""
        return self._still is not None and not self._channel.lost.is_set()

    async def pause(self) -> None:
        """See `RunningSandbox.pause`."""
        await self._on_its_own(self._pause, even_paused=True)

    async def resume(self) -> None:
        """See `RunningSandbox.resume`."""
        await self._on_its_own(self._resume, even_paused=True)

    async def _pause(self) -> None:
        if self._still is None:
            try:
                self._still = await anyio.to_thread.run_sync(freeze, self.pid, self._group_folders(), self._apart())
            except OSError as error:
                raise BackendError(f"{self.id} was not paused, and goes on: {error.strerror}") from error
            self._gate.close(self._is_paused)

    async def _resume(self) -> None:
        if self._still is not None:
            await anyio.to_thread.run_sync(self._still.thaw)
            self._still = None
            self._gate.open()

    def _is_paused(self) -> BackendError:
        if self._channel.lost.is_set():
            return BackendError(f"{self.id} is gone")
        return SandboxPaused(self.id)

    def _group_folders(self) -> list[str]:
        """Return the folders of the control groups that it has for itself, with its init in them."""
        return []

    def _apart(self) -> Sequence[int]:
        """Return the pids of programs in it that are no children of its init's or of each other."""
        return ()

    async def _on_its_own(self, work: Callable[[], Awaitable[_T]], *, even_paused: bool = False) -> _T:
        """Do something alone, and to its end whoever stops waiting: what it has changed must be noted."""
        done = anyio.Event()
        result: list[_T] = []
        failure: list[Exception] = []

        async def run() -> None:
            try:
                async with self._gate.alone(even_closed=even_paused, within_s=_BEGUN_S if even_paused else None):
                    result.append(await work())
            except TimeoutError:
                failure.append(BackendError(f"{self.id}: what was begun in it has not come to its end"))
            except Exception as error:  # noqa: BLE001 told to who waits
                failure.append(error)
            finally:
                done.set()

        self._channel.start_soon(run)
        await done.wait()
        if failure:
            raise failure[0]
        if not result:
            raise BackendError(f"{self.id} is gone")
        return result[0]

    async def checkpoint(
        self,
        *,
        files_only: bool = False,  # noqa: ARG002
        beside: Sequence[ForkableProcess | Process] = (),  # noqa: ARG002
    ) -> Checkpoint:
        """See `RunningSandbox.checkpoint`."""
        raise self._no_layers()

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:  # noqa: ARG002
        """See `RunningSandbox.fork`."""
        raise self._no_layers()

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:  # noqa: ARG002
        """See `RunningSandbox.save_base`."""
        raise self._no_layers()

    async def forget(self, checkpoint: Checkpoint) -> None:
        """See `RunningSandbox.forget`."""

    def _no_layers(self) -> BackendError:
        return BackendError(f"{self.id} has no layers, so its files cannot be kept", hint='use the backend "local"')

    @property
    def memory_kills(self) -> int:
        """See `RunningSandbox.memory_kills`."""
        return self._channel.count_kills()

    async def wait_lost(self) -> None:
        """Return when the sandbox is gone, whoever ended it."""
        await self._channel.lost.wait()

    @abstractmethod
    async def raise_priority(self) -> None: ...

    @abstractmethod
    async def usage(self) -> Usage: ...

    async def cpu_s(self) -> float:
        """See `RunningSandbox.cpu_s`."""
        return await anyio.to_thread.run_sync(partial(tree_cpu_s, self.pid, beside=self._apart()))

    @abstractmethod
    async def _remove(self) -> None:
        """End everything in the sandbox; completes under cancellation."""

    async def aclose(self) -> None:
        """See `RunningSandbox.aclose`."""
        with anyio.CancelScope(shield=True):
            async with self._closing:  # who comes second returns when it has ended, too
                if not self._closed:
                    self._closed = True
                    await self._remove()


@asynccontextmanager
async def _ending(execution: Execution) -> AsyncGenerator[None]:
    """See a command to its end: what it has left running goes on only if both ended in peace."""
    try:
        yield
    except BaseException:
        await _end_at_once(execution)  # with what it left, if it has ended itself
        raise
    if not execution.has_ended:
        await _end_at_once(execution)


def inner_pids(processes: Sequence[object]) -> list[int]:
    """Return how those among these that an init has started are called in its sandbox."""
    started = [each.execution for each in processes if isinstance(each, GivenProcess)]
    return [execution.pid for execution in started if execution.pid is not None and not execution.has_ended]


def _streams(pipes: StdioPipes, execution: Execution) -> CommandStreams:
    return CommandStreams(stdin=pipes.stdin, stdout=pipes.stdout, stderr=pipes.stderr, execution=execution)


async def _end_politely(execution: Execution) -> int | None:
    """Wait, SIGTERM, wait, SIGKILL, wait; bounded, and shielded from cancellation.

    Returns:
        The signal that it took, None for none.
    """
    with anyio.CancelScope(shield=True):
        if await _ends_soon(execution):
            return None
        await execution.signal(signal.SIGTERM)
        if await _ends_soon(execution):
            return signal.SIGTERM
        await execution.kill()
        await _ends_soon(execution)
        return signal.SIGKILL


async def _end_at_once(execution: Execution) -> None:
    """Kill: an interpreter that is left to tidy up burns a quarter of a second of CPU for nobody."""
    with anyio.CancelScope(shield=True):
        await execution.kill()
        await _ends_soon(execution)


async def _ends_soon(execution: Execution) -> bool:
    with anyio.move_on_after(_POLITE_S):
        try:
            await execution.wait()
        except BackendError:
            return True  # it went with the sandbox
    return execution.has_ended
