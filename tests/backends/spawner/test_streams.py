"""Our ends of a command's pipes."""

import contextlib
import os
import threading
from collections.abc import AsyncIterator

import anyio
import pytest

from headstart.backends.spawner.streams import PipeReceiveStream, PipeSendStream

pytestmark = pytest.mark.anyio


@pytest.fixture
async def receiving() -> AsyncIterator[tuple[PipeReceiveStream, int]]:
    """A reading end, and the descriptor that writes into it."""
    ours, theirs = os.pipe()
    stream = PipeReceiveStream(ours)
    yield stream, theirs
    stream.close()
    os.close(theirs)


async def test_bytes_arrive_in_order_and_the_end_after_them() -> None:
    ours, theirs = os.pipe()
    stream = PipeReceiveStream(ours)
    os.write(theirs, b"one")
    with anyio.fail_after(5):
        assert await stream.receive() == b"one"
        os.write(theirs, b"two")
        os.close(theirs)
        assert await stream.receive() == b"two"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
    stream.close()


async def test_what_is_more_than_was_asked_for_is_kept(receiving: tuple[PipeReceiveStream, int]) -> None:
    stream, theirs = receiving
    os.write(theirs, b"abcdef")
    with anyio.fail_after(5):
        assert [await stream.receive(4), await stream.receive(4)] == [b"abcd", b"ef"]


async def test_a_cancelled_receive_loses_nothing(receiving: tuple[PipeReceiveStream, int]) -> None:
    stream, theirs = receiving
    received: list[bytes] = []

    async def receive_once() -> None:
        received.append(await stream.receive())

    with anyio.fail_after(5):
        for number in range(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive_once)
                await anyio.wait_all_tasks_blocked()
                os.write(theirs, b"%d," % number)
                if number % 2:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        os.write(theirs, b"end")
        while not b"".join(received).endswith(b"end"):
            await receive_once()
    assert b"".join(received) == b"".join(b"%d," % number for number in range(20)) + b"end"


async def test_closing_wakes_the_reader(receiving: tuple[PipeReceiveStream, int]) -> None:
    stream, _ = receiving
    ends: list[str] = []

    async def read() -> None:
        try:
            await stream.receive()
        except anyio.ClosedResourceError:
            ends.append("closed")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            stream.close()
        await read()
    assert ends == ["closed", "closed"]


async def test_only_one_may_read_at_a_time(receiving: tuple[PipeReceiveStream, int]) -> None:
    stream, _ = receiving
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.receive)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        tasks.cancel_scope.cancel()


async def test_a_reader_that_takes_nothing_holds_back_the_writer(receiving: tuple[PipeReceiveStream, int]) -> None:
    stream, theirs = receiving
    os.set_blocking(theirs, False)
    with anyio.move_on_after(0):
        await stream.receive()  # registered with the loop from now on
    written = 0
    for _ in range(50):
        with contextlib.suppress(BlockingIOError):
            written += os.write(theirs, b"x" * 65_536)
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()
    assert written <= 3 * 65_536
    received = 0
    with anyio.fail_after(5):
        while received < written:
            received += len(await stream.receive())
    assert received == written


async def test_a_full_pipe_takes_what_fits_and_a_broken_one_says_so() -> None:
    theirs, ours = os.pipe()
    stream = PipeSendStream(ours)
    first = stream.send_nowait(b"x" * 1_000_000)
    assert 0 < first < 1_000_000
    assert stream.send_nowait(b"more") == 0
    os.close(theirs)
    with pytest.raises(anyio.BrokenResourceError):
        stream.send_nowait(b"more")
    stream.close()
    with pytest.raises(anyio.ClosedResourceError):
        stream.send_nowait(b"more")


async def test_a_pipe_can_be_closed_where_no_event_loop_is_any_more() -> None:
    ours, theirs = os.pipe()
    stream = PipeReceiveStream(ours)
    thread = threading.Thread(target=stream.close)
    thread.start()
    thread.join(5)
    with pytest.raises(BrokenPipeError):
        os.write(theirs, b"x")
    os.close(theirs)
