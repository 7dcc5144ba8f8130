"""Pausing through the library, over the real backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.errors import SandboxPaused, TransactionRefused

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["local", "process"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[headstart.Sandbox]:
    if request.param == "local" and not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with (
        headstart.Sandboxes.open(backend=request.param, state_dir=tmp_path / "state") as boxes,
        boxes.create() as created,
    ):
        yield created


def skip_without_layers(box: headstart.Sandbox) -> None:
    if not hasattr(box._current(), "layered"):  # pyright: ignore[reportPrivateUsage]
        pytest.skip("the process backend has no layers")


async def test_a_hundred_pauses_lose_nothing(box: headstart.Sandbox) -> None:
    counted = bytearray()

    async def take(_: str, chunk: bytes) -> None:
        counted.extend(chunk)

    async with anyio.create_task_group() as tasks:
        counting = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i; sleep 0.002; done; echo end $i"
        tasks.start_soon(lambda: box.run(counting, on_output=take))
        await box.run_in_shell("N=0; sleep 1000 & JOB=$!")
        await box.run_code("import threading, time\nticks = 0\nn = 0")
        await box.run_code(
            "def tick():\n    global ticks\n    while True: ticks += 1; time.sleep(0.001)\n"
            "threading.Thread(target=tick, daemon=True).start()"
        )
        for number in range(1, 101):
            await box.pause()
            await box.resume()
            if number % 10 == 0:
                shell = await box.run_in_shell("N=$((N+1)); echo $N; kill -0 $JOB")
                cell = await box.run_code("n += 1; n")
                assert (shell.stdout, shell.exit_code, shell.restarted) == (f"{number // 10}\n", 0, False)
                assert (cell.text, cell.restarted) == (str(number // 10), False)
        before = int((await box.run_code("ticks")).text or 0)
        await box.run_code("time.sleep(0.05)")
        assert int((await box.run_code("ticks")).text or 0) > before > 0, "its threads go on"
        await box.files.write("stop", b"")
    lines = counted.decode().split("\n")
    assert lines[:-2] == [str(number) for number in range(1, len(lines) - 1)]
    assert lines[-2:] == [f"end {len(lines) - 2}", ""]


async def test_a_cell_and_a_shell_command_that_run_while_it_is_paused_come_to_their_end(box: headstart.Sandbox) -> None:
    told: list[object] = []

    async def cell() -> None:
        told.append((await box.run_code("import time\nfor i in range(50): time.sleep(0.01)\ni")).text)

    async def line() -> None:
        told.append((await box.run_in_shell("for i in $(seq 50); do sleep 0.01; done; echo $i")).stdout)

    await box.run_code("0")
    await box.run_in_shell(":")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cell)
        tasks.start_soon(line)
        for _ in range(20):
            await anyio.sleep(0.01)
            await box.pause()
            await box.resume()
    assert sorted(map(str, told)) == ["49", "50\n"]


async def test_whatever_needs_it_to_move_is_refused_with_the_cure(box: headstart.Sandbox) -> None:
    await box.run_code("x = 1")
    await box.run_in_shell("Y=2")
    version = box.state_version
    await box.pause()
    assert box.paused
    for act in (
        lambda: box.run("true"),
        lambda: box.run_code("x"),
        lambda: box.run_in_shell("echo"),
        box.shell.capture,
        lambda: box.files.read("a"),
        lambda: box.files.write("a", b""),
        box.checkpoint,
        box.fork,
        lambda: box.start("true").__aenter__(),
    ):
        with anyio.fail_after(5), pytest.raises(SandboxPaused, match=f"{box.id} is paused") as refusal:
            await act()
        assert refusal.value.hint == "resume it first"
    assert (await box.usage()).processes > 0
    await box.resume()
    assert box.state_version == version, "standing still changes nothing"
    assert (await box.run_code("x")).text == "1"
    assert (await box.run_in_shell("echo $Y")).stdout == "2\n"


async def test_a_block_that_is_left_while_it_is_paused_does_not_hang(box: headstart.Sandbox) -> None:
    with anyio.fail_after(10):
        async with box.start("sleep 613"):
            await box.pause()
        await box.resume()
        assert (await box.run("grep -lz '^61[3]$' /proc/[0-9]*/cmdline 2>/dev/null")).stdout == ""


async def test_a_branch_is_paused_apart_and_may_be_thrown_away_so(box: headstart.Sandbox) -> None:
    skip_without_layers(box)
    kept = await box.checkpoint()
    branch = await box.fork()
    await branch.pause()
    assert (await box.run("echo works")).stdout == "works\n"
    with pytest.raises(SandboxPaused):
        await branch.run("true")
    await branch.discard()
    with pytest.raises(TransactionRefused, match="discarded"):
        await branch.pause()
    await box.pause()
    with pytest.raises(SandboxPaused):
        await box.rollback(kept)
    await box.resume()
    await box.rollback(kept)
    assert not box.paused


async def test_a_paused_branch_that_is_committed_is_the_sandbox_and_paused(box: headstart.Sandbox) -> None:
    skip_without_layers(box)
    branch = await box.fork()
    await branch.run_code("x = 1")
    await branch.pause()
    with anyio.fail_after(10):
        await branch.commit()
    assert box.paused
    await box.resume()
    assert (await box.run_code("x")).text == "1"


async def test_a_branch_can_take_the_place_of_a_paused_sandbox(box: headstart.Sandbox) -> None:
    skip_without_layers(box)
    branch = await box.fork()
    await branch.files.write("a", b"1")
    await box.pause()
    await branch.commit()
    assert not box.paused
    assert await box.files.read("a") == b"1"
