"""Feeding a command and taking all that it says, to its end.

The end of a command is not the end of its output: what it left running may hold its pipes
open for ever, and what it wrote last may still be in them. So after its end each pipe is
read until it has been silent for a while.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from functools import partial

import anyio
from anyio import BrokenResourceError, ClosedResourceError, EndOfStream
from anyio.abc import ByteReceiveStream, ByteSendStream

from headstart.backends.contract import ByteStreams, Completed, ExitStatus

__all__ = ["Kept", "Sink", "communicate", "take_output"]

Sink = Callable[[bytes], Awaitable[None]]
"""Takes a chunk of output; the next is read when it has returned."""

_KEPT_BYTES = 1 << 20
_SILENCE_S = 0.2
"""How long a pipe must say nothing, after the command's end, to be done with."""


class Kept:
    """A `Sink` that keeps the first MiB, and whether there was more."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.cut = False

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    async def __call__(self, chunk: bytes) -> None:
        room = _KEPT_BYTES - len(self._data)
        self._data += chunk[:room]
        self.cut = self.cut or len(chunk) > room


async def communicate(streams: ByteStreams, stdin: bytes) -> Completed:
    """Give a command its input, and return how it ended and what it said."""
    stdout, stderr = Kept(), Kept()
    status = await take_output(streams, stdin, stdout=stdout, stderr=stderr)
    return Completed(status=status, stdout=stdout.data, stderr=stderr.data, truncated=stdout.cut or stderr.cut)


async def take_output(
    streams: ByteStreams, stdin: bytes | AsyncIterable[bytes], *, stdout: Sink, stderr: Sink
) -> ExitStatus:
    """Give a command its input, at once or as it comes, and its output to the sinks; return how it ended.

    It returns after the last of the output, whether or not there is more input.

    Raises:
        Exception: What a sink or the input raises goes on, as it is; so does what waiting for the command raises.
    """
    drains = (_Drain(streams.stdout, stdout), _Drain(streams.stderr, stderr))
    statuses: list[ExitStatus] = []
    failures: list[Exception] = []

    async def wait() -> None:
        statuses.append(await streams.wait())
        for drain in drains:
            drain.note_end()

    async def attempt(work: Callable[[], Awaitable[None]]) -> None:
        """Do it; a failure ends the others, and is raised as it is, in no group."""
        try:
            await work()
        except Exception as failure:  # noqa: BLE001 raised below
            failures.append(failure)
            talking.cancel_scope.cancel()

    async with anyio.create_task_group() as feeding:
        async with anyio.create_task_group() as talking:
            feeding.start_soon(attempt, partial(_feed, streams.stdin, stdin))
            for work in (*(drain.run for drain in drains), wait):
                talking.start_soon(attempt, work)
        feeding.cancel_scope.cancel()
    for failure in failures:
        raise failure
    (status,) = statuses
    return status


class _Drain:
    """Reads one pipe until it is at its end, or silent after the command's."""

    def __init__(self, pipe: ByteReceiveStream, sink: Sink) -> None:
        self._pipe = pipe
        self._sink = sink
        self._has_ended = False
        self._reading = anyio.CancelScope()

    def note_end(self) -> None:
        self._has_ended = True
        self._reading.deadline = anyio.current_time() + _SILENCE_S

    async def run(self) -> None:
        while chunk := await self._next():
            await self._sink(chunk)

    async def _next(self) -> bytes:
        """Return what is said next, b"" at the end."""
        with anyio.CancelScope() as self._reading:
            if self._has_ended:
                self._reading.deadline = anyio.current_time() + _SILENCE_S
            try:
                return await self._pipe.receive()
            except EndOfStream:
                pass
        return b""


async def _feed(pipe: ByteSendStream, data: bytes | AsyncIterable[bytes]) -> None:
    try:
        if isinstance(data, bytes):
            await pipe.send(data)
        else:
            async for chunk in data:
                await pipe.send(chunk)
    except (BrokenResourceError, ClosedResourceError):
        pass  # a command need not read its input
    finally:
        await pipe.aclose()
