"""Messages on their way into a server's stdin."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from headstart.backends.spawner.streams import PipeReceiveStream, PipeSendStream
from headstart.runtime.outbox import LinkClosed, Outgoing, PipeOutbox
from headstart.testing.fake_pipes import FakePipe

pytestmark = pytest.mark.anyio

LARGE = "x" * 300_000
"""More than a pipe holds."""


@dataclass
class Scene:
    outbox: PipeOutbox
    server: PipeReceiveStream
    written: list[object] = field(default_factory=list[object])

    def message(self, name: object) -> Outgoing:
        return Outgoing(message={"id": name}, on_sent=lambda: self.written.append(name))

    async def lines(self, count: int) -> list[object]:
        text = b""
        while text.count(b"\n") < count:
            text += await self.server.receive()
        return [json.loads(line)["id"] for line in text.splitlines()]


@asynccontextmanager
async def open_scene() -> AsyncGenerator[Scene]:
    theirs, ours = os.pipe()
    ends = PipeSendStream(ours), PipeReceiveStream(theirs)
    outbox = PipeOutbox(ends[0])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.write_rest)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            yield Scene(outbox, ends[1])
        outbox.close()
        tasks.cancel_scope.cancel()
    for end in ends:
        end.close()


async def test_a_small_message_is_written_before_its_sender_goes_on() -> None:
    async with open_scene() as scene:
        assert scene.outbox.send_nowait(scene.message(1))
        assert scene.written == [1]
        assert await scene.lines(1) == [1]


async def test_what_a_full_pipe_does_not_take_follows_in_order() -> None:
    async with open_scene() as scene:
        for name in (LARGE, 2, LARGE, 4):
            await scene.outbox.send(scene.message(name))
        assert scene.written == []
        assert await scene.lines(4) == [LARGE, 2, LARGE, 4]
        await anyio.wait_all_tasks_blocked()
        assert scene.written == [LARGE, 2, LARGE, 4]
        await scene.outbox.send(scene.message(5))
        assert scene.written[-1] == 5, "with nothing left to write, messages go out at once again"


async def test_a_cancelled_sender_leaves_no_half_line() -> None:
    async with open_scene() as scene:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await scene.outbox.send(scene.message(LARGE))
        await scene.outbox.send(scene.message(2))
        assert await scene.lines(2) == [LARGE, 2]


async def test_a_server_that_reads_nothing_makes_senders_wait() -> None:
    async with open_scene() as scene:
        taken = 0
        while scene.outbox.send_nowait(scene.message(LARGE)):
            taken += 1
        assert taken < 100
        with anyio.move_on_after(0.01) as waiting:
            await scene.outbox.send(scene.message("late"))
        assert waiting.cancelled_caught


async def test_a_server_that_closed_its_stdin_is_told_to_the_sender() -> None:
    async with open_scene() as scene:
        scene.server.close()
        with pytest.raises(LinkClosed):
            await scene.outbox.send(scene.message(1))
        assert not scene.outbox.send_nowait(scene.message(2))


async def test_a_stream_that_cannot_say_what_fits_gets_all_from_the_queue() -> None:
    pipe = FakePipe()
    outbox = PipeOutbox(pipe.writer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outbox.write_rest)
        with anyio.fail_after(5):
            await outbox.send(Outgoing(message={"id": 1}))
            await outbox.send(Outgoing(message={"id": 2}))
            text = b""
            while text.count(b"\n") < 2:
                text += await pipe.reader.receive()
        assert text == b'{"id":1}\n{"id":2}\n'
        outbox.close()
