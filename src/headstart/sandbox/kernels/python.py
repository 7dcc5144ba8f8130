"""A Python kernel: cells of code that find what those before have left."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.backends.contract import Command, ForkableProcess, ProcessImage, RunningSandbox
from headstart.errors import BackendError, NotCapturable
from headstart.sandbox.kernels.interpreter import GRACE_S, Interpreter
from headstart.sandbox.kernels.keeper import Changing, Keeper
from headstart.sandbox.kernels.result import CellError, CellResult
from headstart.sandbox.options import check_text
from headstart.sandbox.output import OnOutput, Taken

__all__ = ["Kernel"]

_PROGRAM = Path(__file__).parent / "guest" / "python_kernel.py"
_SEEDING = _PROGRAM.with_name("reseed.py")
_BEGIN = "exec(compile(open(6).read(), '<headstart kernel>', 'exec'))"
_LOST = "KernelLost"
_KEEPING_S = 15.0
_MOST_HELD, _LONGEST_HELD = 8, 200

_log = logging.getLogger(__name__)


class Kernel:
    """A Python that keeps its state between cells; it starts with the first one.

    Args:
        running: Where it runs.
        env: Its environment.
        cwd: Where it starts; the home, unless said.
        python: The interpreter, 3.8 or newer: a name on the sandbox's PATH, or a path in it.
        grace_s: How long an interrupted cell has to end.
    """

    def __init__(
        self,
        changing: Changing,
        *,
        env: Mapping[str, str],
        cwd: str | None = None,
        python: str = "python3",
        grace_s: float = GRACE_S,
    ) -> None:
        self._command = Command(argv=(python, "-c", _BEGIN, "headstart-kernel"), env=env, cwd=cwd)
        self._grace_s = grace_s
        self._keeper = Keeper("the kernel", changing, self._start)
        self._image: ProcessImage | None = None
        self._next: ProcessImage | None = None
        self._reseeds_next = False
        self.unseeded: tuple[str, ...] = ()
        """Libraries that go on drawing the same random numbers, as of the last time that it was kept."""

    async def _start(self, running: RunningSandbox) -> Interpreter:
        image, self._next = self._next, None
        if image is not None:
            greeting = _request(seeding=_SEEDING.read_text()) if self._reseeds_next else b""
            try:
                return await Interpreter.revive(running, image, greeting=greeting, grace_s=self._grace_s)
            except BackendError as error:
                _log.warning("the Python kernel has lost its state: %s", error)
                self._keeper.note_lost()
        program = _PROGRAM.read_bytes()
        return await Interpreter.start(running, self._command, program=program, forks=True, grace_s=self._grace_s)

    async def run(self, code: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None) -> CellResult:
        """Run a cell, when those before have ended. See `Sandbox.run_code`.

        Raises:
            ConfigError: The code is no text.
            BackendError: The sandbox is gone, there is no such Python, or the kernel was closed.
        """
        check_text(code, where="code", hint="give Python code as text")
        taken = Taken(on_output)
        async with self._keeper.alone():
            self._image = None
            done = await self._keeper.turn(
                lambda number: _request(number=number, code=code),
                _answer_in,
                timeout_s=timeout_s,
                sinks=taken.sinks,
            )
        answer = done.answer
        lost = CellError(type=_LOST, message=f"the Python kernel is gone, and all variables with it: {done.trouble}")
        return CellResult(
            text=answer.text if answer else None,
            error=answer.error if answer else lost,
            stdout=taken.stdout,
            stderr=taken.stderr,
            truncated=taken.cut or done.turn.dropped or (answer is not None and answer.cut),
            timed_out=done.turn.timed_out,
            lost=answer is None,
            restarted=done.restarted,
        )

    @property
    def image(self) -> ProcessImage | None:
        """The state that the next cell will find, as it was kept; None if there is none, or it may be another by now."""
        return None if self._image is None or self._image.is_gone else self._image

    @property
    def process(self) -> ForkableProcess | None:
        """What runs, if anything does."""
        return self._keeper.process

    async def keep(self) -> None:
        """Have `image` be its state, if it has one; it goes on, and nothing is lost. The image may not have settled yet.

        Raises:
            NotCapturable: It has something that no fork of it would have: threads, sockets, open files, shared memory.
            BackendError: The sandbox is gone; or the kernel, over this.
        """
        if self.image is not None or not self._keeper.has_one:
            return
        async with self._keeper.alone():
            kept = await self._keeper.keep(
                _request_to_fork, _held_in, forks=lambda told: not told[0], timeout_s=_KEEPING_S
            )
            if kept is None:
                return  # it has ended, and the next cell is told so
            (held, unseeded), image = kept
            if image is None:
                raise NotCapturable(
                    f"the Python kernel has {', '.join(held) or 'not forked'}, which no checkpoint holds",
                    hint="close it, or ask for the files only",
                    held=[f"python kernel: {each}" for each in held],
                )
            self._image, self.unseeded = image, unseeded

    def go_on_as(self, image: ProcessImage | None, *, is_lost: bool, reseeded: bool = False) -> None:
        """Let the next cell find this state (None: that of a new kernel, which `is_lost` or not), whatever there was.

        `reseeded`: it draws random numbers of its own from then on.
        """
        self._keeper.begin_anew(is_lost=is_lost)
        self._image = self._next = image
        self._reseeds_next = reseeded

    def take_over(self, before: Kernel, changing: Changing) -> None:
        """Run cells where this says from now on, in the place of another kernel, whose state is lost."""
        self._keeper.move_to(changing)
        if before.has_state and not self.has_state:
            self._keeper.note_lost()

    async def end(self) -> None:
        """End it, with all that it started; the next cell has a new one."""
        async with self._keeper.alone():
            self._image = self._next = None
            await self._keeper.let_go()

    @property
    def has_state(self) -> bool:
        """Whether there is something that could be lost."""
        return self._keeper.has_one or self._next is not None

    def note_lost(self) -> None:
        """Have the next one told that it is in the place of another, whose state is gone."""
        self._keeper.note_lost()

    async def aclose(self) -> None:
        """End it, with all that it started, whatever it is at. Idempotent."""
        self._image = self._next = None
        await self._keeper.aclose()


def _request(**details: Any) -> bytes:
    return json.dumps(details).encode() + b"\0"


def _request_to_fork(number: int) -> bytes:
    return _request(number=number, fork=_SEEDING.read_text())


def _held_in(record: bytes) -> tuple[list[str], tuple[str, ...]] | None:
    """Return what a kernel says that it has and a fork of it would not, and what draws the same random numbers there.

    None if it makes no sense.
    """
    try:
        told: Any = json.loads(record)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"held": [*held], "unseeded": [*unseeded]} if all(isinstance(each, str) for each in (*held, *unseeded)):
            return _told(held), tuple(_told(unseeded))
        case _:
            return None


def _told(things: list[str]) -> list[str]:
    """Return what people are told of things that a kernel has named."""
    return [
        "".join(letter if letter.isprintable() else "\ufffd" for letter in thing[:_LONGEST_HELD])
        for thing in things[:_MOST_HELD]
    ]


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str | None
    error: CellError | None
    cut: bool


def _answer_in(record: bytes) -> _Answer | None:
    """Return what a kernel answered, None if it makes no sense: user code has the kernel in its hands."""
    try:
        told: Any = json.loads(record)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"text": str() | None as text, "error": None, "cut": bool() as cut}:
            return _Answer(text, None, cut)
        case {
            "text": str() | None as text,
            "error": {"type": str() as kind, "message": str() as message, "traceback": str() as trace},
            "cut": bool() as cut,
        }:
            return _Answer(text, CellError(type=kind, message=message, traceback=trace), cut)
        case _:
            return None
