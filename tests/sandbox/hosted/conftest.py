"""A host of sandboxes on the real local backend, with its door open."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces
from tests.sandbox.hosted.hosting import open_host

from headstart.sandbox import HostedSandbox, HostedSandboxes, connect
from headstart.sandbox.hosted import SandboxHost, open_door


@pytest.fixture
async def host(tmp_path: Path) -> AsyncGenerator[SandboxHost]:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    async with open_host(tmp_path) as opened:
        yield opened


@pytest.fixture
async def state(host: SandboxHost, tmp_path: Path) -> AsyncGenerator[Path]:
    """The state directory of a service that lets clients in."""
    folder = tmp_path / "state"
    folder.mkdir()
    async with open_door(host, folder):
        yield folder


@pytest.fixture
async def service(state: Path) -> AsyncGenerator[HostedSandboxes]:
    async with connect(state) as connected:
        yield connected


@pytest.fixture
async def box(service: HostedSandboxes) -> HostedSandbox:
    return await service.create()
