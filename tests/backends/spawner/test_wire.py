"""Messages with descriptors, as both ends see them."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator

import anyio
import pytest

from headstart.backends.spawner.guest.wire import LARGEST_MESSAGE_BYTES, PeerGone, Wire
from headstart.backends.spawner.link import Link
from headstart.errors import BackendError

Pair = tuple[Wire, Wire]


@pytest.fixture
def wires() -> Generator[Pair]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pair = Wire(one), Wire(other)
    yield pair
    for wire in pair:
        wire.close()


def test_a_message_arrives_whole_with_its_descriptors(wires: Pair) -> None:
    read_end, write_end = os.pipe()
    wires[0].send_with({"op": "take"}, [write_end])
    os.close(write_end)
    received = wires[1].receive()
    assert received is not None
    message, (descriptor,) = received
    os.write(descriptor, b"through")
    assert (message, os.read(read_end, 10)) == ({"op": "take"}, b"through")
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)
    os.close(read_end)


def test_nothing_to_receive_is_no_end(wires: Pair) -> None:
    assert wires[0].receive() is None
    wires[1].close()
    with pytest.raises(PeerGone):
        wires[0].receive()


def test_what_a_slow_peer_does_not_take_waits_in_order(wires: Pair) -> None:
    for number in range(3000):
        wires[0].send({"n": number})
    assert wires[0].has_backlog
    seen: list[int] = []
    while len(seen) < 3000:
        received = wires[1].receive()
        if received is None:
            wires[0].flush()
        else:
            seen.append(received[0]["n"])
    assert seen == list(range(3000))
    assert not wires[0].has_backlog


def test_a_peer_that_never_reads_counts_as_gone(wires: Pair) -> None:
    with pytest.raises(PeerGone):
        _send_many(wires[0], 100_000)
    wires[1].close()


def _send_many(wire: Wire, count: int) -> None:
    for number in range(count):
        wire.send({"n": number})


@pytest.mark.anyio
async def test_a_message_that_is_too_large_says_how_large_it_may_be() -> None:
    link, theirs = Link.pair()
    with theirs:
        await link.send({"op": "exec", "argv": ["x" * (LARGEST_MESSAGE_BYTES // 2)]})
        with pytest.raises(BackendError, match="cannot send 'exec'") as caught:
            await link.send({"op": "exec", "argv": ["x" * 10_000_000]})
        assert "192 KiB" in str(caught.value.hint)
    link.close()


@pytest.mark.anyio
async def test_whoever_receives_is_woken_when_the_link_is_closed() -> None:
    link, theirs = Link.pair()
    with theirs, anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_gone, link)
            await anyio.wait_all_tasks_blocked()
            link.close()


async def _expect_gone(link: Link) -> None:
    with pytest.raises(PeerGone):
        await link.receive()
