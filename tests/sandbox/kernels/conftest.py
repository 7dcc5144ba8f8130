"""Sandboxes of each backend that this machine can run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

import headstart


@pytest.fixture(params=["local", "process"])
async def box(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[headstart.Sandbox]:
    if request.param == "local" and not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with (
        headstart.Sandboxes.open(backend=request.param, state_dir=tmp_path / "state") as boxes,
        boxes.create() as created,
    ):
        yield created


@pytest.fixture
async def bare_box(tmp_path: Path) -> AsyncGenerator[headstart.Sandbox]:
    """Not isolated: for what depends on the machine's programs alone."""
    async with (
        headstart.Sandboxes.open(backend="process", state_dir=tmp_path / "state") as boxes,
        boxes.create() as created,
    ):
        yield created


@pytest.fixture
def open_descriptors() -> Callable[[], int]:
    """Counts those of this process."""
    return lambda: len(list(Path("/proc/self/fd").iterdir()))
