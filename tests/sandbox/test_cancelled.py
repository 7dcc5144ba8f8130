"""Cancelling, also asyncio's own way: nothing is written where it should not be, and nothing is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.machine import may_make_namespaces

import headstart
from headstart.errors import CommandTimedOut

pytestmark = pytest.mark.anyio


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


LARGE = b"A" * 300_000_000


@pytest.fixture
async def box(tmp_path: Path) -> AsyncGenerator[headstart.Sandbox]:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    options = headstart.SandboxOptions(memory_mb=None, disk_mb=None)
    async with headstart.Sandboxes.open(state_dir=tmp_path / "state") as boxes, boxes.create(options) as created:
        yield created


async def test_a_write_that_is_given_up_writes_into_no_file_that_is_opened_next(
    box: headstart.Sandbox, tmp_path: Path
) -> None:
    for after_s in (0.005, 0.02, 0.04):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(box.files.write("large", LARGE), after_s)
        opened = [os.open(tmp_path / f"{number}", os.O_CREAT | os.O_RDWR | os.O_TRUNC) for number in range(12)]
        await box.run("sleep 0.2")  # a thread that went on would have written by then
        assert [os.fstat(descriptor).st_size for descriptor in opened] == [0] * 12
        for descriptor in opened:
            os.close(descriptor)
    assert (await box.run("ls -A")).stdout == ""


@pytest.mark.parametrize("way", ["asyncio", "anyio"])
async def test_a_write_that_is_cancelled_at_any_moment_leaves_the_old_file_or_the_new_and_nothing_else(
    box: headstart.Sandbox, way: str
) -> None:
    before = open_descriptors()
    for number in range(120):
        old, new = b"%d" % number, b"%d" % (number + 1)
        await box.files.write("w/f", old)
        patience_s = 0.004 * number / 120
        if way == "asyncio":
            with suppress(TimeoutError):
                await asyncio.wait_for(box.files.write("w/f", new), patience_s)
        else:
            with anyio.move_on_after(patience_s):
                await box.files.write("w/f", new)
        assert await box.files.read("w/f") in {old, new}
        assert [info.name for info in await box.files.list("w")] == ["f"]
    assert open_descriptors() <= before


async def test_a_command_that_is_given_up_ends_with_what_it_started(box: headstart.Sandbox) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(box.run("setsid sleep 1000 & echo $! > pid; wait"), 0.5)
    await box.run("while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done", timeout_s=10)


async def test_what_a_command_has_left_ends_if_its_output_is_given_up(box: headstart.Sandbox) -> None:
    chatter = "(trap '' PIPE; while :; do echo x 2> /dev/null; sleep 0.05; done) & echo $! > pid; exit 0"
    with pytest.raises(CommandTimedOut):
        await box.run(chatter, timeout_s=0.5)
    await box.run("while kill -0 $(cat pid) 2> /dev/null; do sleep 0.01; done", timeout_s=10)


async def test_commands_that_are_given_up_fast_hold_up_no_others(box: headstart.Sandbox) -> None:
    async def give_up() -> None:
        for _ in range(100):
            with anyio.move_on_after(0.0015):
                await box.run("true")

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(give_up)
        for _ in range(10):
            assert (await box.run("true", timeout_s=30)).ok


async def test_who_is_cancelled_at_any_moment_is_never_told_that_a_sandbox_failed(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")

    async def sweep(number: int) -> None:
        with anyio.move_on_after(0.02 * number):
            async with headstart.Sandboxes.open(state_dir=tmp_path / f"{number}") as boxes, boxes.create() as box:
                await box.run("true")

    for number in range(25):
        await sweep(number)
