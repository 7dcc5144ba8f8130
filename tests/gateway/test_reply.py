"""The answer to one POST, whichever form it takes."""

from __future__ import annotations

import anyio
import pytest

from headstart.gateway.exchange import Attendance
from headstart.gateway.reply import Reply
from headstart.gateway.wire import Scope

pytestmark = pytest.mark.anyio


class Client:
    """Takes a response apart."""

    def __init__(self) -> None:
        self.messages: list[Scope] = []
        self.heard = anyio.Event()
        self.gone = anyio.Event()

    async def send(self, message: Scope) -> None:
        self.messages.append(message)
        self.heard.set()

    async def receive(self) -> Scope:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    @property
    def kind(self) -> bytes:
        return dict(self.messages[0]["headers"])[b"content-type"]

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])


async def test_an_answer_with_nothing_before_it_is_plain_json_with_its_own_status() -> None:
    client = Client()
    await Reply(client.send, can_stream=True, headers=[]).finish(b"{}", status=404)
    assert (client.messages[0]["status"], client.kind, client.body) == (404, b"application/json", b"{}")


async def test_what_is_said_before_the_answer_makes_it_a_stream() -> None:
    client = Client()
    reply = Reply(client.send, can_stream=True, headers=[(b"x", b"y")])
    assert await reply.say(b"1")
    await reply.finish(b"2")
    assert not await reply.say(b"3")
    assert (client.kind, client.body) == (
        b"text/event-stream",
        b"event: message\r\ndata: 1\r\n\r\nevent: message\r\ndata: 2\r\n\r\n",
    )
    assert client.messages[-1]["more_body"] is False


async def test_a_client_that_takes_no_streams_gets_the_answer_alone() -> None:
    client = Client()
    reply = Reply(client.send, can_stream=False, headers=[])
    assert not await reply.say(b"1")
    await reply.finish(b"2")
    assert client.body == b"2"


async def test_many_voices_at_once_do_not_tear_each_others_messages() -> None:
    client = Client()

    async def slowly(message: Scope) -> None:
        await anyio.lowlevel.checkpoint()
        await client.send(message)

    reply = Reply(slowly, can_stream=True, headers=[])
    large = b"x" * 600_000
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(reply.say, large)
    await reply.finish(b"end")
    frame = b"event: message\r\ndata: %b\r\n\r\n"
    assert client.body == frame % large * 4 + frame % b"end"


async def test_a_long_silence_is_broken_and_a_talking_reply_is_left_alone() -> None:
    attendance, silent, talking = Attendance(), Client(), Client()
    replies = [Reply(client.send, can_stream=True, headers=[]) for client in (silent, talking)]

    async def work(_: anyio.CancelScope) -> None:
        await anyio.sleep_forever()

    async def talk() -> None:
        while True:
            await replies[1].say(b"still here")
            await anyio.sleep(0.001)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attendance.break_silences, 0.05)
        tasks.start_soon(talk)
        for client, reply in zip((silent, talking), replies, strict=True):
            tasks.start_soon(attendance.attended, client.receive, reply, work)
        with anyio.fail_after(5):
            await silent.heard.wait()
        tasks.cancel_scope.cancel()
    assert silent.body.startswith(b": ping")
    assert b": ping" not in talking.body


async def test_work_is_cancelled_when_its_client_leaves() -> None:
    client = Client()
    reply = Reply(client.send, can_stream=True, headers=[])

    async def work(_: anyio.CancelScope) -> None:
        client.gone.set()
        await anyio.sleep_forever()

    attendance = Attendance()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attendance.watch_clients, 0.001)
        with anyio.fail_after(5):
            await attendance.attended(client.receive, reply, work)
        tasks.cancel_scope.cancel()
    assert reply.over
    assert client.messages == []


async def test_a_connection_that_fails_ends_its_own_work_only() -> None:
    attendance, client = Attendance(), Client()
    replies = [Reply(client.send, can_stream=True, headers=[]) for _ in range(2)]
    ended: list[int] = []

    async def broken() -> Scope:
        raise OSError("torn")

    async def wait_for_the_other(_: anyio.CancelScope) -> None:
        while not ended:
            await anyio.lowlevel.checkpoint()
        ended.append(2)

    async def fail(_: anyio.CancelScope) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attendance.watch_clients, 0.001)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as visits:
                visits.start_soon(attendance.attended, client.receive, replies[0], wait_for_the_other)
                visits.start_soon(attendance.attended, broken, replies[1], fail)
        tasks.cancel_scope.cancel()
    assert ended == [1, 2]
    assert [reply.over for reply in replies] == [False, True]
