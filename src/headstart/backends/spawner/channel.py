"""Talking to the init of one sandbox: start commands in it, signal them, learn how they end.

What an init says is not believed blindly. One that was taken over (a zygote's package has
the control sockets of its forks in its hands for a moment) may say anything: it loses its
own sandbox by that, and costs the others nothing. Nor is its word taken for who it is: the
kernel says who sent the first message, and from then on that process is held by a pidfd.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import anyio
from anyio.abc import TaskGroup

from headstart.backends.contract import Command, ExitStatus
from headstart.backends.spawner.held import HeldProcess
from headstart.backends.spawner.link import Link, Nonsense, PeerGone
from headstart.errors import BackendError

__all__ = ["Channel", "Execution"]

_READY_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 3.0

_NOT_SEEN = "a sandbox sees the system's folders and its mounts: correct the name or the folder, or mount what it is in"

_KILLED_BELOW = 128 + signal.SIGKILL

ADOPTED = 0
"""The execution id of a process that the init did not start itself (a zygote's fork)."""


class Execution:
    """A command that was started in a sandbox."""

    def __init__(self, channel: Channel, number: int, *, kills_before: int) -> None:
        """`kills_before` is how often the kernel had killed for memory in its sandbox when it was started."""
        self.kills_before = kills_before
        self._channel = channel
        self._number = number
        self._started = anyio.Event()
        self._ended = anyio.Event()
        self._failure: str | None = None
        self._hint: str | None = None
        self._status: ExitStatus | None = None
        self.pid: int | None = None
        """Its pid as the init sees it."""

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def wait_started(self) -> None:
        """Return once the program runs.

        Raises:
            BackendError: It cannot be started (no such program), or the sandbox is gone.
        """
        await self._started.wait()
        if self._failure is not None:
            await _hear_of_cancelling()
            raise BackendError(self._failure, hint=self._hint)

    async def wait(self) -> ExitStatus:
        """Return how the command ended. Cancelling leaves it running.

        Raises:
            BackendError: The sandbox is gone, and what became of the command with it.
        """
        await self._ended.wait()
        if self._status is None:
            await _hear_of_cancelling()
            raise BackendError(self._failure or "the sandbox is gone")
        return self._status

    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group; harmless when it has ended."""
        await self._channel.tell({"op": "signal", "id": self._number, "signal": number})

    async def kill(self) -> None:
        """Kill the command and everything below it; harmless when it has ended."""
        await self._channel.tell({"op": "kill", "id": self._number})

    def note_started(self, pid: int) -> None:
        self.pid = pid
        self._started.set()

    def note_failed(self, reason: str, *, hint: str | None = None) -> None:
        """Neither started nor running: `reason` is told to whoever waits."""
        self._failure, self._hint = reason, hint
        self._started.set()
        self._ended.set()

    def note_ended(self, status: ExitStatus) -> None:
        self._status = status
        self._started.set()
        self._ended.set()


class Question:
    """What an init was asked about files, and will answer."""

    def __init__(self) -> None:
        self._answered = anyio.Event()
        self._message: dict[str, Any] | None = None
        self._descriptors: list[int] = []
        self._abandoned = False

    def note_answer(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Take the answer and the descriptors with it."""
        self._message = message
        if self._abandoned:
            _close_all(descriptors)
        else:
            self._descriptors = descriptors
        self._answered.set()

    def note_lost(self) -> None:
        """Nobody will answer any more."""
        self._answered.set()

    async def wait(self) -> tuple[dict[str, Any] | None, list[int]]:
        """Return the answer (None: the sandbox is gone) and its descriptors, which the caller closes."""
        try:
            await self._answered.wait()
        except BaseException:
            self._abandoned = True
            _close_all(self._descriptors)
            raise
        return self._message, self._descriptors


class Channel:
    """One sandbox's init. `serve` must run in a task for as long as the sandbox lives.

    Args:
        link: Our end of the init's control socket.
        spawner: Pid of the process that the init must have sprung from.
    """

    def __init__(self, link: Link, *, spawner: int) -> None:
        self._link = link
        self._spawner = spawner
        self._init: HeldProcess | None = None
        self.count_kills: Callable[[], int] = lambda: 0
        """Returns how often something was killed for memory; see `ask_about_kills`."""
        self.kills_told = 0
        """How many of these the end of a command has told of."""
        self._kills_known = 0
        self._executions: dict[int, Execution] = {}
        self._questions: dict[int, Question] = {}
        self._tasks: TaskGroup | None = None
        self._next_number = ADOPTED + 1
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self.lost = anyio.Event()
        """Set when the init is gone, or we have closed."""

    async def serve(self) -> None:
        """Take the init's messages until it is gone or `close` is called, and see it end."""
        async with anyio.create_task_group() as self._tasks:
            try:
                await self._take_messages()
                if self._init is not None:
                    await _see_it_end(self._init)
            finally:
                self._ended.set()
                if self._init is not None:
                    self._init.close()
            self._tasks.cancel_scope.cancel()

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in a task of the sandbox's own: whoever asked for it may be cancelled meanwhile. It must not raise.

        Raises:
            BackendError: The sandbox is gone.
        """
        if self.lost.is_set() or self._tasks is None:
            raise BackendError(self._why_lost)
        self._tasks.start_soon(work)

    async def _take_messages(self) -> None:
        try:
            while True:
                message, descriptors = await self._link.receive_with()
                try:
                    self._take(message, descriptors)
                finally:
                    _close_all(descriptors)
        except Nonsense as error:
            self._why_lost = f"the sandbox is given up: {error}"
        except PeerGone:
            pass
        finally:
            self._lose()

    def ask_about_kills(self, count: Callable[[], int]) -> None:
        """From now on, ask this how often the kernel has killed in the sandbox because its memory was used up."""
        self.count_kills = count

    async def wait_ready(self) -> None:
        """Return once the sandbox can run commands.

        Raises:
            BackendError: It could not be built (the message says at which step), or not within 30 s.
        """
        with anyio.move_on_after(_READY_TIMEOUT_S):
            await self._ready.wait()
        if not self._ready.is_set():
            raise BackendError(f"the sandbox was not ready within {_READY_TIMEOUT_S:.0f} s")
        if self.lost.is_set():
            raise BackendError(self._why_lost)

    _why_lost = "the sandbox is gone"

    def take_number(self) -> int:
        """Return a number for a command that somebody else starts; no other has it."""
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    async def execute(
        self,
        command: Command,
        descriptors: Sequence[int],
        *,
        own_tree: bool = False,
        terminal: str | None = None,
    ) -> Execution:
        """Start a command whose descriptors 0, 1, 2, … are the given ones (which stay open here).

        With `terminal`, the path of one inside, that is all three of them, and its controlling one.
        With `own_tree`, what it starts stays below it, even daemons, until it ends.
        If cancelled, the command is killed.

        Raises:
            BackendError: It cannot be started, or the sandbox is gone.
        """
        execution = self._expect(self._next_number)
        self._next_number += 1
        request: dict[str, Any] = {
            "op": "exec",
            "id": execution[0],
            "argv": list(command.argv),
            "env": dict(command.env),
            "cwd": command.cwd,
            "own_tree": own_tree,
            "terminal": terminal,
        }
        was_sent = False
        try:
            await self._send(request, descriptors)
            was_sent = True
            await execution[1].wait_started()
        except BackendError as error:
            self._executions.pop(execution[0], None)
            raise BackendError(f"cannot run {command.argv[0]!r}: {error}", hint=error.hint) from error
        except BaseException:
            if not was_sent:
                self._executions.pop(execution[0], None)
            with anyio.move_on_after(1, shield=True):
                await execution[1].kill()
            raise
        return execution[1]

    async def ask(self, operation: str, **details: Any) -> tuple[dict[str, Any], list[int]]:
        """Have the init do something about files (its `files` module), and return what it tells.

        Returns:
            The answer, and the one descriptor that came with it, if one did; the caller closes that.

        Raises:
            BackendError: The sandbox is gone.
        """
        if self.lost.is_set():
            raise BackendError(self._why_lost)
        number, question = self._next_number, Question()
        self._next_number += 1
        self._questions[number] = question
        try:
            await self._send({"op": operation, "id": number, **details}, ())
        except BaseException:
            self._questions.pop(number, None)  # it was not sent
            raise
        message, descriptors = await question.wait()
        if message is None:
            await _hear_of_cancelling()
            raise BackendError(self._why_lost)
        return message, descriptors

    def adopt(self) -> Execution:
        """Follow the process that came with the sandbox (a zygote's fork)."""
        execution = self._expect(ADOPTED)[1]
        execution.note_started(0)
        return execution

    async def tell(self, message: dict[str, Any]) -> None:
        """Send what needs no answer; nothing happens when the sandbox is gone."""
        if not self.lost.is_set():
            try:
                await self._link.send(message)
            except PeerGone:
                self.close()

    @property
    def pid(self) -> int:
        """The init's, as the service sees it; 0 before it was ready. It may mean another once `lost`."""
        return self._init.pid if self._init is not None else 0

    async def end(self) -> None:
        """Let go, and wait until the init has ended everything and itself. Completes under cancellation.

        An init that does not end within 3 s is killed, and its PID namespace with it.
        """
        if self._init is not None:
            self._link.stop_sending()
            if not await self._ends_soon():
                self._init.kill()
                self.close()  # somebody else may hold the other end
                await self._ends_soon()
        self.close()

    async def _ends_soon(self) -> bool:
        with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
            await self._ended.wait()
        return self._ended.is_set()

    def give_up(self, why: str) -> None:
        """Let go, and tell whoever uses the sandbox from now on why it is gone."""
        self._why_lost = why
        self.close()

    def close(self) -> None:
        """Let go: the init ends the sandbox when it sees that."""
        self._link.close()

    def _expect(self, number: int) -> tuple[int, Execution]:
        if self.lost.is_set():
            raise BackendError(self._why_lost)
        self._kills_known = self.count_kills()
        execution = Execution(self, number, kills_before=self._kills_known)
        self._executions[number] = execution
        return number, execution

    async def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        try:
            await self._link.send(message, descriptors)
        except PeerGone as error:
            raise BackendError(self._why_lost) from error

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Act on a message; an init that was taken over may say anything, and then loses its sandbox.

        What is taken out of `descriptors` is somebody's; the caller closes the others.

        Raises:
            Nonsense: The message means nothing.
        """
        match message:
            case {"event": "ready"}:
                self._meet_init()
                self._ready.set()
            case {"event": "broken", "error": error}:
                self._why_lost = str(error)
            case {"event": "started", "id": int() as number, "pid": int() as pid}:
                self._known(number).note_started(pid)
            case {"event": "failed", "id": int() as number, "error": error}:
                hint = _NOT_SEEN if message.get("errno") == errno.ENOENT else None
                self._known(number).note_failed(str(error), hint=hint)
                del self._executions[number]
            case {"event": "exited", "id": int() as number}:
                execution = self._known(number)
                status = self._status_in(message, execution.kills_before)
                if status.out_of_memory:
                    self.note_kills_told()
                execution.note_ended(status)
                del self._executions[number]
            case {"event": "answer", "id": int() as number} if number in self._questions:
                theirs = descriptors[:1]
                del descriptors[:1]
                self._questions.pop(number).note_answer(message, theirs)
            case _:
                raise Nonsense("its init said what means nothing")

    def _meet_init(self) -> None:
        if self._init is None:
            self._init = HeldProcess.hold(self._link.peer_pid, below=self._spawner)
        if self._init is None:
            raise Nonsense("whoever speaks for it is gone, or was not started by us")

    def note_kills_told(self) -> None:
        """Note that who was killed for memory so far was told of it."""
        self._kills_known = self.kills_told = self.count_kills()

    def _known(self, number: int) -> Execution:
        try:
            return self._executions[number]
        except KeyError:
            raise Nonsense("its init told of a command that is not running") from None

    def _status_in(self, message: dict[str, Any], kills_before: int) -> ExitStatus:
        match message:
            case {"code": int() as code}:  # a shell tells so that what it ran was killed
                return ExitStatus(code=code, out_of_memory=code == _KILLED_BELOW and self.count_kills() > kills_before)
            case {"signal": int() as number}:
                ran_out = number == signal.SIGKILL and self.count_kills() > kills_before
                return ExitStatus(signal=number, out_of_memory=ran_out)
            case _:
                raise Nonsense("its init told of an end that is none")

    def _lose(self) -> None:
        if self.count_kills() > self._kills_known:  # since its last command began, and none was told of it
            self._why_lost += ", and its memory had been used up: give it more"
        self.lost.set()
        self._ready.set()
        for execution in self._executions.values():
            execution.note_failed(self._why_lost)
        self._executions.clear()
        for question in self._questions.values():
            question.note_lost()
        self._questions.clear()
        self._link.close()


async def _hear_of_cancelling() -> None:
    """Whoever is cancelled together with what serves the sandbox is not told that it is gone."""
    await anyio.lowlevel.checkpoint_if_cancelled()


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


async def _see_it_end(init: HeldProcess) -> None:
    """Wait for the end of an init that has been let go of; kill it if that takes too long."""
    with anyio.move_on_after(_END_TIMEOUT_S):
        await init.wait_ended()
        return
    init.kill()
