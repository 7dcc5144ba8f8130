"""An init or a zygote that has been taken over talks to the service: it may lose itself, nothing else.

A zygote holds its forks' control sockets for a moment, so a hostile package can say
anything on them.
"""

from __future__ import annotations

import array
import errno
import json
import os
import signal
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import Command
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.files import SpawnedFiles
from headstart.backends.spawner.gate import Gate
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
    "an answer to nothing": json.dumps({"event": "answer", "id": 4711}).encode(),
    "an answer to nobody": json.dumps({"event": "answer", "id": None}).encode(),
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


class HostileInit:
    """What is on the other end of a channel, played by the test: it answers questions about files as it likes."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer = peer
        self._hands_out: list[int] = []
        self.asked: list[str] = []

    def holding(self, *descriptors: int) -> list[int]:
        """Keep descriptors for as long as the init lives."""
        self._hands_out += descriptors
        return list(descriptors)

    async def hear(self) -> dict[str, Any]:
        """Wait for the next question."""
        await anyio.wait_readable(self._peer)
        question: dict[str, Any] = json.loads(self._peer.recv(65_536))
        self.asked.append(f"{question['op']} {question['path']}")
        return question

    def answer(self, question: dict[str, Any], descriptors: Sequence[int] = (), **facts: Any) -> None:
        say(self._peer, json.dumps({"event": "answer", "id": question["id"], **facts}).encode(), list(descriptors))

    async def answer_each(self, *answers: dict[str, Any]) -> None:
        """Answer the next questions, with these facts and `descriptors`."""
        for facts in answers:
            self.answer(await self.hear(), **facts)

    def die(self) -> None:
        self._peer.close()

    def let_go(self) -> None:
        for descriptor in self._hands_out:
            os.close(descriptor)


Asked = tuple[SpawnedFiles, HostileInit]


@asynccontextmanager
async def taken_over(connected: Connected) -> AsyncGenerator[Asked]:
    """Yield files and the init that answers about them; nothing that it hands out may be open at the end."""
    channel, peer = connected
    init = HostileInit(peer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.serve)
        await anyio.wait_all_tasks_blocked()
        before = open_descriptors()
        with anyio.fail_after(5):
            yield SpawnedFiles(channel, home="/home/me", gate=Gate()), init
            if not channel.lost.is_set():
                await see_that_all_was_heard(SpawnedFiles(channel, home="/", gate=Gate()), init)
        init.let_go()
        assert open_descriptors() <= before
        channel.close()


def readable(content: bytes) -> int:
    descriptor = memfd(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def see_that_all_was_heard(files: SpawnedFiles, init: HostileInit) -> None:
    """Ask one more question: answers are taken in order, and the sandbox is none the worse."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(init.answer_each, NO_FACTS)
        await files.make_folder("last")


async def told(act: Awaitable[object], init: HostileInit, *answers: dict[str, Any]) -> object:
    """Return what comes of an act that is answered so, within a second: the value or the error."""
    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(init.answer_each, *answers)
            try:
                return await act
            except (OSError, BackendError) as error:
                return error


FileAct = Callable[[SpawnedFiles], Awaitable[object]]
OPENING: dict[str, FileAct] = {
    "read": lambda files: files.read("x"),
    "list": lambda files: files.list("x"),
    "stat": lambda files: files.stat("x"),
    "write": lambda files: files.write("x", b"new"),
}
NO_FACTS: dict[str, Any] = {}
CREATED: dict[str, Any] = {"temporary": "/home/me/.x.1", "target": "/home/me/x", "mode": 0o644}


async def test_an_answer_that_nobody_asked_for_loses_the_sandbox_and_its_descriptors_are_closed(
    connected: Connected,
) -> None:
    async with taken_over(connected) as (files, init):
        init.answer({"id": 1}, init.holding(memfd(b"x"), memfd(b"y")))
        await connected[0].lost.wait()
        with pytest.raises(BackendError, match="the sandbox is given up"):
            await files.read("x")


async def test_a_second_answer_to_one_question_loses_the_sandbox(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        carried = init.holding(readable(b"first"))
        assert await told(files.read("x"), init, {"descriptors": carried}) == b"first"
        init.answer({"id": 1}, carried)
        await connected[0].lost.wait()


@pytest.mark.parametrize("act", OPENING.values(), ids=OPENING)
async def test_an_answer_without_what_was_asked_for_is_a_backend_error(act: FileAct, connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        error = await told(act(files), init, CREATED)
        assert isinstance(error, BackendError)
        assert "nothing was handed out" in str(error)


async def test_of_many_descriptors_one_is_used_and_none_stays_open(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        carried = init.holding(*[readable(b"%d" % number) for number in range(50)])
        assert await told(files.read("x"), init, {"descriptors": carried}) == b"0"
        await told(files.make_folder("x"), init, {"descriptors": carried})
        error = await told(files.remove("x"), init, {"errno": errno.EPERM, "descriptors": carried})
        assert isinstance(error, PermissionError)


def a_socket() -> list[int]:
    return [end.detach() for end in socket.socketpair()]


OTHER_THINGS: dict[str, tuple[Callable[[], list[int]], set[str]]] = {
    "a pipe": (lambda: list(os.pipe()), {"read", "list", "write"}),
    "the end of a pipe to write to": (lambda: list(os.pipe())[::-1], {"read", "list", "write"}),
    "a unix socket": (a_socket, {"read", "list", "write"}),
    "a directory": (lambda: [os.open("/", os.O_RDONLY)], {"read", "write"}),
    "a file of /proc": (lambda: [os.open("/proc/self/status", os.O_RDONLY)], {"read", "list", "write"}),
    "a setting of /proc": (lambda: [os.open("/proc/self/oom_score_adj", os.O_RDWR)], {"read", "list", "write"}),
    "a device": (lambda: [os.open("/dev/zero", os.O_RDWR)], {"read", "list", "write"}),
    "a path": (lambda: [os.open("/etc/passwd", os.O_PATH)], {"read", "list", "write"}),
    "a file": (lambda: [memfd(b"x")], {"list"}),
}


@pytest.mark.parametrize(
    ("thing", "act"),
    [
        pytest.param(make, act, id=f"{name}, {title}")
        for name, (make, acts) in OTHER_THINGS.items()
        for title in sorted(acts)
        for act in [OPENING[title]]
    ],
)
async def test_something_else_than_the_file_is_refused_at_once(
    thing: Callable[[], list[int]], act: FileAct, connected: Connected
) -> None:
    async with taken_over(connected) as (files, init):
        carried = init.holding(*thing())
        answers: list[dict[str, Any]] = [{**CREATED, "descriptors": carried[:1]}]
        if act is OPENING["write"]:  # what was made has to go, and that it cannot hides nothing
            answers.append({"errno": errno.EROFS})
        error = await told(act(files), init, *answers)
        assert isinstance(error, OSError)
        assert error.filename == "x"
        assert error.errno != errno.EROFS


async def test_whatever_it_is_may_be_looked_at(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        for make, _ in OTHER_THINGS.values():
            assert not isinstance(await told(files.stat("x"), init, {"descriptors": init.holding(*make())}), Exception)


@pytest.mark.parametrize("number", ["ENOENT", None, 1.5, [], {}, 0, -2, 4096, 10**30])
async def test_an_errno_that_is_none_is_a_backend_error(number: object, connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        for act in (files.read("x"), files.remove("x"), files.write("x", b"")):
            error = await told(act, init, {"errno": number, "error": 7, "descriptors": init.holding(memfd(b"x"))})
            assert isinstance(error, BackendError)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temporary": None},
        {"temporary": 7},
        {"temporary": ["/home/me/.x.1"]},
        {"target": {}},
        {"target": 1.5},
        {"mode": "rw"},
        {"mode": None},
    ],
    ids=str,
)
async def test_a_file_that_was_made_nowhere_is_a_backend_error(wrong: dict[str, Any], connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        made = {**CREATED, **wrong, "descriptors": init.holding(memfd(b""))}
        assert isinstance(await told(files.write("x", b"new"), init, made), BackendError)
        assert init.asked == ["create /home/me/x"]


async def test_what_comes_for_an_asker_who_was_cancelled_is_closed(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        for act in (files.read, files.list, files.stat):
            question = await cancelled_once_asked(act("x"), init)
            init.answer(question, init.holding(memfd(b"x"), memfd(b"y")))


async def cancelled_once_asked(act: Awaitable[object], init: HostileInit) -> dict[str, Any]:
    """Cancel an act that waits for an answer; return the question."""
    question: dict[str, Any] = {}
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:

            async def cancel_when_heard() -> None:
                question.update(await init.hear())
                scope.cancel()

            tasks.start_soon(cancel_when_heard)
            await act
    assert scope.cancelled_caught
    return question


async def test_a_writer_who_is_cancelled_early_leaves_no_file_behind(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def make_after_the_cancellation() -> None:
                    with anyio.CancelScope(shield=True):
                        question = await init.hear()
                        scope.cancel()
                        await anyio.wait_all_tasks_blocked()
                        init.answer(question, init.holding(memfd(b"")), **CREATED)
                        await init.answer_each({})

                tasks.start_soon(make_after_the_cancellation)
                await files.write("x", b"new")
        assert scope.cancelled_caught
        assert init.asked == ["create /home/me/x", "remove /home/me/.x.1"]


async def test_a_writer_who_is_cancelled_too_late_has_written(connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        has_written = False
        made = init.holding(memfd(b""))
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def place_after_the_cancellation() -> None:
                    with anyio.CancelScope(shield=True):
                        await init.answer_each({**CREATED, "descriptors": made})
                        question = await init.hear()
                        scope.cancel()
                        await anyio.wait_all_tasks_blocked()
                        init.answer(question)

                tasks.start_soon(place_after_the_cancellation)
                await files.write("x", b"new")
                has_written = True
        assert has_written
        assert os.pread(made[0], 10, 0) == b"new"
        assert init.asked == ["create /home/me/x", "place /home/me/x"]


@pytest.mark.parametrize("answers", [0, 1], ids=["at all", "about the place"])
async def test_an_init_that_does_not_answer_cannot_keep_a_writer(
    answers: int, connected: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.backends.spawner.files._ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr("headstart.backends.spawner.files._LAST_ACT_S", 0.05)
    channel, _ = connected
    async with taken_over(connected) as (files, init):
        made = {**CREATED, "descriptors": init.holding(memfd(b""))}
        error = await told(files.write("x", b"new"), init, *[made][:answers])
        assert isinstance(error, BackendError)
        assert "did not answer" in str(error)
        channel.close()
        await channel.lost.wait()


@pytest.mark.parametrize("act", OPENING.values(), ids=OPENING)
async def test_an_init_that_dies_before_it_answers_is_a_backend_error(act: FileAct, connected: Connected) -> None:
    async with taken_over(connected) as (files, init):
        async with anyio.create_task_group() as tasks:

            async def die_when_asked() -> None:
                await init.hear()
                init.die()

            tasks.start_soon(die_when_asked)
            with pytest.raises(BackendError, match="the sandbox is gone"):
                await act(files)
        assert connected[0].lost.is_set()


async def test_an_init_that_dies_before_it_places_a_file_is_a_backend_error(connected: Connected) -> None:
    async with taken_over(connected) as (files, init), anyio.create_task_group() as tasks:

        async def die_when_it_is_to_be_placed() -> None:
            await init.answer_each({**CREATED, "descriptors": init.holding(memfd(b""))})
            await init.hear()
            init.die()

        tasks.start_soon(die_when_it_is_to_be_placed)
        with pytest.raises(BackendError, match="the sandbox is gone"):
            await files.write("x", b"new")
