"""Cells and commands that are given up, anyio's way and asyncio's: the next one is not hurt, and nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import headstart
from headstart.errors import BackendError

pytestmark = pytest.mark.anyio

Interpreter = Callable[..., Awaitable[Any]]

LOOPS = {
    "kernel": ("x = 1", "while True: print('y', end='')", "print(x)"),
    "shell": ("x=1", "while :; do printf y; done", "echo $x"),
}


def interpreter(box: headstart.Sandbox, kind: str) -> Interpreter:
    return box.run_code if kind == "kernel" else box.run_in_shell


async def give_up(way: str, work: Awaitable[Any], after_s: float) -> None:
    if way == "asyncio":
        with suppress(TimeoutError):
            await asyncio.wait_for(work, after_s)
    else:
        with anyio.move_on_after(after_s):
            await work


@pytest.mark.parametrize("way", ["asyncio", "anyio"])
@pytest.mark.parametrize("kind", LOOPS)
async def test_what_is_given_up_is_interrupted_and_its_state_stays(
    box: headstart.Sandbox, kind: str, way: str, open_descriptors: Callable[[], int]
) -> None:
    run = interpreter(box, kind)
    before, loop, after = LOOPS[kind]
    with anyio.fail_after(60):
        assert (await run(before)).ok
        had = open_descriptors()
        for number in range(10):
            await give_up(way, run(loop), 0.01 * number + 0.001)
            done = await run(after)
            assert (done.stdout, done.restarted) == ("1\n", False)
        assert open_descriptors() == had


@pytest.mark.parametrize("way", ["asyncio", "anyio"])
@pytest.mark.parametrize("kind", LOOPS)
async def test_whatever_moment_it_is_given_up_at_the_next_one_runs_and_no_descriptor_is_left(
    box: headstart.Sandbox, kind: str, way: str, open_descriptors: Callable[[], int]
) -> None:
    with anyio.fail_after(100):
        had = open_descriptors()
        for number in range(40):
            opened = box.open_kernel() if kind == "kernel" else box.open_shell()
            async with opened as each:
                await give_up(way, each.run("1"), 0.002 * number)
                if number % 4 == 0:
                    assert (await each.run("print(1)" if kind == "kernel" else "echo 1")).stdout == "1\n"
        assert open_descriptors() == had


@pytest.mark.parametrize("kind", LOOPS)
async def test_what_does_not_react_when_it_is_given_up_is_killed(box: headstart.Sandbox, kind: str) -> None:
    deaf = {
        "kernel": "import signal, os\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('pid', 'w').write(str(os.getpid()))\nwhile True: pass",
        "shell": "trap '' INT; echo $$ > pid; sleep 1000",
    }
    run = interpreter(box, kind)
    with anyio.fail_after(60):
        await give_up("anyio", run(deaf[kind]), 0.5)
        assert not (await box.run("kill -0 $(cat pid)")).ok
        done = await run(LOOPS[kind][0])
        assert (done.ok, done.restarted) == (True, True)


async def test_a_sink_that_raises_ends_the_cell_and_is_raised_and_the_state_stays(box: headstart.Sandbox) -> None:
    async def refuse(name: str, chunk: bytes) -> None:
        raise LookupError("not mine")

    with anyio.fail_after(60):
        await box.run_code("x = 1")
        for code in ("while True: print('y')", "print('y')", "print('y' * 300_000)"):
            with pytest.raises(LookupError, match="not mine"):
                await box.run_code(code, on_output=refuse)
            assert await box.run_code("x") == headstart.CellResult(text="1")


async def test_a_request_that_was_sent_in_part_costs_the_kernel_and_not_the_next_cell(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        await box.run_code("import threading\nx = 1")
        await give_up("anyio", box.run_code("import time\ntime.sleep(1000)"), 0.2)
        await give_up("asyncio", box.run_code("#" * 50_000_000), 0.3)
        assert (await box.run_code("1")).text == "1"


async def test_who_waits_for_a_turn_can_give_up_and_the_turn_before_goes_on(box: headstart.Sandbox) -> None:
    with anyio.fail_after(60):
        results: list[headstart.CellResult] = []

        async def first() -> None:
            results.append(
                await box.run_code("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n'done'")
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first)
            await anyio.wait_all_tasks_blocked()
            await give_up("anyio", box.run_code("1"), 0.1)
            await box.files.write("go", b"")
        assert results[0].text == "'done'"


async def test_killing_the_sandbox_ends_a_cell_that_runs(box: headstart.Sandbox) -> None:
    started = anyio.Event()

    async def note(name: str, chunk: bytes) -> None:
        started.set()

    async def expect_gone() -> None:
        with pytest.raises(BackendError):
            await box.run_code("print('x', flush=True)\nwhile True: pass", on_output=note)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_gone)
            await started.wait()
            await box.kill()


@pytest.mark.parametrize("kind", LOOPS)
async def test_who_is_cancelled_again_and_again_leaves_nothing(
    box: headstart.Sandbox, kind: str, open_descriptors: Callable[[], int]
) -> None:
    deaf = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    run = interpreter(box, kind)
    with anyio.fail_after(60):
        assert (await run(LOOPS[kind][0])).ok
        had = open_descriptors()
        for number in range(8):
            task = asyncio.ensure_future(run(deaf if kind == "kernel" else "trap '' INT; sleep 1000"))
            while not task.done():
                await asyncio.wait([task], timeout=0.05 + 0.02 * number)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                task.result()
            done = await run(LOOPS[kind][0])
            assert (done.ok, done.restarted) == (True, True)
        assert open_descriptors() == had
