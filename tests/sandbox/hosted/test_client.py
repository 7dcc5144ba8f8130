"""`HostedSandbox`: what `Sandbox` does in this process, done in the service through its socket."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import termios
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

import headstart
from headstart.backends.contract import ExitStatus, TerminalSize
from headstart.errors import (
    BackendError,
    CommandTimedOut,
    ConfigError,
    Conflict,
    HeadstartError,
    NotCapturable,
    SandboxPaused,
    SandboxUnknown,
    TransactionRefused,
)
from headstart.sandbox import HostedSandbox, HostedSandboxes, connect

pytestmark = pytest.mark.anyio

SOON_S = 20.0

Box = headstart.Sandbox | HostedSandbox


@pytest.fixture(params=["embedded", "hosted"])
async def either(request: pytest.FixtureRequest, box: HostedSandbox, tmp_path: Path) -> AsyncGenerator[Box]:
    """A sandbox of this process, and one of a service."""
    if request.param == "hosted":
        yield box
        return
    async with headstart.Sandboxes.open(state_dir=tmp_path / "embedded") as boxes, boxes.create() as created:
        yield created


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# ---------------------------------------------------------------- the same as in this process


async def test_a_command_tells_how_it_ended_and_what_it_said(either: Box) -> None:
    done = await either.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.ok) == ("out\n", "err\n", 3, False)
    assert (await either.run(["printf", "%s", "a b"])).stdout == "a b"
    assert (await either.run("kill -9 $$")).status == ExitStatus(code=None, signal=9)
    assert (await either.run(["cat"], stdin="given")).stdout == "given"
    assert (await either.run("head -c 3000000 /dev/zero")).truncated
    assert (await either.run('echo "$WHO"; pwd', env={"WHO": "me"}, cwd="/usr")).stdout == "me\n/usr\n"
    assert (await either.run("printf '\\377' | od -An -tx1")).stdout == " ff\n"


async def test_input_that_comes_over_time_is_given_as_it_comes(either: Box) -> None:
    echoed = anyio.Event()

    async def given() -> AsyncGenerator[bytes]:
        yield b"one\n"
        await echoed.wait()
        yield b"two\n"

    seen: list[bytes] = []

    async def tell(_name: str, chunk: bytes) -> None:
        seen.append(chunk)
        echoed.set()

    with anyio.fail_after(SOON_S):
        assert (await either.run("cat", stdin=given(), on_output=tell)).ok
    assert b"".join(seen) == b"one\ntwo\n"


async def test_telling_that_fails_ends_the_command_and_is_raised_as_it_is(either: Box) -> None:
    async def tell(_name: str, _chunk: bytes) -> None:
        raise ZeroDivisionError

    for work in (
        lambda: either.run("while :; do echo x; done", on_output=tell),
        lambda: either.run_code("while True: print('x')", on_output=tell),
        lambda: either.run_in_shell("while :; do echo x; done", on_output=tell),
    ):
        with pytest.raises(ZeroDivisionError), anyio.fail_after(SOON_S):
            await work()
    assert (await either.run("true")).ok


async def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(either: Box) -> None:
    with pytest.raises(CommandTimedOut) as told:
        await either.run("(trap '' TERM; exec sleep 1000) & sleep 1000", timeout_s=0.3)
    assert isinstance(told.value, TimeoutError)
    assert str(told.value).endswith("had not ended after 0.3 s, and was killed")
    assert (await either.run("grep -lsx sleep /proc/[0-9]*/comm")).stdout == ""


@pytest.mark.parametrize("way", ["anyio", "asyncio"])
async def test_a_command_that_is_cancelled_has_ended_when_that_is_heard(either: Box, way: str) -> None:
    if way == "anyio":
        with anyio.move_on_after(0.3):
            await either.run("sleep 1000 & sleep 1000")
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(either.run("sleep 1000 & sleep 1000"), 0.3)
    assert (await either.run("grep -lsx sleep /proc/[0-9]*/comm")).stdout == ""


async def test_a_command_can_be_talked_with_and_told_to_end(either: Box) -> None:
    async with either.start("trap 'echo int' INT; echo up; cat; read x < <(sleep 1000); echo $?") as streams:
        assert await streams.stdout.receive() == b"up\n"
        await streams.stdin.send(b"said\n")
        assert await streams.stdout.receive() == b"said\n"
        await streams.terminate()
        with anyio.fail_after(SOON_S):
            await streams.wait()
    async with either.start(["cat"]) as streams:
        await streams.interrupt()
        with anyio.fail_after(SOON_S):
            assert (await streams.wait()).signal == 2
        await streams.terminate()  # it has ended, and that is no harm
    async with either.start("sleep 1000"):
        pass
    assert (await either.run("grep -lsxE 'cat|sleep' /proc/[0-9]*/comm")).stdout == ""


async def test_a_terminal_is_one_and_can_be_typed_at_and_resized(either: Box) -> None:
    async with either.start_on_terminal(
        ["bash", "--norc"], TerminalSize(rows=11, columns=44), env={"PS1": "> "}
    ) as shown:
        os.write(shown.descriptor, b"stty size; tty; echo $TERM\n")
        assert b"11 44\r\n" in await _shown_until(shown.descriptor, b"xterm-256color\r\n")
        termios.tcsetwinsize(shown.descriptor, (12, 55))
        os.write(shown.descriptor, b"stty size\n")
        await _shown_until(shown.descriptor, b"12 55\r\n")
        os.write(shown.descriptor, b"sleep 1000\n")
        await either.run("until grep -qsx sleep /proc/[0-9]*/comm; do sleep 0.01; done", timeout_s=SOON_S)
        os.write(shown.descriptor, b"\x03")
        await _shown_until(shown.descriptor, b"^C")
        os.write(shown.descriptor, b"echo st$?\n")
        await _shown_until(shown.descriptor, b"st130\r\n")
        os.write(shown.descriptor, b"exit 4\n")
        with anyio.fail_after(SOON_S):
            assert (await shown.wait()).code == 4


async def _shown_until(descriptor: int, expected: bytes) -> bytes:
    said = b""
    with anyio.fail_after(SOON_S):
        while expected not in said:
            await anyio.wait_readable(descriptor)
            said += os.read(descriptor, 65_536)
    return said


@pytest.mark.parametrize("told", [False, True], ids=["kept", "told"])
async def test_code_keeps_its_state_and_says_what_it_says(either: Box, told: bool) -> None:
    said: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    async def tell(name: str, chunk: bytes) -> None:
        said[name] += chunk

    await either.run_code("import sys; x = 41")
    cell = await either.run_code(
        "print('a' * 200_000); print('e', file=sys.stderr); x + 1", on_output=tell if told else None
    )
    assert cell.text == "42"
    assert (len(cell.stdout), cell.stderr) == ((0, "") if told else (200_001, "e\n"))
    assert (len(said["stdout"]), said["stderr"]) == ((200_001, b"e\n") if told else (0, b""))
    failed = await either.run_code("1/0")
    assert failed.error is not None
    assert failed.error.type == "ZeroDivisionError"
    line = await either.run_in_shell("cd /usr; y=3; echo $y; (exit 7)", on_output=tell if told else None)
    assert (line.exit_code, line.cwd, line.stdout) == (7, "/usr", "" if told else "3\n")
    assert (await either.run_in_shell("echo $y $PWD")).stdout == "3 /usr\n"


async def test_code_that_takes_too_long_is_interrupted_and_its_state_stays(either: Box) -> None:
    await either.run_code("x = 1")
    with anyio.fail_after(SOON_S):
        assert (await either.run_code("import time; time.sleep(1000)", timeout_s=0.3)).timed_out
        assert (await either.run_in_shell("z=5; sleep 1000", timeout_s=0.3)).timed_out
        with anyio.move_on_after(0.3):
            await either.run_code("time.sleep(1000)")
        assert (await either.run_code("x")).text == "1"
        assert (await either.run_in_shell("echo $z")).stdout == "5\n"


async def test_files_are_written_read_listed_renamed_and_removed(either: Box) -> None:
    await either.files.make_folder("d/e")
    await either.files.write("d/f", "tëxt", mode=0o750)
    assert await either.files.read("d/f") == "tëxt".encode()
    assert [(each.name, each.kind.value) for each in await either.files.list("d")] == [("e", "folder"), ("f", "file")]
    info = await either.files.stat("d/f")
    assert (info.path, info.size_bytes, info.mode) == ("/home/sandbox/d/f", 5, 0o750)
    await either.files.rename("d/f", "d/g")
    await either.files.remove("d/e")
    assert [each.name for each in await either.files.list("d")] == ["g"]
    await either.files.write("empty", b"")
    assert await either.files.read("empty") == b""


@pytest.mark.parametrize(
    "name", ["a b", "-x", "new\nline", "tab\t", "é", b"\xff\xfe".decode("utf-8", "surrogateescape"), "'\"$`"]
)
async def test_names_of_any_kind_are_what_they_are(either: Box, name: str) -> None:
    await either.files.write(name, b"content")
    assert [each.name for each in await either.files.list()] == [name]
    assert await either.files.read(name) == b"content"
    assert (await either.run(["cat", f"./{name}"])).stdout == "content"
    await either.files.remove(name)
    assert not await either.files.list()


# ---------------------------------------------------------------- the same errors


async def _paused(box: Box) -> None:
    await box.pause()
    try:
        await box.run("true")
    finally:
        await box.resume()


async def _conflict(box: Box) -> None:
    branch = await box.fork()
    await box.files.write("here", b"")
    try:
        await branch.commit()
    finally:
        await branch.discard()


async def _not_capturable(box: Box) -> None:
    async with box.start("echo up; sleep 1000") as streams:
        await streams.stdout.receive()
        await box.checkpoint()


async def _run_in_the_way(box: Box) -> None:
    up = asyncio.Event()

    async def tell(_name: str, _chunk: bytes) -> None:
        up.set()

    running = asyncio.create_task(box.run("echo; sleep 1000", on_output=tell))
    await up.wait()
    try:
        await box.checkpoint()
    finally:
        running.cancel()
        await asyncio.wait([running])


FAILING: dict[str, tuple[Callable[[Any], Awaitable[Any]], type[Exception]]] = {
    "no file": (lambda box: box.files.read("nonesuch"), FileNotFoundError),
    "a folder": (lambda box: box.files.read("/usr"), IsADirectoryError),
    "no folder": (lambda box: box.files.list("/etc/passwd"), NotADirectoryError),
    "not allowed": (lambda box: box.files.write("/usr/f", b""), OSError),
    "too large": (lambda box: box.files.read("/usr/bin/env", limit_bytes=3), OSError),
    "a device": (lambda box: box.files.read("/dev/zero"), OSError),
    "too long a path": (lambda box: box.files.read("x" * 5_000), OSError),
    "no rename": (lambda box: box.files.rename("nonesuch", "x"), FileNotFoundError),
    "no remove": (lambda box: box.files.remove("nonesuch"), FileNotFoundError),
    "no program": (lambda box: box.run(["nonesuch"]), BackendError),
    "no cwd": (lambda box: box.run("true", cwd="/nonesuch"), BackendError),
    "no command": (lambda box: box.run([]), ConfigError),
    "no variable": (lambda box: box.run("true", env={"": "x"}), ConfigError),
    "too long": (lambda box: box.run("sleep 1000", timeout_s=0.1), CommandTimedOut),
    "too many words": (lambda box: box.run(["true", "x" * 3_000_000]), BackendError),
    "code that is none": (lambda box: box.run_code(3), ConfigError),
    "paused": (_paused, SandboxPaused),
    "conflict": (_conflict, Conflict),
    "something runs": (_not_capturable, NotCapturable),
    "a command runs": (_run_in_the_way, TransactionRefused),
    "no checkpoint": (lambda box: box.rollback("nonesuch"), TransactionRefused),
    "no checkpoint to drop": (lambda box: box.drop("nonesuch"), TransactionRefused),
}


def _told(error: Exception) -> dict[str, Any]:
    """What there is to know of an error, without what is another for each sandbox."""
    told: dict[str, Any] = {"type": type(error), "notes": getattr(error, "__notes__", None), **vars(error)}
    if isinstance(error, OSError):
        told |= {"errno": error.errno, "strerror": error.strerror, "filename": error.filename}
    else:
        told["message"] = str(error)
    return {name: value for name, value in told.items() if name not in {"origin", "canonical"}}


@pytest.mark.parametrize("what", FAILING)
async def test_what_fails_raises_what_it_raises_in_this_process(what: str, box: HostedSandbox, tmp_path: Path) -> None:
    work, kind = FAILING[what]
    async with headstart.Sandboxes.open(state_dir=tmp_path / "embedded") as boxes, boxes.create() as embedded:
        with pytest.raises(kind) as here:
            await work(embedded)
        with pytest.raises(kind) as there:
            await work(box)
        one, other = _told(here.value), _told(there.value)
        assert type(here.value) is type(there.value)
        assert _alike(one, embedded.id) == _alike(other, box.id)
        if isinstance(there.value, Conflict):
            assert there.value.origin.startswith("state_")
            assert there.value.canonical.startswith("state_")
    assert (await box.run("true")).ok


def _alike(told: dict[str, Any], sandbox: str) -> str:
    import re  # noqa: PLC0415 for this alone

    text = repr(sorted((name, str(value)) for name, value in told.items())).replace(sandbox, "BOX")
    return re.sub(r"\(\d+\)|[a-z]+_[0-9a-f]{24}", "ID", text)


# ---------------------------------------------------------------- states


async def test_a_checkpoint_is_gone_back_to_also_by_its_id_and_dropped(either: Box) -> None:
    await either.run_in_shell("cd /usr; v=1")
    await either.files.write("f", b"1")
    kept = await either.checkpoint()
    await either.files.write("f", b"2")
    await either.run_in_shell("v=2")
    await either.rollback(kept.id)
    assert await either.files.read("f") == b"1"
    assert (await either.run_in_shell("echo $v $PWD")).stdout == "1 /usr\n"
    await either.rollback(kept)
    await either.drop(kept)
    with pytest.raises(TransactionRefused):
        await either.rollback(kept)


async def test_a_branch_is_committed_or_discarded_and_then_gone(service: HostedSandboxes, box: HostedSandbox) -> None:
    await box.files.write("f", b"1")
    branch, other = await box.fork(), await box.fork()
    await branch.files.write("f", b"2")
    assert await box.files.read("f") == await other.files.read("f") == b"1"
    assert {each.id: each.branch_of for each in await service.list()} == {
        box.id: None,
        branch.id: box.id,
        other.id: box.id,
    }
    await other.discard()
    await branch.commit()
    assert await box.files.read("f") == b"2"
    assert [each.id for each in await service.list()] == [box.id]
    with pytest.raises(SandboxUnknown, match=f"has ended: it was committed: it is {box.id} now"):
        await branch.run("true")
    with pytest.raises(SandboxUnknown, match="has ended: it was discarded"):
        await other.run("true")


async def test_what_is_no_branch_is_neither_committed_nor_discarded(box: HostedSandbox) -> None:
    for work in (box.commit, box.discard):
        with pytest.raises(TransactionRefused, match="is no branch"):
            await work()
    branch = await box.fork()
    for refused in (branch.fork, branch.checkpoint):
        with pytest.raises(TransactionRefused, match="is a branch"):
            await refused()
    assert (await branch.run("true")).ok


async def test_a_paused_sandbox_says_so_and_goes_on_where_it_was(service: HostedSandboxes, box: HostedSandbox) -> None:
    await box.run_code("x = 5")
    await box.pause()
    assert (await box.info()).state.value == "paused"
    for work in (lambda: box.run("true"), lambda: box.run_code("x"), box.files.list, box.fork):
        with pytest.raises(SandboxPaused):
            await work()
    assert (await box.usage()).memory_bytes > 0
    await box.resume()
    assert (await box.run_code("x")).text == "5"
    assert [each.state.value for each in await service.list()] == ["running"]


# ---------------------------------------------------------------- what only a service can do


async def test_what_one_client_leaves_the_next_one_finds(state: Path) -> None:
    async with connect(state) as one:
        box = await one.create(name="kept", env={"WHO": "me"}, network="none")
        await box.run_code("x = 6")
        await box.run_in_shell("cd /usr; y=7")
        await box.files.write("f", b"8")
        await box.run("setsid sleep 1000 > /dev/null 2>&1 &")
    async with connect(state) as other:
        same = await other.get("kept")
        assert same.id == box.id
        assert (await same.run_code("x")).text == "6"
        assert (await same.run_in_shell("echo $y $PWD $WHO")).stdout == "7 /usr me\n"
        assert await same.files.read("f") == b"8"
        assert (await same.run("grep -lsx sleep /proc/[0-9]*/comm | wc -l")).stdout == "1\n"


async def test_two_clients_at_once_do_not_hold_each_other_up(state: Path, box: HostedSandbox) -> None:
    async with connect(state) as other, box.start("sleep 1000"):
        assert (await (await other.get(box.id)).run("echo x")).stdout == "x\n"


async def test_what_a_command_says_does_not_pass_through_the_service(box: HostedSandbox) -> None:
    """The service, which is this process here, has not kept the command's ends of our pipes."""
    await box.run("true")
    before = await anyio.to_thread.run_sync(_ends_of_pipes)
    async with box.start("echo up; sleep 1000") as streams:
        await streams.stdout.receive()
        ends = await anyio.to_thread.run_sync(_ends_of_pipes)
        assert [count for pipe, count in ends.items() if pipe not in before] == [1, 1, 1]


def _ends_of_pipes() -> dict[str, int]:
    """How many descriptors of this process lead to each pipe that somebody of a sandbox has too."""
    ends: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            link = str(entry.readlink())
        except OSError:
            continue
        if link.startswith("pipe:"):
            ends[link] = ends.get(link, 0) + 1
    return ends


async def test_a_gigabyte_of_output_costs_the_service_nothing(tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "headstart", "serve", "--state-dir", str(tmp_path / "s"), "--port", "0"]
    env = {**os.environ, "HEADSTART_CONFIG": ""}
    process = await anyio.to_thread.run_sync(
        lambda: subprocess.Popen(serve, cwd=tmp_path, env=env, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    )
    try:
        with anyio.fail_after(SOON_S):
            while not (tmp_path / "s" / "service.json").exists():  # noqa: ASYNC110 another process makes it
                await anyio.sleep(0.02)
        async with connect(tmp_path / "s") as service:
            box = await service.create()
            await box.run("true")
            before, held = _cpu_s(process.pid), _most_memory(process.pid)
            length = 0

            async def count(_name: str, chunk: bytes) -> None:
                nonlocal length
                length += len(chunk)

            began = time.monotonic()
            await box.run("head -c 1000000000 /dev/zero", on_output=count)
            assert length == 1_000_000_000
            assert _cpu_s(process.pid) - before < 0.1, f"in {time.monotonic() - began:.1f} s"
            assert _most_memory(process.pid) - held < 10_000_000
            for told in (box.run_in_shell, box.run_code):  # these it hands on, a piece at a time
                await told("1" if told == box.run_code else "true")
                held = _most_memory(process.pid)
                zeros = "import os\nfor _ in range(1000): os.write(1, bytes(1_000_000))"
                await told(zeros if told == box.run_code else "head -c 1000000000 /dev/zero")
                assert _most_memory(process.pid) - held < 30_000_000, told
    finally:
        process.terminate()
        await anyio.to_thread.run_sync(process.wait)


def _most_memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_a_file_of_fifty_megabytes_goes_in_and_comes_out_whole(box: HostedSandbox) -> None:
    before = open_descriptors()
    content = os.urandom(1_000_000) * 50
    await box.files.write("large", content)
    assert await box.files.read("large") == content
    assert open_descriptors() <= before


async def test_a_write_that_is_cancelled_at_any_moment_leaves_the_old_file_or_the_new_and_no_descriptor(
    box: HostedSandbox,
) -> None:
    await box.files.write("w/f", b"0")
    before = open_descriptors()
    for number in range(60):
        new = b"%d" % (number + 1)
        await box.files.write("w/f", b"%d" % number)
        for give_up in (_give_up_by_asyncio, _give_up_by_anyio):
            await give_up(box.files.write("w/f", new * 100_000), 0.006 * number / 60)
            assert await box.files.read("w/f") in {b"%d" % number, new * 100_000}
        assert [info.name for info in await box.files.list("w")] == ["f"]
    with anyio.fail_after(SOON_S):
        while open_descriptors() > before:  # noqa: ASYNC110 a thread may still be at it
            await anyio.sleep(0.01)


async def _give_up_by_asyncio(work: Awaitable[object], after_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(work, after_s)


async def _give_up_by_anyio(work: Awaitable[object], after_s: float) -> None:
    with anyio.move_on_after(after_s):
        await work


async def test_whatever_is_cancelled_at_any_moment_nobody_is_told_that_a_sandbox_failed(state: Path) -> None:
    async def everything(service: HostedSandboxes) -> None:
        box = await service.create()
        await box.run("true")
        branch = await box.fork()
        await branch.run("true")
        await branch.commit()
        await box.rollback(await box.checkpoint())
        await box.kill()

    async with connect(state) as service:
        for number in range(30):
            with anyio.move_on_after(0.004 * number):
                await everything(service)
        for info in await service.list():
            assert (await (await service.get(info.id)).run("echo lives")).stdout == "lives\n"
        for info in await service.list():
            if info.branch_of is None:
                await (await service.get(info.id)).kill()
        assert not await service.list()


async def test_who_uses_what_has_ended_is_told_that_and_why(box: HostedSandbox, service: HostedSandboxes) -> None:
    await box.kill()
    for work in (
        lambda: box.run("true"),
        lambda: box.run_code("1"),
        box.files.list,
        box.checkpoint,
        box.info,
        box.kill,
        lambda: service.get(box.id),
    ):
        with pytest.raises(SandboxUnknown) as told:
            await work()
        assert str(told.value) == f"{box.id} has ended: it was killed"
        assert told.value.hint == "headstart sandbox list shows who lives"


async def test_a_branch_has_the_same_identity_or_a_fresh_one(box: HostedSandbox) -> None:
    await box.files.write(".netrc", "x")
    kept = await box.checkpoint()
    same, fresh = await box.fork(), await box.fork(identity="fresh")
    assert (same.frozen_secrets, fresh.frozen_secrets) == ((), ("~/.netrc",))
    seen = [(await each.run("cat /etc/machine-id")).stdout for each in (box, same, fresh)]
    assert seen[0] == seen[1] != seen[2]
    assert await box.rollback(kept) == ()
    assert (await box.run("cat /etc/machine-id")).stdout == seen[0]
    assert await box.rollback(kept, identity="fresh") == ("~/.netrc",)
    assert (await box.run("cat /etc/machine-id")).stdout not in seen
    with pytest.raises(ConfigError, match="identity"):
        await box.fork(identity="new")  # pyright: ignore[reportArgumentType] users write it


async def test_events_tell_all_that_happens_in_order(service: HostedSandboxes) -> None:
    async with service.watch() as events:
        box = await service.create()
        kept = await box.checkpoint()
        branch = await box.fork()
        await branch.commit()
        await box.rollback(kept)
        await box.pause()
        await box.resume()
        await box.kill()
        seen = [(each.event.value, each.sandbox, each.about) for each in [await anext(events) for _ in range(9)]]
    assert seen == [
        ("created", box.id, ""),
        ("checkpointed", box.id, kept.id),
        ("forked", box.id, branch.id),
        ("committed", box.id, branch.id),
        ("ended", branch.id, f"it was committed: it is {box.id} now"),
        ("rolled back", box.id, kept.id),
        ("paused", box.id, ""),
        ("resumed", box.id, ""),
        ("ended", box.id, "it was killed"),
    ]


async def test_options_that_cannot_be_used_are_told_as_in_this_process(
    service: HostedSandboxes, tmp_path: Path
) -> None:
    wrong: list[dict[str, Any]] = [{"network": "all"}, {"memory_mb": -1}, {"mounts": {str(tmp_path / "none"): "ro"}}]
    for options in wrong:
        with pytest.raises(HeadstartError) as there:
            await service.create(**options)
        async with headstart.Sandboxes.open(state_dir=tmp_path / "embedded") as boxes:
            with pytest.raises(HeadstartError) as here:
                async with boxes.create(headstart.SandboxOptions(**options)):
                    pass
        assert _told(there.value) == _told(here.value)
    assert not await service.list()


async def test_who_leaves_a_command_that_runs_leaves_the_sandbox_as_free_as_before(service: HostedSandboxes) -> None:
    box = await service.create()
    async with box.start("sleep 1000"):
        pass
    with anyio.move_on_after(0.2):
        async with box.start("sleep 1000"):
            await anyio.sleep_forever()
    with anyio.move_on_after(0.2):
        async with box.start_on_terminal("sleep 1000"):
            await anyio.sleep_forever()
    kept = await box.checkpoint()
    await (await box.fork()).discard()
    await box.rollback(kept)
