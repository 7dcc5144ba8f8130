"""`headstart.Sandbox` and `Sandboxes`: what a user does with them from Python, on real backends."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.errors import BackendError, BackendUnavailable, CommandTimedOut, ConfigError, HeadstartError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["local", "process"])
async def boxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[headstart.Sandboxes]:
    """Sandboxes of each backend that this machine can run."""
    if request.param == "local" and not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with headstart.Sandboxes.open(backend=request.param, state_dir=tmp_path / "state") as opened:
        yield opened


@pytest.fixture
async def box(boxes: headstart.Sandboxes) -> AsyncGenerator[headstart.Sandbox]:
    async with boxes.create() as created:
        yield created


async def test_one_sandbox_is_created_with_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    try:
        async with headstart.Sandbox.create(memory_mb=500) as box:
            await box.files.write("hello.py", b"print('hello')")
            assert (await box.run("python3 hello.py")).stdout == "hello\n"
    except BackendUnavailable as gap:
        assert not may_make_namespaces()
        pytest.skip(f"the local backend cannot run here: {gap}")
    left = await anyio.to_thread.run_sync(lambda: list(tmp_path.rglob("box_*")))
    assert left == []


async def test_a_command_tells_how_it_ended_and_what_it_said(box: headstart.Sandbox) -> None:
    done = await box.run("echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_code, done.ok) == ("out\n", "err\n", 3, False)
    assert (await box.run(["printf", "%s", "a b"])).stdout == "a b"
    assert (await box.run("kill -9 $$")).exit_code == 137
    assert (await box.run("true")).ok


async def test_a_command_is_given_input_folder_and_environment(box: headstart.Sandbox) -> None:
    await box.files.make_folder("work")
    done = await box.run('cat; pwd; echo "$WHO"', stdin="in\n", cwd=await _home(box) + "/work", env={"WHO": "me"})
    assert done.stdout == f"in\n{await _home(box)}/work\nme\n"


async def test_what_a_command_leaves_the_next_one_finds_and_no_other_sandbox_does(boxes: headstart.Sandboxes) -> None:
    async with boxes.create() as one, boxes.create() as other:
        await one.run("echo mine > note")
        assert (await one.run("cat note")).stdout == "mine\n"
        with pytest.raises(FileNotFoundError):
            await other.files.read("note")
        assert one.id != other.id


async def test_output_beyond_a_mebibyte_is_cut_and_that_is_told(box: headstart.Sandbox) -> None:
    done = await box.run("head -c 3000000 /dev/zero")
    assert (len(done.stdout), done.truncated) == (1 << 20, True)


async def test_output_is_told_as_it_comes_and_all_of_it(box: headstart.Sandbox) -> None:
    seen: dict[str, int] = {"stdout": 0, "stderr": 0}
    answered = anyio.Event()

    async def on_output(name: str, chunk: bytes) -> None:
        seen[name] += len(chunk)
        answered.set()

    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(30):
            tasks.start_soon(_run_told, box, "echo first; while [ ! -e go ]; do sleep 0.01; done", on_output)
            await answered.wait()  # while it still runs
            await box.files.write("go", b"")
    assert seen == {"stdout": 6, "stderr": 0}
    done = await box.run("head -c 50000000 /dev/zero; head -c 70000 /dev/zero >&2", on_output=on_output)
    assert seen == {"stdout": 50_000_006, "stderr": 70_000}
    assert (done.stdout, done.stderr, done.truncated, done.ok) == ("", "", False, True)


async def test_who_takes_output_slowly_holds_the_command_up_and_loses_nothing(box: headstart.Sandbox) -> None:
    chunks: list[int] = []

    async def slowly(name: str, chunk: bytes) -> None:
        chunks.append(len(chunk))
        if len(chunks) == 1:
            assert (await box.run("true")).ok  # others go on meanwhile
            with anyio.move_on_after(0.5):  # longer than a pipe is waited for after its command's end
                await anyio.Event().wait()

    await box.run("head -c 300000 /dev/zero", on_output=slowly)
    assert sum(chunks) == 300_000


async def test_input_can_come_as_it_does_and_ends_with_the_command(box: headstart.Sandbox) -> None:
    heard = anyio.Event()

    async def on_output(name: str, chunk: bytes) -> None:
        heard.set()

    async def lines() -> AsyncGenerator[bytes]:
        yield b"one\n"
        await heard.wait()  # the first was read before there was a second
        yield b"two\n"
        await anyio.Event().wait()  # and it would go on for ever

    with anyio.fail_after(20):
        assert (await box.run("head -n 1; head -n 1 > second", stdin=lines(), on_output=on_output)).ok
    assert await box.files.read("second") == b"two\n"


async def test_what_raises_while_it_takes_output_ends_the_command_and_is_raised(box: headstart.Sandbox) -> None:
    async def refuse(name: str, chunk: bytes) -> None:
        raise LookupError("not mine")

    with pytest.raises(LookupError, match="not mine"), anyio.fail_after(10):
        await box.run("echo $$ > pid; echo x; sleep 1000", on_output=refuse)
    assert not (await box.run("kill -0 $(cat pid)")).ok


async def test_a_command_that_takes_too_long_is_killed_and_the_sandbox_lives_on(box: headstart.Sandbox) -> None:
    with pytest.raises(CommandTimedOut, match=r"'sleep 1000 # long' had not ended after 0.2 s, and was killed"):
        await box.run("sleep 1000 # long", timeout_s=0.2)
    assert (await box.run("echo on")).stdout == "on\n"


async def test_a_command_can_be_talked_with(box: headstart.Sandbox) -> None:
    async with box.start('while read line; do echo "<$line>"; done') as streams:
        for said in (b"one", b"two"):
            await streams.stdin.send(said + b"\n")
            assert await streams.stdout.receive() == b"<" + said + b">\n"
        await streams.stdin.aclose()
        assert (await streams.wait()).code == 0


async def test_leaving_a_command_ends_it_with_what_it_started(box: headstart.Sandbox) -> None:
    async with box.start("sleep 1000 & echo $!; wait") as streams:
        child = int(await streams.stdout.receive())
    await box.run(f"while kill -0 {child} 2> /dev/null; do sleep 0.01; done", timeout_s=10)


async def test_a_failing_sandbox_is_never_a_failing_command(boxes: headstart.Sandboxes) -> None:
    async with boxes.create() as box:
        with pytest.raises(BackendError, match="cannot run 'nonesuch'"):
            await box.run(["nonesuch"])
        runs = anyio.Event()

        async def note(_: str, __: bytes) -> None:
            runs.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect_gone, box, "echo up; sleep 1000", note)
            with anyio.fail_after(20):
                await runs.wait()
                await box.kill()
        await box.kill()
        await _expect_gone(box, "true")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"network": "all"}, "network: there is no network 'all'"),
        ({"mounts": {"/usr": "w"}}, "mounts: /usr: 'w' is no way to mount"),
        ({"mounts": {"": "ro"}}, "mounts: a path is empty"),
        ({"mounts": {"~nobody-there/x": "ro"}}, "mounts: ~nobody-there/x: there is no such user"),
        ({"mounts": ["/usr"]}, "mounts: ['/usr'] is no mapping"),
        ({"memory_mb": 0}, "memory_mb: 0 is not possible"),
        ({"memory_mb": "2000"}, "memory_mb: '2000' is not possible"),
        ({"cpu_cores": float("nan")}, "cpu_cores: nan is not possible"),
        ({"pids": 1.5}, "pids: 1.5 is not possible"),
        ({"disk_mb": 1e15}, "disk_mb: 1000000000000000.0 is not possible"),
        ({"env": {"A=B": "1"}}, "env: 'A=B': '1' is no variable"),
        ({"env": {"A": 1}}, "env: 'A': 1 is no variable"),
    ],
)
async def test_an_option_that_cannot_be_is_refused_with_its_name_and_the_cure(
    boxes: headstart.Sandboxes, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        async with boxes.create(headstart.SandboxOptions(**options)):
            pass
    assert (str(refused.value), bool(refused.value.hint)) == (told, True)


async def test_a_backend_or_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend: there is no backend 'bogus'"):
        async with headstart.Sandboxes.open(backend="bogus"):
            pass
    with pytest.raises(TypeError, match="netwrok"):
        async with headstart.Sandbox.create(netwrok="none"):
            pass


@pytest.mark.parametrize(
    ("command", "more", "told"),
    [
        ([], {}, "there is no program"),
        (["sleep", 5], {}, "5 is no text"),
        ("a\0", {}, "'a\\x00' is no text"),
        ("true", {"env": {"": "1"}}, "env: '': '1' is no variable"),
        ("true", {"cwd": "\0"}, "'\\x00' is no text"),
        (["\ud800"], {}, "cannot run '\\ud800'"),
        ("true", {"cwd": "/nonesuch"}, "cannot run 'bash'"),
    ],
    ids=["nothing", "a number", "NUL", "a variable", "a folder", "no UTF-8", "no folder"],
)
async def test_what_can_be_no_command_is_refused_and_the_sandbox_lives_on(
    box: headstart.Sandbox, command: Any, more: dict[str, Any], told: str
) -> None:
    with pytest.raises(HeadstartError) as refused:
        await box.run(command, **more)
    assert told in str(refused.value)
    assert (await box.run("echo on")).stdout == "on\n"


async def test_a_path_that_is_too_deep_is_refused_and_the_sandbox_lives_on(box: headstart.Sandbox) -> None:
    deep = "a/" * 1500 + "f"
    for act in (box.files.make_folder(deep), box.files.read(deep), box.files.write(deep, b"")):
        with pytest.raises(OSError, match="a/a/a"):
            await act
    assert (await box.run("echo on")).stdout == "on\n"


async def test_an_exception_of_whoever_takes_output_is_never_taken_for_the_commands_time(
    box: headstart.Sandbox,
) -> None:
    async def late(name: str, chunk: bytes) -> None:
        raise TimeoutError("mine")

    for timeout_s in (None, 600):
        with pytest.raises(TimeoutError, match="mine"):
            await box.run("echo x", on_output=late, timeout_s=timeout_s)


async def test_fifty_sandboxes_at_once_are_each_their_own(boxes: headstart.Sandboxes) -> None:
    said: set[str] = set()

    async def one(number: int) -> None:
        async with boxes.create() as box:
            await box.files.write("n", str(number).encode())
            said.add((await box.run("cat n")).stdout)

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(one, number)
    assert said == {str(number) for number in range(50)}


async def test_a_mount_shows_as_said(boxes: headstart.Sandboxes, mappable_base: Path) -> None:
    folder = mappable_base / "shown"
    folder.mkdir(exist_ok=True)
    (folder / "given").write_text("from outside")
    async with boxes.create(headstart.SandboxOptions(mounts={str(folder): "ro"})) as box:
        assert await box.files.read(f"{folder}/given") == b"from outside"


async def test_a_mounted_folder_that_has_been_replaced_shows_as_the_new_one(
    boxes: headstart.Sandboxes, mappable_base: Path
) -> None:
    folder = mappable_base / "replaced"
    for content in ("old", "new"):
        folder.mkdir()
        (folder / "given").write_text(content)
        async with boxes.create(headstart.SandboxOptions(mounts={str(folder): "ro"})) as box:
            assert (await box.files.read(f"{folder}/given")).decode() == content
        shutil.rmtree(folder)


async def _home(box: headstart.Sandbox) -> str:
    return (await box.run('printf %s "$HOME"')).stdout


async def _run_told(box: headstart.Sandbox, command: str, on_output: headstart.OnOutput) -> None:
    await box.run(command, on_output=on_output)


async def _expect_gone(box: headstart.Sandbox, command: str, on_output: headstart.OnOutput | None = None) -> None:
    with pytest.raises(BackendError, match="gone"):
        await box.run(command, on_output=on_output)
