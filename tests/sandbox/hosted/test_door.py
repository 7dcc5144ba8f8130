"""The socket through which clients use hosted sandboxes: whatever comes in, the service and its sandboxes stay."""

from __future__ import annotations

import array
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.sandbox.hosted.hosting import open_host

from headstart.errors import BackendError, ConfigError, HeadstartError
from headstart.sandbox import HostedSandbox, HostedSandboxes, connect
from headstart.sandbox.hosted import SandboxHost, open_door
from headstart.sandbox.hosted.connection import NoService
from headstart.sandbox.hosted.line import SOCKET_NAME, near

pytestmark = pytest.mark.anyio

NOT_LONG_S = 20.0


class Stranger:
    """A client that says whatever it likes."""

    def __init__(self, state: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with near(state) as close_by:
            self.sock.connect(close_by)
        self.sock.settimeout(NOT_LONG_S)

    def say_bytes(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        rights = array.array("i", descriptors)
        self.sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else [])

    def say(self, number: Any, op: str, descriptors: Sequence[int] = (), /, **fields: Any) -> None:
        message = {"op": op, "number": number, "record": {"e": op, **fields}}
        self.say_bytes(json.dumps(message).encode(), descriptors)

    async def hears(self) -> dict[str, Any] | None:
        """Return the next record that comes; None if the service has hung up."""
        data = await anyio.to_thread.run_sync(lambda: self.sock.recv(1 << 20))
        if not data:
            return None
        record: dict[str, Any] = json.loads(data)["record"]
        return record

    def close(self) -> None:
        self.sock.close()


@contextmanager
def stranger(state: Path) -> Generator[Stranger]:
    met = Stranger(state)
    try:
        yield met
    finally:
        met.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def wait_for_descriptors(at_most: int) -> None:
    with anyio.fail_after(NOT_LONG_S):
        while open_descriptors() > at_most:  # noqa: ASYNC110 nobody tells when one is closed
            await anyio.sleep(0.01)


DEEP = b'{"op": "x", "number": 1, "record": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    "said",
    [
        b"\x00\xff\xfe garbage",
        b"[]",
        b"17",
        b"{}",
        b'{"op": "Kill"',
        b'{"op": "Kill", "number": 1, "record": null}',
        b'{"op": "Kill", "number": 1, "record": []}',
        b'{"op": "Kill", "number": 1e999, "record": {"e": "Kill", "sandbox": "x"}}',
        b'{"op": "Kill", "number": "one", "record": {"e": "Kill", "sandbox": "x"}}',
        b'{"op": "Kill", "number": [1], "record": {"e": "Kill", "sandbox": "x"}}',
        DEEP,
    ],
)
async def test_who_says_what_means_nothing_is_let_go_and_everybody_else_stays(
    said: bytes, state: Path, box: HostedSandbox
) -> None:
    with stranger(state) as met:
        met.say_bytes(said)
        assert await met.hears() is None
    assert (await box.run("echo here")).stdout == "here\n"


@pytest.mark.parametrize(
    "record",
    [
        17,
        "Kill",
        {"e": "Nonesuch"},
        {"e": ["Kill"]},
        {"e": "Kill", "sandbox": "x", "more": 1},
        {"e": "Kill", "sandbox": 5},
        {"e": "Kill", "sandbox": ["x"]},
        {"e": "Kill"},
        {"e": "Start", "sandbox": "x", "argv": 7},
        {"e": "Start", "sandbox": "x", "argv": [1]},
        {"e": "RunCode", "sandbox": "x", "code": "", "timeout_s": 10**400},
        {"e": "Create", "options": 3},
        {"e": "Create", "options": {"pids": "many"}},
        {"e": "Create", "options": {"mounts": ["/"]}},
        {"e": "SignalProcess", "number": 1, "signal": "harder"},
    ],
)
async def test_who_asks_for_what_cannot_be_read_is_told_so_and_may_go_on(
    record: object, state: Path, box: HostedSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(state) as met:
        met.say_bytes(json.dumps({"op": "x", "number": 1, "record": record}).encode())
        answer = await met.hears()
        assert answer is not None
        assert answer["message"].startswith("the service cannot read what it was asked for: ")
        met.say(2, "KeepAlive", sandbox=box.id)
        assert await met.hears() == {"e": "Done"}
    assert caplog.records == []


@pytest.mark.parametrize(
    ("op", "fields"),
    [
        ("Done", {}),
        ("Failed", {"kind": "X", "message": "x"}),
        ("Begun", {}),
        ("Kill", {"sandbox": "nonesuch"}),
        ("Kill", {"sandbox": ""}),
        ("Kill", {"sandbox": "box_"}),
        ("Kill", {"sandbox": "x" * 100_000}),
        ("SignalProcess", {"number": 10**30, "signal": "terminate"}),
        ("Cancel", {"number": 10**30}),
    ],
)
async def test_who_asks_for_what_cannot_be_is_told_so_and_may_go_on(
    op: str, fields: dict[str, Any], state: Path, box: HostedSandbox, caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(state) as met:
        met.say(1, op, **fields)
        if op != "Cancel":
            answer = await met.hears()
            assert answer is not None
            assert answer["e"] == ("Done" if op == "SignalProcess" else "Failed")
        met.say(2, "KeepAlive", sandbox=box.id)
        assert await met.hears() == {"e": "Done"}
    assert caplog.records == []


@pytest.mark.parametrize("idle", ["NaN", "Infinity", "-1", "0"])
async def test_a_time_that_is_none_is_refused(idle: str, state: Path, box: HostedSandbox) -> None:
    with stranger(state) as met:
        options = '"options": {}, "ends_after_idle_s": ' + idle
        met.say_bytes(b'{"op": "Create", "number": 1, "record": {"e": "Create", %s}}' % options.encode())
        answer = await met.hears()
        assert answer is not None
        assert (answer["e"], answer["kind"]) == ("Failed", "ConfigError")
    assert (await box.run("true")).ok


@pytest.mark.parametrize(("rows", "columns"), [(1 << 20, 80), (-1, 80), (24, 10**30)])
async def test_a_terminal_of_no_size_is_refused(rows: int, columns: int, state: Path, box: HostedSandbox) -> None:
    with stranger(state) as met:
        met.say(1, "StartOnTerminal", sandbox=box.id, argv=["bash"], rows=rows, columns=columns)
        answer = await met.hears()
        assert answer is not None
        assert (answer["e"], answer["kind"]) == ("Failed", "ConfigError")


@pytest.mark.parametrize("count", [0, 1, 2, 4, 60])
async def test_a_command_with_fewer_or_more_descriptors_than_three_is_not_started(
    count: int, state: Path, box: HostedSandbox
) -> None:
    before = open_descriptors()
    with stranger(state) as met, nothing() as given:
        met.say(1, "Start", [given] * count, sandbox=box.id, argv=["touch", "here"])
        answer = await met.hears()
        assert answer is not None
        assert answer["message"] == f"a command needs three descriptors, and {count} came"
    await wait_for_descriptors(before)
    assert not await box.files.list()


@pytest.mark.parametrize("count", [1, 3])
async def test_code_with_another_number_of_descriptors_than_none_or_two_is_not_run(
    count: int, state: Path, box: HostedSandbox
) -> None:
    before = open_descriptors()
    with stranger(state) as met, nothing() as given:
        met.say(1, "RunCode", [given] * count, sandbox=box.id, code="open('here', 'w')")
        answer = await met.hears()
        assert answer is not None
        assert answer["message"] == f"code needs two descriptors or none, and {count} came"
    await wait_for_descriptors(before)
    assert not await box.files.list()


@contextmanager
def nothing() -> Generator[int]:
    opened = os.open(os.devnull, os.O_RDWR)
    try:
        yield opened
    finally:
        os.close(opened)


@contextmanager
def wrong_kind(kind: str, tmp_path: Path) -> Generator[int]:
    match kind:
        case "folder":
            opened = os.open(tmp_path, os.O_RDONLY)
        case "2 GB":
            opened = os.open(tmp_path / "sparse", os.O_RDWR | os.O_CREAT)
            os.ftruncate(opened, 2_000_000_000)
        case "socket":
            one, other = socket.socketpair()
            opened = one.detach()
            other.close()
        case "pipe":
            opened, other_end = os.pipe()
            os.close(other_end)
        case "write only":
            opened = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
            os.write(opened, b"content")
        case _:
            raise AssertionError(kind)
    try:
        yield opened
    finally:
        os.close(opened)


KINDS = ["folder", "2 GB", "socket", "pipe", "write only"]


@pytest.mark.parametrize("kind", KINDS)
async def test_content_that_is_no_file_is_not_written(
    kind: str, state: Path, box: HostedSandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stranger(state) as met, wrong_kind(kind, tmp_path) as descriptor:
        met.say(1, "WriteFile", [descriptor], sandbox=box.id, path="f")
        answer = await met.hears()
        assert answer is not None
        assert (answer["e"], answer["kind"]) == ("Failed", "OSError")
        for descriptors in ([], [descriptor, descriptor]):
            met.say(2, "WriteFile", descriptors, sandbox=box.id, path="f")
            answer = await met.hears()
            assert answer is not None
            assert "content to be written" in answer["message"]
    assert not await box.files.list()
    assert caplog.records == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_comes_as_no_file_is_none(
    kind: str, state: Path, box: HostedSandbox, tmp_path: Path
) -> None:
    before = open_descriptors()
    with stranger(state) as met, wrong_kind(kind, tmp_path) as descriptor:
        met.say_bytes(b'{"op": "ListSandboxes", "number": 1}', [descriptor])
        assert await met.hears() is None
    await wait_for_descriptors(before)
    assert (await box.run("true")).ok


@pytest.mark.parametrize("place", range(3))
async def test_a_command_is_given_no_folder_of_the_host(
    place: int, state: Path, box: HostedSandbox, tmp_path: Path
) -> None:
    before = open_descriptors()
    with stranger(state) as met, nothing() as null, wrong_kind("folder", tmp_path) as folder:
        descriptors = [null] * 3
        descriptors[place] = folder
        met.say(1, "Start", descriptors, sandbox=box.id, argv=["touch", "here"])
        answer = await met.hears()
        assert answer is not None
        assert answer["message"] == "a command in a sandbox cannot be given a folder of the host"
    await wait_for_descriptors(before)
    assert not await box.files.list()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "folder"])
async def test_a_command_on_descriptors_of_any_kind_ends_and_leaves_none(
    kind: str, state: Path, box: HostedSandbox, tmp_path: Path
) -> None:
    before = open_descriptors()
    with stranger(state) as met, wrong_kind(kind, tmp_path) as descriptor:
        met.say(1, "Start", [descriptor] * 3, sandbox=box.id, argv=["true"])
        assert await met.hears() == {"e": "Begun"}
        answer = await met.hears()
        assert answer is not None
        assert answer["e"] == "Ended"
    await wait_for_descriptors(before)


@pytest.mark.parametrize("kind", KINDS)
async def test_code_that_is_to_tell_descriptors_of_any_kind_ends_and_leaves_none(
    kind: str, state: Path, box: HostedSandbox, tmp_path: Path
) -> None:
    await box.run_code("1")  # its kernel's descriptors stay
    before = open_descriptors()
    with stranger(state) as met, wrong_kind(kind, tmp_path) as descriptor:
        met.say(1, "RunCode", [descriptor] * 2, sandbox=box.id, code="print('said')")
        answer = await met.hears()
        assert answer is not None
        assert answer["e"] in {"CellResult", "Failed"}
    await wait_for_descriptors(before)
    assert (await box.run_code("1 + 1")).text == "2"


async def test_one_number_for_two_things_at_once_ends_both(state: Path, box: HostedSandbox) -> None:
    with stranger(state) as met, nothing() as given:
        for _ in range(2):
            met.say(1, "Start", [given] * 3, sandbox=box.id, argv=["sleep", "0.2"])
        told = [await met.hears() for _ in range(4)]
        assert sum(each is not None and each["e"] == "Begun" for each in told) >= 1
        met.say(2, "KeepAlive", sandbox=box.id)
        assert await met.hears() == {"e": "Done"}


CLIENT = """
import sys, anyio, headstart
from pathlib import Path
async def main():
    async with headstart.connect(sys.argv[1]) as service:
        box = await service.get(sys.argv[2])
        async def tell(name, chunk): pass
        async def forever(work):
            while True:
                await work()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.run, "echo $$ > command; exec sleep 1000")
            tasks.start_soon(lambda: box.run_code("import time; open('cell', 'w').close(); time.sleep(1000)", on_output=tell))
            tasks.start_soon(lambda: box.run_in_shell("touch line; sleep 1000"))
            tasks.start_soon(forever, lambda: box.files.write("large", b"x" * 5_000_000))
            tasks.start_soon(forever, lambda: box.files.read("/usr/bin/python3"))
            tasks.start_soon(forever, service.list)
            tasks.start_soon(forever, service.create)
            async with box.start_on_terminal(), service.watch() as events:
                Path(sys.argv[3]).touch()
                async for _ in events: pass
anyio.run(main)
"""


async def test_a_client_that_is_killed_in_the_middle_of_everything_takes_its_commands_and_nothing_else(
    state: Path, box: HostedSandbox, service: HostedSandboxes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await box.run_code("kept = 7")
    await box.run_in_shell("kept=8")
    before = open_descriptors()
    up = tmp_path / "up"
    client = await anyio.open_process(
        [sys.executable, "-c", CLIENT, str(state), box.id, str(up)], stdin=None, stdout=None, stderr=None
    )
    with anyio.fail_after(NOT_LONG_S):
        names: set[str] = set()
        while not up.exists() or not {"command", "cell", "line"} <= names:
            await anyio.sleep(0.02)
            names = {each.name for each in await box.files.list()}
    client.send_signal(signal.SIGKILL)
    await client.wait()
    done = await box.run("while grep -qsx sleep /proc/[0-9]*/comm; do sleep 0.02; done", timeout_s=NOT_LONG_S)
    assert done.ok or "not found" in done.stderr
    assert (await box.run_code("kept")).text == "7"
    assert (await box.run_in_shell("echo $kept")).stdout == "8\n"
    assert [each.name for each in await box.files.list() if each.name.startswith(".")] == []
    for each in await service.list():
        if each.id != box.id:
            await (await service.get(each.id)).kill()
    await wait_for_descriptors(before)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_who_never_reads_is_let_go_and_holds_up_nobody(state: Path, box: HostedSandbox) -> None:
    met = Stranger(state)
    met.sock.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        for sent in range(20_000):
            met.say(sent, "LookUp", sandbox=box.id)
            if sent % 50 == 0:
                await anyio.lowlevel.checkpoint()
    assert sent > 100
    with anyio.fail_after(5):
        assert (await box.run("echo on")).stdout == "on\n"
    met.sock.setblocking(True)
    met.sock.settimeout(60)
    with anyio.fail_after(60):
        await anyio.to_thread.run_sync(_wait_hung_up, met.sock)
    met.close()


def _wait_hung_up(sock: socket.socket) -> None:
    """Return when the other end is closed, without taking anything that it has said."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    assert poll.poll(60_000)


async def test_two_hundred_clients_at_once_are_all_answered_and_leave_nothing(state: Path, box: HostedSandbox) -> None:
    before = open_descriptors()

    async def visit() -> None:
        async with connect(state) as service:
            assert (await (await service.get(box.id)).run(["echo", "x"])).stdout == "x\n"

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for _ in range(200):
                tasks.start_soon(visit)
    await wait_for_descriptors(before)


async def test_whatever_is_done_leaves_no_descriptor(state: Path, box: HostedSandbox) -> None:
    async def tell(_name: str, _chunk: bytes) -> None: ...

    async def use() -> None:
        async with connect(state) as service:
            used = await service.get(box.id)
            await used.run("cat; echo x >&2", stdin="y", on_output=tell)
            await used.files.write("f", b"x" * 300_000)
            assert len(await used.files.read("f")) == 300_000
            with suppress(OSError):
                await used.files.read("nonesuch")
            await used.run_code("print('x' * 200_000)", on_output=tell)
            await used.run_code("print('x' * 200_000)")
            await used.run_in_shell("echo x", on_output=tell)
            with suppress(HeadstartError):
                await used.run(["nonesuch"])
            with anyio.move_on_after(0.05):
                await used.run("sleep 100")
            async with used.start("cat") as streams, used.start_on_terminal():
                await streams.stdin.send(b"x")
            async with service.watch():
                pass
            await (await service.create()).kill()

    await use()  # what is made at first use stays: kernels, threads
    before = open_descriptors()
    for _ in range(5):
        await use()
    await wait_for_descriptors(before)


async def test_a_state_directory_with_a_long_path_has_a_door_too(host: SandboxHost, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    assert len(str(folder)) > 200
    async with open_door(host, folder), connect(folder) as service:
        assert (await (await service.create()).run("echo in")).stdout == "in\n"
    assert list(folder.iterdir()) == []


async def test_the_socket_of_a_service_that_was_killed_is_no_hindrance(host: SandboxHost, tmp_path: Path) -> None:
    old = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near(tmp_path) as close_by:
        old.bind(close_by)
    old.close()
    with pytest.raises(NoService) as told:
        async with connect(tmp_path):
            pass
    assert str(told.value) == f"no headstart service hosts sandboxes in {tmp_path}"
    async with open_door(host, tmp_path), connect(tmp_path) as service:
        assert not await service.list()
    assert not (tmp_path / SOCKET_NAME).exists()


async def test_what_is_in_the_sockets_place_and_no_socket_is_told(host: SandboxHost, tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).mkdir()
    with pytest.raises(ConfigError, match=SOCKET_NAME):
        async with open_door(host, tmp_path):
            pass


async def test_nobody_else_can_come_in(state: Path) -> None:
    assert (state / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
    if os.geteuid() != 0:
        return
    for folder in (state, *state.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    (state / SOCKET_NAME).chmod(0o666)  # also when the file would let them
    knock = (
        "import os, socket, sys; os.setgroups([]); os.setresuid(12345, 12345, 12345); os.chdir(sys.argv[1]);"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20); s.connect(sys.argv[2]);"
        's.send(b\'{"op": "ListSandboxes", "number": 1, "record": {"e": "ListSandboxes"}}\'); print(s.recv(100))'
    )
    tried = await anyio.run_process(
        [sys.executable, "-S", "-c", knock, str(state), SOCKET_NAME], stderr=subprocess.STDOUT, check=False
    )
    assert tried.stdout == b"b''\n" or b"BrokenPipeError" in tried.stdout or b"ConnectionReset" in tried.stdout


async def test_when_the_service_ends_whoever_waits_is_told_at_once(tmp_path: Path, host: SandboxHost) -> None:
    opened, ending = anyio.Event(), anyio.Event()

    async def serve() -> None:
        async with open_door(host, tmp_path):
            opened.set()
            await ending.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        await opened.wait()
        async with connect(tmp_path) as client:
            box = await client.create()
            async with client.watch() as events, box.start("sleep 1000") as streams:
                ending.set()
                with anyio.fail_after(5):
                    with pytest.raises(BackendError, match="the service is gone"):
                        await streams.wait()
                    with pytest.raises(BackendError, match="the service is gone"):
                        await anext(events)
            with pytest.raises(BackendError, match="the service is gone"):
                await box.run("true")
    (lives,) = await host.list()
    assert not (await _commands_of(host, lives.id))


async def _commands_of(host: SandboxHost, sandbox: str) -> str:
    with host.using(sandbox) as box:
        return (await box.run("grep -lsx sleep /proc/[0-9]*/comm")).stdout


async def test_the_host_closes_with_everything_running(tmp_path: Path) -> None:
    before = open_descriptors()
    (tmp_path / "state").mkdir()
    async with (
        open_host(tmp_path) as host,
        anyio.create_task_group() as tasks,
        open_door(host, tmp_path / "state"),
        connect(tmp_path / "state") as service,
    ):
        box = await service.create()
        await service.create(ends_after_idle_s=100)
        await box.fork()
        await box.checkpoint()
        ready = anyio.Event()

        async def tell(_name: str, _chunk: bytes) -> None:
            ready.set()

        async def run() -> None:
            with suppress(BackendError):
                await box.run("echo; sleep 1000", on_output=tell)

        tasks.start_soon(run)
        await ready.wait()
        tasks.cancel_scope.cancel()
    await wait_for_descriptors(before)
