"""A program in a sandbox that is given pieces of code, one at a time, and keeps its state between them.

It speaks over pipes of its own: requests in through its stdin, results out through descriptor 3: a number, a
space, and either "+", the code begins to run, or what came of it; then a NUL byte.
What the code says goes through 4 and 5, raw; it is read as it comes, and never parsed.

One piece is a *turn*. A turn that takes too long, or that nobody waits for any more, is interrupted
(SIGINT, to the whole process group). If that brings no result in time, the program is killed, and its
state is lost. A signal is on its way for a while: before the next turn begins, another command is
run, which cannot start before the signal has arrived.
"""

from __future__ import annotations

import fcntl
import math
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.lowlevel
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream

from headstart.backends.contract import (
    ByteStreams,
    Command,
    ExitStatus,
    ForkableProcess,
    ProcessImage,
    RunningSandbox,
)
from headstart.backends.output import Sink
from headstart.errors import BackendError
from headstart.sandbox.kernels.pipes import Pipe, open_pipes

__all__ = ["GRACE_S", "Interpreter", "Turn"]

GRACE_S = 2.0
"""How long an interrupted piece of code has to end."""
_START_S = 30.0
_END_S = 3.0
_EXITS_S = 0.5
_AGAIN_S = 1.0
"""How long an interrupt may be without effect, until there is another."""
_LONGEST_RECORD = 1 << 26
_LONGEST_WORDS = 1 << 16
_NUMBER = re.compile(rb"\d{1,15}")
_BEGUN = b"+"
_NONSENSE = "it answered with what means nothing, and was killed"
_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_BARRIER = Command(argv=("true",))


_Begun = tuple[ByteStreams, ForkableProcess | None]
"""A program with its stdio; and itself, if it can fork."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How a piece of code went.

    Attributes:
        record: The result, as the program tells it; None if the program is gone.
        status: How the program ended; None if it did not, or nobody knows.
        trouble: Why it is gone, for people; "" if it is not.
        dropped: Some of what was said before the turn is missing.
    """

    record: bytes | None
    status: ExitStatus | None = None
    trouble: str = ""
    timed_out: bool = False
    dropped: bool = False


@dataclass
class _Progress:
    """How far a turn has got."""

    number: int
    request: bytes
    touched: bool = False
    sent: bool = False
    begun: bool = False
    answered: bool = False
    record: bytes | None = None
    timed_out: bool = False
    trouble: str = ""
    failures: list[Exception] = field(default_factory=list[Exception])

    def give_up(self) -> None:
        self.trouble, self.answered = _NONSENSE, True


class Interpreter:
    """A running program; made by `start`, ended by `aclose`. One turn at a time."""

    def __init__(self, running: RunningSandbox, pipes: Sequence[Pipe], *, grace_s: float) -> None:
        self._running = running
        self._results, self._stdout, self._stderr = pipes
        self._grace_s = grace_s
        self._stack = AsyncExitStack()
        self._process: ForkableProcess | None = None
        self._streams: ByteStreams | None = None
        self._status: ExitStatus | None = None
        self._received = bytearray()
        self._searched = 0
        """How much of it holds no end of a record."""
        self._is_idle = False
        self._is_ready = False
        self._last_words = ""
        """What it wrote to the stderr that it was started with, if it ended before it was ready."""

    @classmethod
    async def start(
        cls,
        running: RunningSandbox,
        command: Command,
        *,
        program: bytes = b"",
        greeting: bytes = b"",
        forks: bool = False,
        grace_s: float = GRACE_S,
    ) -> Interpreter:
        """Start a program, and return when it is ready, which it tells with result 0. If cancelled, it is killed.

        Args:
            running: Where.
            command: What is run.
            program: What it finds at its descriptor 6.
            greeting: What it is told first.
            forks: Whether it can be asked to, and so be kept.
            grace_s: How long it has to react to an interrupt.

        Raises:
            BackendError: The sandbox is gone, there is no such program, or it does not get ready.
        """

        async def begin(stack: AsyncExitStack, descriptors: Sequence[int]) -> _Begun:
            if forks:
                process = await stack.enter_async_context(running.start_forkable(command, descriptors=descriptors))
                return process.streams, process
            return await stack.enter_async_context(running.start(command, descriptors=descriptors)), None

        return await cls._begin(
            running, begin, name=command.argv[0], program=program, greetings=(greeting,), grace_s=grace_s
        )

    @classmethod
    async def revive(
        cls, running: RunningSandbox, image: ProcessImage, *, greeting: bytes = b"", grace_s: float = GRACE_S
    ) -> Interpreter:
        """Let a program that was kept go on in a sandbox; it tells when it is ready as one that was started does.

        The `greeting` is what it is told then, if anything; it tells again that it is ready.

        Raises:
            BackendError: The sandbox or the image is gone, or it does not get ready.
        """

        async def begin(stack: AsyncExitStack, descriptors: Sequence[int]) -> _Begun:
            process = await stack.enter_async_context(running.revive(image, descriptors=descriptors))
            return process.streams, process

        greetings = (b"", greeting) if greeting else (b"",)
        return await cls._begin(running, begin, name=image.name, program=None, greetings=greetings, grace_s=grace_s)

    @classmethod
    async def _begin(
        cls,
        running: RunningSandbox,
        begin: Callable[[AsyncExitStack, Sequence[int]], Awaitable[_Begun]],
        *,
        name: str,
        program: bytes | None,
        greetings: Sequence[bytes],
        grace_s: float,
    ) -> Interpreter:
        ends = open_pipes(3)
        interpreter = cls(running, [Pipe(ours) for ours, _ in ends], grace_s=grace_s)
        theirs = [end for _, end in ends]
        try:
            try:
                if program is not None:
                    theirs.append(_read_only(program))
                interpreter._streams, interpreter._process = await begin(interpreter._stack, theirs)
            finally:
                for end in theirs:
                    os.close(end)
            for greeting in greetings:
                await interpreter._get_ready(name, greeting)
        except BaseException:
            await interpreter.aclose()
            raise
        return interpreter

    async def _get_ready(self, name: str, greeting: bytes) -> None:
        turn = await self.turn(0, greeting, timeout_s=_START_S, sinks=(_nowhere, _nowhere))
        if turn.record is None:
            raise BackendError(f"{name!r} was started and did not get ready: {turn.trouble}", detail=self._last_words)
        self._is_ready = True

    @property
    def is_usable(self) -> bool:
        """Whether it can be given a turn: it has not ended, and is not in the middle of one that was given up."""
        if self._is_idle:
            self._results.look()
        return self._is_idle and not self._results.at_end

    @property
    def process(self) -> ForkableProcess | None:
        """What runs, once it does, if it can be kept."""
        return self._process

    @property
    def streams(self) -> ByteStreams | None:
        """What runs, once it does."""
        return self._streams

    async def keep(
        self, number: int, request: bytes, forks: Callable[[Turn], bool], *, timeout_s: float
    ) -> ProcessImage | None:
        """Take a turn in which it says whether it forks, and then does; return what is kept of it.

        Arguments and errors as for `turn` and `ForkableProcess.keep`; `forks` returns what it has said.
        """
        if self._process is None:
            raise BackendError("it was never started")

        async def ask() -> bool:
            return forks(await self.turn(number, request, timeout_s=timeout_s, sinks=(_nowhere, _nowhere)))

        return await self._process.keep(ask)

    async def turn(self, number: int, request: bytes, *, timeout_s: float | None, sinks: tuple[Sink, Sink]) -> Turn:
        """Send a request, give the output to the sinks, and return the result when all of it has been given.

        If cancelled, or if a sink raises, the code is interrupted; if it does not react, the program is killed.

        Args:
            number: The result's; no other turn's.
            request: What the program is sent.
            timeout_s: How long it may take until it is interrupted.
            sinks: Take stdout and stderr.

        Raises:
            BackendError: The sandbox is gone.
            Exception: What a sink raises goes on as it is.
        """
        self._is_idle = False
        progress = _Progress(number=number, request=request)
        pipes = (self._stdout, self._stderr)
        dropped = any(pipe.dropped for pipe in pipes)
        for pipe in (self._results, *pipes):
            pipe.begin()
        try:
            await self._take(progress, timeout_s, sinks)
            if progress.timed_out and progress.record is not None:
                await self._settle()
        except BaseException:
            await self._give_up(progress)
            raise
        if progress.record is None:
            return Turn(
                record=None,
                status=self._status,
                trouble=progress.trouble,
                timed_out=progress.timed_out,
                dropped=dropped,
            )
        self._rest()
        return Turn(record=progress.record, timed_out=progress.timed_out, dropped=dropped)

    async def _take(self, progress: _Progress, timeout_s: float | None, sinks: tuple[Sink, Sink]) -> None:
        """Do all that a turn is at once; a failure ends the rest, and is raised as it is, in no group."""

        async def attempt(work: Callable[[], Awaitable[None]]) -> None:
            try:
                await work()
            except Exception as failure:  # noqa: BLE001 raised below
                progress.failures.append(failure)
                draining.cancel_scope.cancel()

        async def answer() -> None:
            await self._await_answer(progress, math.inf if timeout_s is None else timeout_s)
            asking.cancel_scope.cancel()

        async with anyio.create_task_group() as draining:
            for pipe, sink in zip((self._stdout, self._stderr), sinks, strict=True):
                draining.start_soon(attempt, partial(pipe.drain, sink))
            async with anyio.create_task_group() as asking:
                for work in (partial(self._send, progress), self._watch, answer):
                    asking.start_soon(attempt, work)
            self._stdout.finish()
            self._stderr.finish()
        for failure in progress.failures:
            raise failure

    async def _await_answer(self, progress: _Progress, timeout_s: float) -> None:
        with anyio.move_on_after(timeout_s):
            await self._receive(progress)
        if not progress.answered:
            progress.timed_out = True
            with anyio.move_on_after(self._grace_s):
                await self._interrupt(progress)
        if progress.record is None:
            progress.trouble = progress.trouble or await self._learn_why(progress)
            await self._end()

    async def _learn_why(self, progress: _Progress) -> str:
        if not progress.answered:
            return f"it had not reacted to an interrupt after {self._grace_s:g} s, and was killed"
        with anyio.move_on_after(_EXITS_S):  # its pipe is at an end before it has quite ended
            self._status = await self._talk.wait()
            return _told(self._status)
        return "it closed its channel or became another program, and was killed"

    async def _interrupt(self, progress: _Progress) -> None:
        """Interrupt the code until there is an answer; not before it runs, because that would interrupt what begins it."""
        await self._receive(progress, until_begun=True)
        while not progress.answered:
            await self._talk.interrupt()
            with anyio.move_on_after(_AGAIN_S):
                await self._receive(progress)

    async def _receive(self, progress: _Progress, *, until_begun: bool = False) -> None:
        """Wait for the turn's record; without one, the program is gone, or to be given up."""
        while not progress.answered and not (until_begun and progress.begun):
            end = self._received.find(b"\0", self._searched)
            if end >= 0:
                _understand(bytes(self._received[:end]), progress)
                del self._received[: end + 1]
                self._searched = 0
                continue
            self._searched = len(self._received)
            chunk = await self._results.receive()
            self._received += chunk
            progress.answered = not chunk
            if len(self._received) > _LONGEST_RECORD:
                progress.give_up()

    async def _send(self, progress: _Progress) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()
        progress.touched = True
        with suppress(BrokenResourceError, ClosedResourceError):  # it ends, which others see
            await self._talk.stdin.send(progress.request)
        progress.sent = True

    async def _watch(self) -> None:
        self._status = await self._talk.wait()
        self._results.finish()  # others may hold its other end

    @property
    def _talk(self) -> ByteStreams:
        if self._streams is None:
            raise BackendError("it was never started")
        return self._streams

    def _rest(self) -> None:
        for pipe in (self._results, self._stdout, self._stderr):
            pipe.rest()
        self._is_idle = True

    async def _settle(self) -> None:
        """Return when no signal is on its way any more."""
        with suppress(BackendError):
            await self._running.run(_BARRIER)

    async def _give_up(self, progress: _Progress) -> None:
        """Get back to where a turn can begin, or end the program; bounded, and shielded from cancellation."""
        with anyio.CancelScope(shield=True):
            if progress.sent and not progress.answered:
                with anyio.move_on_after(self._grace_s), suppress(BackendError):
                    await self._abandon(progress)
            if progress.record is None and progress.touched:
                await self._end()
                return
            if progress.timed_out:
                await self._settle()
            for pipe in (self._stdout, self._stderr):
                pipe.finish()
                await pipe.drain(_nowhere)
            self._rest()

    async def _abandon(self, progress: _Progress) -> None:
        progress.timed_out = True
        async with anyio.create_task_group() as draining:
            for pipe in (self._stdout, self._stderr):
                draining.start_soon(pipe.drain, _nowhere)
            await self._interrupt(progress)
            draining.cancel_scope.cancel()

    async def _end(self) -> None:
        """Kill it, and learn how it ended."""
        if not self._is_ready:
            self._last_words = await self._read_last_words()
        await self._stack.aclose()
        if self._status is None:
            with anyio.move_on_after(_END_S), suppress(BackendError):
                self._status = await self._talk.wait()

    async def _read_last_words(self) -> str:
        words = b""
        with anyio.move_on_after(_EXITS_S), suppress(EndOfStream, ClosedResourceError, BrokenResourceError):
            while len(words) < _LONGEST_WORDS:
                words += await self._talk.stderr.receive()
        return words.decode(errors="replace")

    async def aclose(self) -> None:
        """Kill it, with all that it started. Idempotent."""
        self._is_idle = False
        try:
            with anyio.CancelScope(shield=True):
                await self._stack.aclose()
        finally:
            for pipe in (self._results, self._stdout, self._stderr):
                pipe.close()


def _understand(record: bytes, progress: _Progress) -> None:
    number, _, text = record.partition(b" ")
    if not _NUMBER.fullmatch(number) or int(number) > progress.number:
        progress.give_up()
    elif int(number) < progress.number:
        pass  # it belongs to a turn that was given up
    elif text == _BEGUN:
        progress.begun = True
    else:
        progress.record, progress.answered = text, True


def _read_only(content: bytes) -> int:
    """Return a descriptor of a file in memory that nobody can change, at its beginning."""
    descriptor = os.memfd_create("headstart", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _ALL_SEALS)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def _nowhere(chunk: bytes) -> None:
    """Take output that nobody wants."""


def _told(status: ExitStatus) -> str:
    match status:
        case ExitStatus(out_of_memory=True):
            return "it was killed because the sandbox had used up its memory"
        case ExitStatus(signal=int() as number):
            return f"it was killed by signal {number}"
        case ExitStatus(code=int() as code):
            return f"it ended by itself, with status {code}"
        case _:
            return "it ended, and how is not known"
