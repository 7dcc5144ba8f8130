"""Whoever keeps an interpreter: starts it when it is first needed, and a new one after it was lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import anyio

from headstart.backends.contract import ByteStreams, ForkableProcess, ProcessImage, RunningSandbox
from headstart.backends.output import Sink
from headstart.errors import BackendError
from headstart.sandbox.kernels.interpreter import Interpreter, Turn

__all__ = ["Changing", "Keeper", "Outcome"]

Changing = Callable[[], AbstractAsyncContextManager[RunningSandbox]]
"""Yields a sandbox for something that may change it; not always the same one."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[_Answer]):
    """What came of a turn.

    Attributes:
        answer: What its record says; None if the interpreter is lost.
        trouble: Why it is lost, for people; "" if it is not.
        restarted: The interpreter was a new one, in the place of another that was lost.
        memory_kills: How often something was killed meanwhile because the sandbox's memory was used up.
    """

    answer: _Answer | None
    turn: Turn
    trouble: str
    restarted: bool
    memory_kills: int


class Keeper:
    """Serialises turns. Closed with `aclose`.

    Args:
        name: What is kept, for messages.
        changing: Yields the sandbox that a turn is taken in. In another one than the turn before, it is
            another interpreter.
        start: Starts an interpreter.
    """

    def __init__(
        self, name: str, changing: Changing, start: Callable[[RunningSandbox], Awaitable[Interpreter]]
    ) -> None:
        self._name = name
        self._changing = changing
        self._start = start
        self._home: RunningSandbox | None = None
        self._turns = anyio.Lock()
        self._current: Interpreter | None = None
        self._outgoing: Interpreter | None = None
        self._number = 0
        self._was_lost = False
        self._begins_anew = self._was_lost_then = False
        self._is_closed = False

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[RunningSandbox]:
        """Wait for those before; who takes turns holds this, for one turn or for several that belong together.

        They are taken in one sandbox, which this yields: none takes its place meanwhile.
        """
        async with self._turns, self._changing() as running:
            yield running

    async def turn(
        self,
        request: Callable[[int], bytes],
        understand: Callable[[bytes], _Answer | None],
        *,
        timeout_s: float | None,
        sinks: tuple[Sink, Sink],
        afresh: bool = False,
    ) -> Outcome[_Answer]:
        """Take a turn, `alone`; see `Interpreter.turn`.

        Args:
            request: Makes the request, given its number.
            understand: Reads the record; None if it makes no sense, and the interpreter is given up.
            timeout_s: How long it may take, once it has begun.
            sinks: Take stdout and stderr.
            afresh: Take it in a new interpreter. That the old one ends is meant, not lost.

        Raises:
            BackendError: The sandbox is gone, the interpreter cannot be started, or this was closed.
        """
        async with self._changing() as running:
            try:
                interpreter = await self._ready(running, afresh=afresh)
                kills_before = running.memory_kills
                self._number += 1
                turn = await interpreter.turn(self._number, request(self._number), timeout_s=timeout_s, sinks=sinks)
            finally:
                await self._see_outgoing_end()
            answer, trouble, restarted = None, turn.trouble, self._was_lost
            if turn.record is not None:
                answer = understand(turn.record)
            if answer is None:
                await self._drop()
                trouble = trouble or "it answered with what means nothing, and was killed"
            self._was_lost = answer is None
            kills = running.memory_kills - kills_before
            return Outcome(answer=answer, turn=turn, trouble=trouble, restarted=restarted, memory_kills=kills)

    async def keep(
        self,
        request: Callable[[int], bytes],
        understand: Callable[[bytes], _Answer | None],
        *,
        forks: Callable[[_Answer], bool],
        timeout_s: float,
    ) -> tuple[_Answer, ProcessImage | None] | None:
        """Take a turn, `alone`, in which the interpreter says whether it forks, and does; None: none stands, or it is gone.

        Raises:
            NotCapturable, BackendError: As `ForkableProcess.keep`.
        """
        async with self._changing() as running:
            current = self._current
            if current is None or running is not self._home or self._begins_anew:
                return None
            self._number += 1
            answers: list[_Answer] = []

            def will_fork(turn: Turn) -> bool:
                answer = None if turn.record is None else understand(turn.record)
                answers.extend([] if answer is None else [answer])
                return answer is not None and forks(answer)

            image = await current.keep(self._number, request(self._number), will_fork, timeout_s=timeout_s)
            if not answers:
                await self._drop()
                return None
            return answers[0], image

    @property
    def process(self) -> ForkableProcess | None:
        """The interpreter's, if one stands."""
        return None if self._current is None or self._begins_anew else self._current.process

    @property
    def streams(self) -> ByteStreams | None:
        """The interpreter itself, if one stands."""
        return None if self._current is None or self._begins_anew else self._current.streams

    def stands_in(self, running: RunningSandbox) -> bool:
        """Whether the next turn there is taken in the interpreter that took the last one."""
        current = self._current
        return current is not None and not self._begins_anew and running is self._home and current.is_usable

    @property
    def has_one(self) -> bool:
        """Whether an interpreter stands."""
        return self._current is not None

    def move_to(self, changing: Changing) -> None:
        """Take turns where this says from now on."""
        self._changing = changing

    async def let_go(self) -> None:
        """End the interpreter, `alone`, if one stands; the next turn has a new one, and nothing was lost."""
        await self._drop()
        self._was_lost = False

    def note_lost(self) -> None:
        """The next turn is told to be in the place of one that was lost, also if it begins anew."""
        self._was_lost = self._was_lost_then = True

    def begin_anew(self, *, is_lost: bool = False) -> None:
        """Have the next turn taken in a new interpreter. That this one ends, or has ended, is meant, or `is_lost`."""
        self._begins_anew, self._was_lost_then = True, is_lost

    async def _ready(self, running: RunningSandbox, *, afresh: bool) -> Interpreter:
        if self._begins_anew:  # what there was has ended with its sandbox, or will; nobody should wait for that
            self._outgoing, self._current = self._current, None
            self._begins_anew, self._was_lost = False, self._was_lost_then
        if self._current is not None and (afresh or running is not self._home or not self._current.is_usable):
            await self._drop()
        if afresh:
            self._was_lost = False
        if self._is_closed:
            raise BackendError(f"{self._name} was closed", hint="open another")
        if self._current is None:
            self._current, self._home = await self._start(running), running
        return self._current

    async def _drop(self) -> None:
        if self._current is not None:
            lost, self._current = self._current, None
            self._was_lost = True
            await lost.aclose()

    async def _see_outgoing_end(self) -> None:
        if self._outgoing is not None:
            outgoing, self._outgoing = self._outgoing, None
            await outgoing.aclose()

    async def aclose(self) -> None:
        """End the interpreter, with all that it started, whatever it is at. Idempotent."""
        self._is_closed = True
        await self._see_outgoing_end()
        if self._current is not None:
            await self._current.aclose()
