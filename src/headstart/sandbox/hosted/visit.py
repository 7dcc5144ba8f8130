"""One client's connection: what it asks for is done by the host's sandboxes."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import anyio
from anyio import BrokenResourceError, ClosedResourceError
from anyio.abc import TaskGroup

from headstart.backends.contract import Process, TerminalSize
from headstart.backends.spawner.streams import PipeSendStream
from headstart.errors import BackendError, HeadstartError
from headstart.runtime.identities import choice_of
from headstart.sandbox.hosted import messages as m
from headstart.sandbox.hosted.faults import failure_of
from headstart.sandbox.hosted.host import SandboxHost
from headstart.sandbox.hosted.line import Line, PeerGone, Received, Unreadable, content_in, in_memory
from headstart.sandbox.output import OnOutput

__all__ = ["Visit"]

_STDIO = 3
_OUTPUTS = 2
_FEWER_FILES = "if the service has as many files open as it may (ulimit -n), do less at once"
_CANCELLED = m.Failed(kind="HeadstartError", message="it was cancelled")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is told at the end, and what goes with it; the descriptors are closed then."""

    record: object = m.Done()
    descriptors: Sequence[int] = ()


class Visit:
    """Answers what one client asks, all at the same time."""

    def __init__(self, host: SandboxHost, line: Line) -> None:
        self._host = host
        self._line = line
        self._asked: dict[int, anyio.CancelScope] = {}
        self._processes: dict[int, Process] = {}

    async def serve(self) -> None:
        """Go on until the client has gone; what it has begun ends with it."""
        try:
            async with anyio.create_task_group() as tasks:
                with suppress(PeerGone):
                    while True:
                        self._take(await self._line.receive(), tasks)
                tasks.cancel_scope.cancel()
        finally:
            self._line.close()

    def _take(self, received: Received, tasks: TaskGroup) -> None:
        match received.record:
            case m.Cancel(number=number):
                _close_all(received.descriptors)
                if number in self._asked:
                    self._asked[number].cancel()
            case _:
                tasks.start_soon(self._see_to, received)

    async def _see_to(self, received: Received) -> None:
        """Do what was asked, and tell what came of it."""
        answer = _Answer(_CANCELLED)
        try:
            with anyio.CancelScope() as scope:
                self._asked[received.number] = scope
                answer = await self._answer(received)
        finally:
            self._asked.pop(received.number, None)
            _close_all(received.descriptors)
        try:
            await self._line.send(received.number, answer.record, answer.descriptors)
        except PeerGone:
            self._line.close()  # who does not take an answer would wait for it for ever
        except (BackendError, OSError) as error:
            _log.warning("a client is let go, as it cannot be answered: %s", error)
            self._line.close()
        finally:
            _close_all(answer.descriptors)

    async def _answer(self, received: Received) -> _Answer:
        try:
            return await self._do(received)
        except (HeadstartError, OSError) as error:
            return _Answer(failure_of(error))
        except PeerGone:
            return _Answer()  # nobody will hear it
        except Exception as error:  # noqa: BLE001 told to who asked, and to the log
            _log.exception("the service failed at what a client of sandboxes asked for")
            return _Answer(m.Failed(kind="HeadstartError", message=f"the service failed at this: {error!r}"))

    async def _do(self, received: Received) -> _Answer:
        match received.record:
            case m.Start() | m.StartOnTerminal() | m.SignalProcess():
                return await self._do_with_process(received)
            case m.ReadFile() | m.WriteFile() | m.ListFiles() | m.StatFile():
                return await self._do_with_content(received)
            case m.MakeFolder() | m.RenameFile() | m.RemoveFile():
                return await self._do_with_names(received.record)
            case m.RunCode() | m.RunInShell():
                return await self._do_with_code(received)
            case m.Create() | m.ListSandboxes() | m.LookUp() | m.Watch():
                return await self._do_with_host(received)
            case Unreadable(why=why):
                hint = "if headstart was updated, start the service again"
                raise HeadstartError(f"the service cannot read what it was asked for: {why}", hint=hint)
            case _:
                return await self._do_with_state(received.record)

    async def _do_with_host(self, received: Received) -> _Answer:
        match received.record:
            case m.Create():
                asked = received.record
                box = await self._host.create(
                    asked.options,
                    name=asked.name,
                    ends_after_idle_s=asked.ends_after_idle_s,
                    hibernates_after_idle_s=asked.hibernates_after_idle_s,
                )
                return _Answer(m.Named(id=box.id))
            case m.ListSandboxes():
                return _Answer(m.Sandboxes(sandboxes=await self._host.list()))
            case m.LookUp(sandbox=sandbox):
                return _Answer(m.Sandboxes(sandboxes=(await self._host.look(sandbox),)))
            case _:
                return await self._tell_events(received.number)

    async def _do_with_state(self, asked: object) -> _Answer:
        match asked:
            case m.Checkpoint(sandbox=sandbox, files_only=files_only, durable=durable):
                return _Answer(await self._host.checkpoint(sandbox, files_only=files_only, durable=durable))
            case m.Rollback(sandbox=sandbox, checkpoint=checkpoint, fresh=fresh):
                frozen = await self._host.rollback(sandbox, checkpoint, identity=choice_of(fresh=fresh))
                return _Answer(m.Named(id=sandbox, frozen_secrets=frozen))
            case m.Drop(sandbox=sandbox, checkpoint=checkpoint):
                await self._host.drop(sandbox, checkpoint)
            case m.Fork(sandbox=sandbox, files_only=files_only, fresh=fresh):
                branch = await self._host.fork(sandbox, files_only=files_only, identity=choice_of(fresh=fresh))
                return _Answer(m.Named(id=branch.id, frozen_secrets=branch.frozen_secrets))
            case m.Commit(sandbox=sandbox):
                await self._host.commit(sandbox)
            case _:
                return await self._do_with_life(asked)
        return _Answer()

    async def _do_with_life(self, asked: object) -> _Answer:
        match asked:
            case m.Pause():
                await self._host.pause(asked.sandbox)
            case m.Resume():
                await self._host.resume(asked.sandbox)
            case m.Hibernate():
                await self._host.hibernate(asked.sandbox)
            case m.Kill():
                await self._host.kill(asked.sandbox)
            case m.KeepAlive():
                self._host.keep_alive(asked.sandbox)
            case _:
                raise HeadstartError(f"{type(asked).__name__} is nothing that can be asked for")
        return _Answer()

    async def _tell_events(self, number: int) -> _Answer:
        async with self._host.happenings.watching() as events:
            await self._line.send(number, m.Begun())
            async for event in events:
                await self._line.send(number, event)
        return _Answer()

    # ------------------------------------------------------------ commands

    async def _do_with_process(self, received: Received) -> _Answer:
        match received.record:
            case m.Start(sandbox=sandbox, argv=argv, env=env, cwd=cwd, alone=alone):
                if len(received.descriptors) != _STDIO:
                    came = len(received.descriptors)
                    raise HeadstartError(f"a command needs three descriptors, and {came} came", hint=_FEWER_FILES)
                _refuse_folders(received.descriptors)
                async with self._host.awake(sandbox) as box:
                    started = box.start_on(argv, received.descriptors, alone=alone, cwd=cwd, env=env)
                    return await self._follow(received, started, lambda _: ())
            case m.StartOnTerminal(sandbox=sandbox, argv=argv, env=env, cwd=cwd, rows=rows, columns=columns):
                async with self._host.awake(sandbox) as box:
                    size = TerminalSize(rows=rows, columns=columns)
                    on_terminal = box.start_on_terminal(argv, size, cwd=cwd, env=env)
                    return await self._follow(received, on_terminal, lambda process: (process.descriptor,))
            case m.SignalProcess(number=number, signal=signal):
                if number in self._processes:  # else it has ended
                    process = self._processes[number]
                    await (process.terminate() if signal is m.Signal.TERMINATE else process.interrupt())
                return _Answer()
            case _:
                raise AssertionError(received.record)

    async def _follow(
        self,
        received: Received,
        started: AbstractAsyncContextManager[Any],
        shown_with: Callable[[Any], Sequence[int]],
    ) -> _Answer:
        """Start a command, say so, and return how it ended."""
        async with started as process:
            _close_all(received.descriptors)  # it alone has them now, so that their readers see its end
            self._processes[received.number] = process
            try:
                await self._line.send(received.number, m.Begun(), shown_with(process))
                return _Answer(m.Ended(status=await process.wait()))
            finally:
                del self._processes[received.number]

    async def _do_with_code(self, received: Received) -> _Answer:
        with _telling(received.descriptors) as on_output:
            match received.record:
                case m.RunCode(sandbox=sandbox, code=code, timeout_s=timeout_s):
                    async with self._host.awake(sandbox) as box:
                        return _Answer(await box.run_code(code, timeout_s=timeout_s, on_output=on_output))
                case m.RunInShell(sandbox=sandbox, code=code, timeout_s=timeout_s):
                    async with self._host.awake(sandbox) as box:
                        return _Answer(await box.run_in_shell(code, timeout_s=timeout_s, on_output=on_output))
                case _:
                    raise AssertionError(received.record)

    # ------------------------------------------------------------ files

    async def _do_with_content(self, received: Received) -> _Answer:
        match received.record:
            case m.ReadFile(sandbox=sandbox, path=path, limit_bytes=limit_bytes):
                async with self._host.awake(sandbox) as box:
                    content = await box.files.read(path, limit_bytes=limit_bytes)
                return _Answer(m.Content(), (await in_memory(content),))
            case m.WriteFile(sandbox=sandbox, path=path, mode=mode):
                if len(received.descriptors) != 1:
                    raise HeadstartError("the content to be written did not come with the request")
                content = await content_in(received.descriptors[0])
                async with self._host.awake(sandbox) as box:
                    await box.files.write(path, content, mode=mode)
                return _Answer()
            case m.ListFiles(sandbox=sandbox, path=path):
                async with self._host.awake(sandbox) as box:
                    return _Answer(m.FileInfos(files=tuple(await box.files.list(path))))
            case m.StatFile(sandbox=sandbox, path=path):
                async with self._host.awake(sandbox) as box:
                    return _Answer(m.FileInfos(files=(await box.files.stat(path),)))
            case _:
                raise AssertionError(received.record)

    async def _do_with_names(self, asked: m.MakeFolder | m.RenameFile | m.RemoveFile) -> _Answer:
        async with self._host.awake(asked.sandbox) as box:
            match asked:
                case m.MakeFolder():
                    await box.files.make_folder(asked.path)
                case m.RenameFile():
                    await box.files.rename(asked.path, asked.to)
                case m.RemoveFile():
                    await box.files.remove(asked.path)
        return _Answer()


def _refuse_folders(descriptors: Sequence[int]) -> None:
    """A folder leads to all that is below it, and by `..` to all that is above: that is the host's."""
    for descriptor in descriptors:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            hint = "mount it when the sandbox is created"
            raise HeadstartError("a command in a sandbox cannot be given a folder of the host", hint=hint)


@contextmanager
def _telling(descriptors: list[int]) -> Generator[OnOutput | None]:
    """Yield what tells output to these two; None if there are none. They are closed at the end."""
    if not descriptors:
        yield None
        return
    if len(descriptors) != _OUTPUTS:
        raise HeadstartError(f"code needs two descriptors or none, and {len(descriptors)} came", hint=_FEWER_FILES)
    stdout, stderr = (PipeSendStream(descriptor) for descriptor in descriptors)
    descriptors.clear()

    async def tell(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        with suppress(BrokenResourceError, ClosedResourceError):  # the client does not want it
            await (stdout if name == "stdout" else stderr).send(chunk)

    try:
        yield tell
    finally:
        stdout.close()
        stderr.close()


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    if isinstance(descriptors, list):
        descriptors.clear()
