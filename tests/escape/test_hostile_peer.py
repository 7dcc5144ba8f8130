"""An init or a zygote that has been taken over talks to the service: it may lose itself, nothing else.

A zygote holds its forks' control sockets for a moment, so a hostile package can say
anything on them.
"""

from __future__ import annotations

import array
import json
import os
import socket
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import Command
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.link import Link
from headstart.backends.zygote.control import Control
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio

NONSENSE: dict[str, bytes] = {
    "no JSON": b"\xff\xfe garbage",
    "no object": b"[1, 2, 3]",
    "nothing": b"null",
    "no event": b"{}",
    "an unknown event": json.dumps({"event": "surprise"}).encode(),
    "an unknown execution": json.dumps({"event": "exited", "id": 4711, "code": 0}).encode(),
    "a start of nothing": json.dumps({"event": "started", "id": 4711, "pid": 1}).encode(),
    "a failure of nothing": json.dumps({"event": "failed", "id": 4711, "error": "x"}).encode(),
    "an id of the wrong type": json.dumps({"event": "exited", "id": {"a": 1}, "code": 0}).encode(),
    "a code of the wrong type": json.dumps({"event": "exited", "id": 0, "code": "seven"}).encode(),
    "a deep nest": b"[" * 50_000,
    "a large number": b'{"event": "exited", "id": 1e999}',
}
by_name = pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def say(peer: socket.socket, data: bytes, descriptors: list[int] | None = None) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    peer.sendmsg([data], rights)


@pytest.fixture
def connected() -> Generator[tuple[Channel, socket.socket]]:
    """A channel and its peer; the descriptors of both are closed whatever happened."""
    link, peer = Link.pair()
    yield Channel(link), peer
    peer.close()
    link.close()


hurts_others = pytest.mark.xfail(
    strict=True,
    reason="known defect: what one init says can end, starve or drain the whole service (spawner/channel, link)",
)


@hurts_others
@by_name
async def test_nonsense_from_an_init_loses_that_sandbox_only(
    nonsense: bytes, connected: tuple[Channel, socket.socket]
) -> None:
    channel, peer = connected
    with peer, anyio.fail_after(5):
        say(peer, json.dumps({"event": "ready"}).encode())
        say(peer, nonsense)
        peer.shutdown(socket.SHUT_WR)
        await channel.serve()  # returns: an exception here would end every other sandbox too
    assert channel.lost.is_set()
    with pytest.raises(BackendError):
        await channel.execute(Command(argv=("true",)), [])


@hurts_others
async def test_an_execution_that_ends_twice_is_ended_once(connected: tuple[Channel, socket.socket]) -> None:
    channel, peer = connected
    server = channel.adopt()
    with peer, anyio.fail_after(5):
        for code in (0, 7):
            say(peer, json.dumps({"event": "exited", "id": 0, "code": code}).encode())
        peer.shutdown(socket.SHUT_WR)
        await channel.serve()
    assert (await server.wait()).code == 0


@hurts_others
async def test_descriptors_that_nobody_asked_for_are_closed(connected: tuple[Channel, socket.socket]) -> None:
    channel, peer = connected
    with peer, anyio.fail_after(5):
        before = open_descriptors()
        for _ in range(20):
            say(peer, json.dumps({"event": "ready"}).encode(), [0] * 50)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            await channel.wait_ready()
            await anyio.wait_all_tasks_blocked()
            channel.close()
        assert open_descriptors() - before < 20


def say_from_a_process_that_ends(peer: socket.socket, data: bytes) -> None:
    pid = os.fork()
    if pid == 0:
        say(peer, data)
        os._exit(0)
    os.waitpid(pid, 0)


@hurts_others
async def test_ending_a_sandbox_whose_init_is_gone_already_is_no_error(
    connected: tuple[Channel, socket.socket],
) -> None:
    channel, peer = connected
    say_from_a_process_that_ends(peer, json.dumps({"event": "ready"}).encode())
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            await channel.wait_ready()
            await channel.end()  # the peer's socket is still open here: not lost, and yet gone
            peer.close()


def memfd(data: bytes) -> int:
    descriptor = os.memfd_create("nonsense")
    os.write(descriptor, data)
    return descriptor


@pytest.mark.parametrize(
    "data", [b"", b"x", b"i", b"i[]", b"inull", b"m", b"mabc", b"m-5", b"m99999999999999", b"i" + b"[" * 50_000]
)
@pytest.mark.parametrize("carried", ["nothing", "a memfd", "a pipe", "a directory"])
async def test_nonsense_from_a_zygote_is_a_backend_error(data: bytes, carried: str) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    carrying: dict[str, Any] = {
        "nothing": list,
        "a memfd": lambda: [memfd(b"garbage")],
        "a pipe": lambda: list(os.pipe()),
        "a directory": lambda: [os.open("/", os.O_RDONLY)],
    }
    descriptors: list[int] = carrying[carried]()
    before = open_descriptors()
    with theirs, Control(ours, name="the zygote") as control:
        say(theirs, data, descriptors)
        with pytest.raises(BackendError, match="the zygote"):
            await control.receive(timeout_s=1)
        assert open_descriptors() == before
    for descriptor in descriptors:
        os.close(descriptor)


FLOOD_S = 1.0


def flood_from_another_process(peer: socket.socket) -> int:
    pid = os.fork()
    if pid == 0:
        message, deadline = json.dumps({"event": "ready"}).encode(), time.monotonic() + FLOOD_S
        peer.setblocking(True)
        while time.monotonic() < deadline:
            peer.send(message)
        os._exit(0)
    return pid


@hurts_others
async def test_a_flood_of_messages_leaves_the_service_its_event_loop(connected: tuple[Channel, socket.socket]) -> None:
    channel, peer = connected
    ticks = 0
    pid = flood_from_another_process(peer)
    peer.close()
    with anyio.fail_after(FLOOD_S + 5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            while not channel.lost.is_set():
                await anyio.sleep(0.01)
                ticks += 1
    os.waitpid(pid, 0)  # noqa: ASYNC222 - it has ended
    assert ticks > 30, f"{ticks} ticks in {FLOOD_S} s"
