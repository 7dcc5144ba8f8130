"""Talking to the init of one sandbox: start commands in it, signal them, learn how they end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from headstart.backends.contract import Command, ExitStatus
from headstart.backends.spawner.link import Link, PeerGone
from headstart.errors import BackendError

__all__ = ["Channel", "Execution"]

_END_TIMEOUT_S = 3.0

ADOPTED = 0
"""The execution id of a process that the init did not start itself (a zygote's fork)."""


class Execution:
    """A command that was started in a sandbox."""

    def __init__(self, channel: Channel, number: int) -> None:
        self._channel = channel
        self._number = number
        self._started = anyio.Event()
        self._ended = anyio.Event()
        self._failure: str | None = None
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
            raise BackendError(self._failure)

    async def wait(self) -> ExitStatus:
        """Return how the command ended. Cancelling leaves it running.

        Raises:
            BackendError: The sandbox is gone, and what became of the command with it.
        """
        await self._ended.wait()
        if self._status is None:
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

    def note_failed(self, reason: str) -> None:
        """Neither started nor running: `reason` is told to whoever waits."""
        self._failure = reason
        self._started.set()
        self._ended.set()

    def note_ended(self, status: ExitStatus) -> None:
        self._status = status
        self._started.set()
        self._ended.set()


class Channel:
    """One sandbox's init. `serve` must run in a task for as long as the sandbox lives.

    Args:
        link: Our end of the init's control socket.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._ran_out_of_memory: Callable[[], bool] | None = None
        self._executions: dict[int, Execution] = {}
        self._next_number = ADOPTED + 1
        self._ready = anyio.Event()
        self.lost = anyio.Event()
        """Set when the init is gone, or we have closed."""

    async def serve(self) -> None:
        """Take the init's messages until it is gone or `close` is called."""
        try:
            while True:
                self._take(await self._link.receive())
        except PeerGone:
            pass
        finally:
            self._lose()

    def ask_about_kills(self, ran_out_of_memory: Callable[[], bool]) -> None:
        """From now on, ask this when a command died by SIGKILL."""
        self._ran_out_of_memory = ran_out_of_memory

    async def wait_ready(self) -> None:
        """Return once the sandbox can run commands.

        Raises:
            BackendError: It could not be built; the message says at which step.
        """
        await self._ready.wait()
        if self.lost.is_set():
            raise BackendError(self._why_lost)

    _why_lost = "the sandbox is gone"

    async def execute(self, command: Command, descriptors: Sequence[int], *, own_tree: bool = False) -> Execution:
        """Start a command whose descriptors 0, 1, 2, … are the given ones (which stay open here).

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
        }
        try:
            await self._send(request, descriptors)
            await execution[1].wait_started()
        except BackendError as error:
            self._executions.pop(execution[0], None)
            raise BackendError(f"cannot run {command.argv[0]!r}: {error}") from error
        except BaseException:
            with anyio.move_on_after(1, shield=True):
                await execution[1].kill()
            raise
        return execution[1]

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
        """The init's, as the service sees it; 0 before it was ready."""
        return self._link.peer_pid

    async def end(self) -> None:
        """Let go, and wait until the init has ended everything and itself. Completes under cancellation.

        An init that does not end within 3 s is killed, and its PID namespace with it.
        """
        if not self.lost.is_set() and self.pid:
            init = os.pidfd_open(self.pid)
            try:
                await self._end(init)
            finally:
                os.close(init)
        self.close()

    async def _end(self, init: int) -> None:
        self._link.stop_sending()
        with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
            await anyio.wait_readable(init)
            await self.lost.wait()
            return
        signal.pidfd_send_signal(init, signal.SIGKILL)
        with anyio.move_on_after(_END_TIMEOUT_S, shield=True):
            await anyio.wait_readable(init)

    def close(self) -> None:
        """Let go: the init ends the sandbox when it sees that."""
        self._link.close()

    def _expect(self, number: int) -> tuple[int, Execution]:
        if self.lost.is_set():
            raise BackendError(self._why_lost)
        execution = Execution(self, number)
        self._executions[number] = execution
        return number, execution

    async def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        try:
            await self._link.send(message, descriptors)
        except PeerGone as error:
            raise BackendError(self._why_lost) from error

    def _take(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self._ready.set()
            case "broken":
                self._why_lost = str(message["error"])
            case "started":
                self._executions[message["id"]].note_started(message["pid"])
            case "failed":
                self._executions.pop(message["id"]).note_failed(message["error"])
            case "exited":
                self._executions.pop(message["id"]).note_ended(self._status_in(message))
            case unknown:
                raise BackendError(f"an init said {unknown!r}, which means nothing to us")

    def _status_in(self, message: dict[str, Any]) -> ExitStatus:
        killed = message.get("signal") == 9
        return ExitStatus(
            code=message.get("code"),
            signal=message.get("signal"),
            out_of_memory=killed and self._ran_out_of_memory is not None and self._ran_out_of_memory(),
        )

    def _lose(self) -> None:
        self.lost.set()
        self._ready.set()
        for execution in self._executions.values():
            execution.note_failed(self._why_lost)
        self._executions.clear()
        self._link.close()
