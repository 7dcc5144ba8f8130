"""What Python kernels and their images hold in memory: it counts, once, and against the limit of their sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest
from tests.machine import where_memory_is_limited, where_processes_may_be_traced

import headstart
from headstart.errors import BackendUnavailable

pytestmark = [pytest.mark.anyio, where_processes_may_be_traced]

MB = 1_000_000


@pytest.fixture
async def box() -> AsyncGenerator[headstart.Sandbox]:
    try:
        async with headstart.Sandbox.create(memory_mb=200) as box:
            yield box
    except BackendUnavailable as gap:
        pytest.skip(f"sandboxes cannot be isolated here: {gap}")


async def used_mb(*boxes: headstart.Sandbox | headstart.Branch) -> float:
    return sum([(await box.usage()).memory_bytes for box in boxes]) / MB


@where_memory_is_limited
async def test_what_checkpoints_keep_of_kernels_that_were_replaced_counts_against_the_limit(
    box: headstart.Sandbox,
) -> None:
    kept: list[headstart.SandboxCheckpoint] = []
    while True:
        done = await box.run_code("import os; x = os.urandom(60_000_000)")
        assert await used_mb(box) < 220
        if done.lost:
            break
        kept.append(await box.checkpoint())
        await box.rollback(kept[-1])
        with anyio.fail_after(10):  # the one that was replaced has them until it has ended
            while await used_mb(box) < 55 * len(kept):  # noqa: ASYNC110 it has ended when nobody waits
                await anyio.sleep(0.01)
    assert len(kept) in (2, 3), "there is no room for another"
    assert (await box.run_code("1")).restarted
    await box.rollback(kept[0])
    assert (await box.run_code("len(x)")).text == "60000000", "no checkpoint was lost by that"
    for each in kept:
        await box.drop(each)
    for _ in range(3):  # and there is room again
        assert (await box.run_code("x = None; x = os.urandom(60_000_000)")).ok


@where_memory_is_limited
async def test_who_wants_more_than_checkpoints_leave_is_killed_and_not_they(box: headstart.Sandbox) -> None:
    await box.run_code("import os; x = os.urandom(120_000_000)")
    kept = await box.checkpoint()
    await box.run_code("del x")
    done = await box.run("python3 -c 'x = bytes([1]) * 150_000_000'")
    assert (done.ok, done.out_of_memory) == (False, True)
    await box.rollback(kept)
    assert (await box.run_code("len(x)")).text == "120000000"


@where_memory_is_limited
async def test_each_branch_has_a_limit_of_its_own(box: headstart.Sandbox) -> None:
    await box.run_code("import os; x = os.urandom(120_000_000)")
    async with await box.fork() as one, await box.fork() as other:
        for each in (one, other):
            assert (await each.run_code("y = os.urandom(120_000_000); len(x)")).text == "120000000"
        assert (await one.run_code("z = os.urandom(100_000_000)")).lost
        assert (await other.run_code("len(y)")).text == "120000000"


async def test_what_is_shared_with_a_checkpoint_or_a_branch_is_counted_once(box: headstart.Sandbox) -> None:
    await box.run_code("import os; x = os.urandom(90_000_000)")
    kept = await box.checkpoint()
    assert 90 < await used_mb(box) < 130
    await box.rollback(kept)
    assert (await box.run_code("len(x)")).text == "90000000"
    assert 90 < await used_mb(box) < 130
    async with await box.fork() as branch:
        assert (await branch.run_code("len(x)")).text == "90000000"
        assert 90 < await used_mb(box, branch) < 150


async def test_what_only_a_checkpoint_holds_is_counted(box: headstart.Sandbox) -> None:
    await box.run_code("import os; x = os.urandom(90_000_000)")
    kept = await box.checkpoint()
    await box.run_code("del x")
    assert await used_mb(box) > 85
    await box.drop(kept)
    del kept
