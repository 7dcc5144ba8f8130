"""Programs in a sandbox whose state can be kept, and go on in its forks; see `guest.shadows`."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import finalize

import anyio
from anyio import EndOfStream

from headstart.backends.contract import ByteStreams, Command, ExitStatus, ForkableProcess, Process, ProcessImage
from headstart.backends.local.cgroups import GroupSetting
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.client import SpawnerClient
from headstart.backends.spawner.gate import Gate
from headstart.backends.spawner.streams import PipeReceiveStream, PipeSendStream, StdioPipes
from headstart.errors import BackendError, NotCapturable

__all__ = ["Errand", "Programs"]

_ENDS_S = 1.0

_log = logging.getLogger(__name__)


class Errand(Protocol):
    """Has a helper do something to a sandbox; see `SpawnerClient.errand`."""

    async def __call__(
        self, do: str, *, descriptors: Sequence[int] = (), within_s: float | None = ..., **details: Any
    ) -> Mapping[str, Any]: ...


class _Reports:
    """What the tracer tells of a program that it is to keep, a line of JSON at a time; see `guest.tracer`."""

    def __init__(self) -> None:
        read_end, self._theirs = os.pipe2(os.O_CLOEXEC)
        self._stream = PipeReceiveStream(read_end)
        self._received = b""

    async def order(self, errand: Errand, do: str, **details: Any) -> Mapping[str, Any]:
        """Have a helper do something and report it here; return what it answers."""
        try:
            return await errand(do, descriptors=[self._theirs], **details)
        finally:
            os.close(self._theirs)

    async def next(self) -> Mapping[str, Any]:
        """Return the next one; nothing if there is none any more."""
        with suppress(EndOfStream):
            while b"\n" not in self._received:
                self._received += await self._stream.receive()
        line, end, self._received = self._received.partition(b"\n")
        return json.loads(line) if end else {}

    def close(self) -> None:
        """Take no more of them."""
        self._stream.close()


def _check(told: Mapping[str, Any]) -> None:
    """Raise what the tracer tells has gone wrong."""
    match told:
        case {"outcome": "watched" | "kept" | "withdrawn"}:
            pass
        case {"outcome": "busy", "threads": threads}:
            raise NotCapturable(
                f"it has other threads ({', '.join(threads)}), which no fork has",
                hint="end them, or ask for the files only",
                held=[f"thread {thread}" for thread in threads],
            )
        case {"error": error}:
            raise BackendError(error)
        case _:
            raise BackendError("it ended, or what keeps programs was killed")


class Image:
    """Implements `ProcessImage`; it is let go of with the last reference to it."""

    def __init__(self, name: str, reports: _Reports, drop: Callable[[], None]) -> None:
        self.name = name
        self.is_gone = False
        self._reports = reports
        self._settling = anyio.Lock()
        self._is_settled = False
        finalize(self, drop)
        finalize(self, reports.close)

    async def settled(self) -> None:
        async with self._settling:
            if self._is_settled:
                return
            try:
                _check(await self._reports.next())
            except BackendError:
                self.is_gone = True
                raise
            self._is_settled = True
            self._reports.close()


@dataclass(slots=True, kw_only=True)
class _Streams:
    """Implements `ByteStreams`."""

    program: Program
    stdin: PipeSendStream
    stdout: PipeReceiveStream
    stderr: PipeReceiveStream
    forced_by: int | None = None

    async def wait(self) -> ExitStatus:
        return await self.program.wait()

    async def terminate(self) -> None:
        await self.program.signal(signal.SIGTERM)

    async def interrupt(self) -> None:
        await self.program.signal(signal.SIGINT)


class Program:
    """Implements `ForkableProcess`; made by `Programs`."""

    def __init__(  # noqa: PLR0913 (what it stands on)
        self,
        name: str,
        pid: int,
        pipes: StdioPipes,
        *,
        client: SpawnerClient,
        errand: Errand,
        home: Mapping[str, Any],
        channel: Channel,
    ) -> None:
        self.name = name
        self.pid = pid
        self._home = home
        self._streams = _Streams(program=self, stdin=pipes.stdin, stdout=pipes.stdout, stderr=pipes.stderr)
        self._client = client
        self._errand = errand
        self._channel = channel
        self._kills_before = channel.count_kills()
        self._images = 0
        self._ended = anyio.Event()
        self._status: ExitStatus | None = None

    @property
    def streams(self) -> ByteStreams:
        """See `ForkableProcess.streams`."""
        return self._streams

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def see_it_end(self, lost: anyio.Event) -> None:
        """Return when it has, or its sandbox is `lost`."""

        async def go_with_sandbox() -> None:
            await lost.wait()
            waiting.cancel_scope.cancel()

        async with anyio.create_task_group() as waiting:
            waiting.start_soon(go_with_sandbox)
            with suppress(BackendError):  # nobody can tell any more
                told = await self._errand("wait", program=self.name, within_s=None)
                if "outcome" not in told:
                    self._status = self._status_in(told)
            waiting.cancel_scope.cancel()
        self._ended.set()

    def _status_in(self, told: Mapping[str, Any]) -> ExitStatus:
        number = told.get("signal")
        ran_out = number == signal.SIGKILL and self._channel.count_kills() > max(
            self._kills_before, self._channel.kills_told
        )
        if ran_out:
            self._channel.note_kills_told()
        return ExitStatus(code=told.get("code"), signal=number, out_of_memory=ran_out)

    async def wait(self) -> ExitStatus:
        await self._ended.wait()
        if self._status is None:
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise BackendError(f"{self.name} has gone with its sandbox, or what keeps programs was killed")
        return self._status

    async def signal(self, number: int) -> None:
        if not self.has_ended:
            await self._errand("signal", program=self.name, signal=number)

    async def kill(self) -> None:
        """Kill it and all that it started; return when it has ended, within a second."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(_ENDS_S), suppress(BackendError):
            await self._errand("kill", program=self.name)
            await self._ended.wait()

    async def keep(self, ask: Callable[[], Awaitable[bool]]) -> ProcessImage | None:
        """See `ForkableProcess.keep`."""
        self._images += 1
        name = f"{self.name}.{self._images}"
        reports = _Reports()
        first: Mapping[str, Any] = {}
        try:
            _check(await reports.order(self._errand, "keep", program=self.name, image=name, **self._home))
            try:
                if await ask():
                    first = await reports.next()
            finally:
                if not first:
                    with anyio.CancelScope(shield=True):
                        await self._errand("withdraw", program=self.name)
            if "stands" in first:
                return Image(name, reports, lambda: self._drop(name))
            _check(first or await reports.next())
            return None
        finally:
            if "stands" not in first:
                reports.close()
                self._drop(name)  # who was cancelled does not know whether it was made

    def _drop(self, image: str) -> None:
        async def drop() -> None:
            try:
                await self._client.errand(None, "", "forget", image=image)
            except BackendError as error:
                _log.debug("the image %s is left until the service ends: %s", image, error)

        if not self._client.is_gone:
            self._client.start_soon(drop)


class Programs:
    """Those of one sandbox.

    Args:
        sandbox: Its name, which begins theirs.
        channel: Its own.
        settings: Of the control groups that what is kept of them is in.
        lineage: What that counts to.
    """

    def __init__(  # noqa: PLR0913 (what it stands on)
        self,
        sandbox: str,
        *,
        client: SpawnerClient,
        errand: Errand,
        gate: Gate,
        channel: Channel,
        settings: Sequence[GroupSetting],
        lineage: str,
    ) -> None:
        self._sandbox = sandbox
        self._client = client
        self._errand = errand
        self._gate = gate
        self._channel = channel
        self._home = {"home": f"kept-{sandbox}", "settings": settings, "lineage": lineage}
        self._running: set[Program] = set()

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [program.pid for program in self._running]

    def pids_of(self, programs: Iterable[ForkableProcess | Process]) -> list[int]:
        """Return the pids of those among these that run here."""
        return [program.pid for program in self._running if program in programs]

    @asynccontextmanager
    async def start(self, command: Command, descriptors: Sequence[int]) -> AsyncGenerator[ForkableProcess]:
        """See `RunningSandbox.start_forkable`; the command is complete."""
        order = {"argv": list(command.argv), "env": dict(command.env), "cwd": command.cwd}
        try:
            async with self._begun("start", order, descriptors) as program:
                yield program
        except _NotBegunError as error:
            raise BackendError(f"cannot run {command.argv[0]!r}: {error}") from error

    @asynccontextmanager
    async def revive(self, image: ProcessImage, descriptors: Sequence[int]) -> AsyncGenerator[ForkableProcess]:
        """See `RunningSandbox.revive`."""
        try:
            async with self._begun("revive", {}, descriptors, image=image.name) as program:
                yield program
        except _NotBegunError as error:
            raise BackendError(f"{image.name} cannot go on in {self._sandbox}: {error}") from error

    @asynccontextmanager
    async def _begun(
        self, do: str, order: dict[str, Any], descriptors: Sequence[int], **details: Any
    ) -> AsyncGenerator[Program]:
        pipes = StdioPipes.open()
        number = self._channel.take_number()
        name = f"{self._sandbox}.{number}"
        try:
            try:
                async with self._gate.passing():
                    told = await self._errand(
                        do,
                        program=name,
                        order={**order, "mark": number},
                        descriptors=[*pipes.theirs, *descriptors],
                        **details,
                    )
            except BackendError as error:
                raise _NotBegunError(str(error)) from error
            finally:
                pipes.hand_over()
            if "pid" not in told:  # an outcome
                raise _NotBegunError("what keeps programs has let go of it, or was killed")
            program = Program(
                name,
                told["pid"],
                pipes,
                client=self._client,
                errand=self._errand,
                home=self._home,
                channel=self._channel,
            )
            self._running.add(program)
            self._client.start_soon(lambda: self._look_after(program))
            try:
                yield program
            finally:
                if not program.has_ended and not self._channel.lost.is_set():
                    await program.kill()
        finally:
            pipes.close()

    async def _look_after(self, program: Program) -> None:
        await program.see_it_end(self._channel.lost)
        self._running.discard(program)


class _NotBegunError(Exception):
    """It was not started; why, is to be told with what it is."""
