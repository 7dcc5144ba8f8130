"""An init or a zygote that has been taken over talks to the service: it may lose itself, nothing else.

A zygote holds its forks' control sockets for a moment, so a hostile package can say
anything on them.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import Command
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.guest.processes import is_alive
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


Connected = tuple[Channel, socket.socket]


@pytest.fixture
def connected() -> Generator[Connected]:
    """A channel and its peer; the descriptors of both are closed whatever happened."""
    link, peer = Link.pair()
    yield Channel(link, spawner=os.getpid()), peer
    peer.close()
    link.close()


@contextmanager
def child(peer: socket.socket, *said: bytes, descriptors: Sequence[int] = (), stubborn: bool = False) -> Generator[int]:
    """A process that says this, and ends when it is let go of, unless it is stubborn; ours is closed."""
    pid = os.fork()
    if pid == 0:
        try:
            os.closerange(3, peer.fileno())
            os.closerange(peer.fileno() + 1, 4096)
            peer.setblocking(True)
            for data in said:
                say(peer, data, list(descriptors))
            while peer.recv(4096) or stubborn:
                time.sleep(0.01)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # the test has seen to it
            os.waitpid(pid, 0)


READY = json.dumps({"event": "ready"}).encode()


@by_name
async def test_nonsense_from_an_init_loses_that_sandbox_only(nonsense: bytes, connected: Connected) -> None:
    channel, peer = connected
    with child(peer, READY, nonsense) as init, anyio.fail_after(5):
        peer.close()
        await channel.serve()  # returns: an exception here would end every other sandbox too
        assert not is_alive(init)
    assert channel.lost.is_set()
    with pytest.raises(BackendError, match="the sandbox is given up"):
        await channel.execute(Command(argv=("true",)), [])


async def test_an_execution_that_ends_twice_is_ended_once(connected: Connected) -> None:
    channel, peer = connected
    server = channel.adopt()
    with peer, anyio.fail_after(5):
        for code in (0, 7):
            say(peer, json.dumps({"event": "exited", "id": 0, "code": code}).encode())
        peer.shutdown(socket.SHUT_WR)
        await channel.serve()
    assert (await server.wait()).code == 0


async def test_descriptors_that_nobody_asked_for_are_closed(connected: Connected) -> None:
    channel, peer = connected
    before = open_descriptors()
    with child(peer, *[READY] * 20, descriptors=[0] * 50), anyio.fail_after(5):
        peer.close()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            await channel.wait_ready()
            await anyio.wait_all_tasks_blocked()
            assert open_descriptors() - before < 20
            channel.close()
        assert open_descriptors() <= before


async def test_ending_a_sandbox_whose_init_is_gone_already_is_no_error(
    connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.spawner.channel._END_TIMEOUT_S", 0.1)
    channel, peer = connected
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            with child(peer, READY):
                tasks.start_soon(channel.serve)
                await channel.wait_ready()
            await channel.end()  # the peer's socket is still open here: not lost, and yet gone


async def test_an_init_that_is_gone_before_it_is_met_is_no_init(connected: Connected) -> None:
    channel, peer = connected
    say_from_a_process_that_ends(peer, READY)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            with pytest.raises(BackendError, match="whoever speaks for it is gone"):
                await channel.wait_ready()


def say_from_a_process_that_ends(peer: socket.socket, data: bytes) -> None:
    pid = os.fork()
    if pid == 0:
        say(peer, data)
        os._exit(0)
    os.waitpid(pid, 0)


async def test_who_was_not_started_by_the_spawner_is_no_init_and_is_left_alone(peerless: socket.socket) -> None:
    link, peer = Link.pair()
    with child(peerless) as spawner, child(peer, READY, stubborn=True) as stranger, anyio.fail_after(5):
        peer.close()
        channel = Channel(link, spawner=spawner)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            with pytest.raises(BackendError, match="was not started by us"):
                await channel.wait_ready()
            await channel.end()
        assert channel.pid == 0
        assert is_alive(stranger)


@pytest.fixture
def peerless() -> Generator[socket.socket]:
    """A socket that nobody speaks on."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs


async def test_only_who_spoke_first_is_killed_at_the_end(connected: Connected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.backends.spawner.channel._END_TIMEOUT_S", 0.1)
    channel, peer = connected
    with anyio.fail_after(10), child(peer, READY, stubborn=True) as init:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.serve)
            await channel.wait_ready()
            with child(peer, READY, READY, stubborn=True) as another:
                peer.close()
                await anyio.wait_all_tasks_blocked()
                assert channel.pid == init
                await channel.end()
                assert not is_alive(init)
                assert is_alive(another)


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


async def test_a_flood_of_messages_leaves_the_service_its_event_loop(connected: Connected) -> None:
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
