"""A client's end: asks the service, and waits for what it answers."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import anyio

from headstart.errors import BackendError, HeadstartError
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.hosted.faults import raised_by
from headstart.sandbox.hosted.line import Line, PeerGone, near
from headstart.sandbox.hosted.messages import Begun, Cancel, Event, Failed

__all__ = ["Asked", "Connection", "NoService"]

_CONNECTING_S = 10.0
_RETRY_S = 0.01
_CANCELLING_S = 10.0
_MOST_UNREAD_EVENTS = 10_000
_GONE = "the service is gone, and what was asked of it may have been done or not"

_A = TypeVar("_A")


class NoService(HeadstartError):
    """No service hosts sandboxes in this state directory."""


class Asked:
    """Something that the service was asked for.

    Attributes:
        number: What it goes by.
        events: What it has told meanwhile, for those who asked to be told.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._begun = anyio.Event()
        self._answered = anyio.Event()
        self._answer: object = None
        self._descriptors: list[int] = []
        self._tell, self.events = anyio.create_memory_object_stream[Event](_MOST_UNREAD_EVENTS)

    def note(self, record: object, descriptors: list[int]) -> None:
        """Take what has come; the descriptors are its own from now on."""
        self._descriptors += descriptors
        match record:
            case Begun():
                self._begun.set()
            case Event():
                with suppress(anyio.WouldBlock):
                    self._tell.send_nowait(record)
            case _:
                self._answer = record
                self._begun.set()
                self._answered.set()
                self._tell.close()

    def note_lost(self) -> None:
        """Nothing more will come."""
        if not self.is_answered:
            self.note(Failed(kind="BackendError", message=_GONE, hint="headstart serve starts one"), [])

    @property
    def is_answered(self) -> bool:
        return self._answered.is_set()

    async def begun(self) -> None:
        """Return when it has begun.

        Raises:
            Exception: What the service says it would have raised.
        """
        await self._begun.wait()
        if isinstance(self._answer, Failed):
            raise raised_by(self._answer)

    async def answer(self, kind: type[_A]) -> _A:
        """Return the answer.

        Raises:
            Exception: What the service says it would have raised.
        """
        await self._answered.wait()
        if isinstance(self._answer, Failed):
            raise raised_by(self._answer)
        if not isinstance(self._answer, kind):
            raise BackendError(f"the service answered with a {type(self._answer).__name__}")
        return self._answer

    async def wait_answered(self) -> None:
        """Return when there is an answer, whatever it is."""
        await self._answered.wait()

    def take_descriptor(self) -> int:
        """Return the descriptor that came, which is the caller's now.

        Raises:
            BackendError: None came.
        """
        if not self._descriptors:
            raise BackendError(
                "the service handed nothing out",
                hint="if this process has as many files open as it may, do less at once",
            )
        return self._descriptors.pop(0)

    def close(self) -> None:
        """Let go of what nobody has taken."""
        self._tell.close()
        self.events.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


class Connection:
    """Asks for any number of things at the same time; opened with `open`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._asked: dict[int, Asked] = {}
        self._next_number = 1
        self._is_lost = False

    @classmethod
    @asynccontextmanager
    async def open(cls, state_dir: Path) -> AsyncGenerator[Connection]:
        """Be connected to the service of a state directory while the block runs.

        Raises:
            NoService: None hosts sandboxes there.
        """
        connection = cls(Line(await _reached(state_dir)))
        async with open_tasks() as tasks:
            tasks.start_soon(connection._receive)
            try:
                yield connection
            finally:
                tasks.cancel_scope.cancel()

    async def _receive(self) -> None:
        try:
            while True:
                received = await self._line.receive()
                asked = self._asked.get(received.number)
                if asked is not None:
                    asked.note(received.record, received.descriptors)
                    continue
                for descriptor in received.descriptors:  # nobody waits for it any more
                    os.close(descriptor)
        except PeerGone:
            pass
        finally:
            self._is_lost = True
            self._line.close()
            for asked in self._asked.values():
                asked.note_lost()

    async def ask(self, record: object, kind: type[_A], descriptors: Sequence[int] = ()) -> _A:
        """Ask for something and return the answer. If cancelled, so is what was asked for.

        Raises:
            Exception: What the service says it would have raised.
            BackendError: The service is gone.
        """
        async with self.asking(record, descriptors) as asked:
            return await asked.answer(kind)

    @asynccontextmanager
    async def asking(self, record: object, descriptors: Sequence[int] = ()) -> AsyncGenerator[Asked]:
        """Ask for something; when the block is left without an answer, it is cancelled, and seen to its end.

        Raises:
            BackendError: The service is gone.
        """
        asked = Asked(self._next_number)
        self._next_number += 1
        self._asked[asked.number] = asked
        try:
            if self._is_lost:
                raise BackendError(_GONE, hint="headstart serve starts one")
            await self._send(asked.number, record, descriptors)
            try:
                yield asked
            finally:
                await self._cancel(asked)
        finally:
            del self._asked[asked.number]
            asked.close()

    async def _cancel(self, asked: Asked) -> None:
        if asked.is_answered:
            return
        with anyio.move_on_after(_CANCELLING_S, shield=True):
            with suppress(BackendError):
                await self._send(0, Cancel(number=asked.number), ())
            await asked.wait_answered()

    async def _send(self, number: int, record: object, descriptors: Sequence[int]) -> None:
        try:
            await self._line.send(number, record, descriptors)
        except PeerGone as error:
            raise BackendError(_GONE, hint="headstart serve starts one") from error


async def _reached(state_dir: Path) -> socket.socket:
    hint = "start one: headstart serve"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        with anyio.fail_after(_CONNECTING_S), near(state_dir) as close_by:
            while not _connects(sock, close_by):  # noqa: ASYNC110 the kernel tells nobody when there is room
                await anyio.sleep(_RETRY_S)
    except TimeoutError as error:
        sock.close()
        hint = "look at its log; headstart status asks it, too"
        raise NoService(f"the service of {state_dir} lets nobody in", hint=hint) from error
    except OSError as error:
        sock.close()
        is_there = error.errno not in {errno.ENOENT, errno.ECONNREFUSED}
        why = f": {error.strerror}" if is_there else ""
        raise NoService(f"no headstart service hosts sandboxes in {state_dir}{why}", hint=hint) from error
    except BaseException:
        sock.close()
        raise
    return sock


def _connects(sock: socket.socket, path: str) -> bool:
    """Whether it could be connected; not while more wait to be let in than may."""
    try:
        sock.connect(path)
    except BlockingIOError:
        return False
    return True
