"""An attack that no script inside can carry out alone: memory that checkpoints keep of kernels, again and again.

What is measured is what the kernel charges to all of this service's control groups, whoever of them answers for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import anyio
import pytest
from tests.machine import where_processes_may_be_traced

import headstart
from headstart.backends.local.guest.places import Place, find_places
from headstart.errors import BackendUnavailable

pytestmark = [pytest.mark.anyio, where_processes_may_be_traced]

MB = 1_000_000
LIMIT_MB, SLACK_MB = 200, 25
TURNS = 8
HOARD = "import os; hoard = [os.urandom(10_000_000) for _ in range(10)]"


@pytest.fixture
def place() -> Place:
    for place in find_places():
        if "memory" in place.controllers:
            return place
    pytest.skip("nobody may limit memory here")


@pytest.fixture
async def box(place: Place) -> AsyncGenerator[headstart.Sandbox]:
    del place
    try:
        async with headstart.Sandbox.create(memory_mb=LIMIT_MB) as box:
            yield box
    except BackendUnavailable as gap:
        pytest.skip(f"sandboxes cannot be isolated here: {gap}")


def runs_in(place: Place) -> set[Path]:
    return set(Path(place.folder).glob("headstart-run-*"))


@pytest.fixture
def others(place: Place) -> set[Path]:
    """Groups of services that are none of ours."""
    return runs_in(place)


async def test_memory_by_checkpoints(others: set[Path], place: Place, box: headstart.Sandbox) -> None:
    [ours] = runs_in(place) - others
    used = ours / ("memory.current" if place.version == 2 else "memory.usage_in_bytes")
    kept: list[headstart.SandboxCheckpoint] = []
    lost = 0
    for _ in range(TURNS):
        lost += (await box.run_code(HOARD)).lost
        kept.append(await box.checkpoint())
        await box.rollback(kept[-1])
        await box.run("exec tail /dev/zero")
    assert lost >= TURNS // 2, "checkpoints hold what else there would be"
    with anyio.fail_after(20):
        while int(used.read_text()) > (LIMIT_MB + SLACK_MB) * MB:  # noqa: ASYNC110 the kernel tells nobody
            await anyio.sleep(0.01)
    assert abs((await box.usage()).memory_bytes - int(used.read_text())) < SLACK_MB * MB, "and it is told"
    assert (await box.run_code("1 + 1")).ok
