"""What the whole-service tests share: a model to talk to, a place to run in, the kinds of isolation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from headstart.bench.replay_model import Recording, serve
from headstart.bench.replay_model.recordings import load_recordings

from .running import Place

_CAN_ISOLATE = """
import anyio, sys
from pathlib import Path
from headstart.backends.local import open_local_backend

async def main():
    async with open_local_backend(Path(sys.argv[1])):
        pass

anyio.run(main)
"""


@pytest.fixture(scope="session")
def portal() -> Generator[BlockingPortal]:
    """An event loop beside the tests, for what must outlive a test's own."""
    with start_blocking_portal() as started:
        yield started


@pytest.fixture(scope="session")
def recordings() -> tuple[Recording, ...]:
    return load_recordings(Path(__file__).with_name("conversations.toml"))


@pytest.fixture(scope="session")
def model(portal: BlockingPortal, recordings: tuple[Recording, ...]) -> Generator[str]:
    """The base URL of a model that plays the recordings, 10 ms per token."""
    with portal.wrap_async_context_manager(serve(recordings, ttft_s=0.05, tpot_s=0.01)) as url:
        yield url


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(folder=tmp_path / "place")


@pytest.fixture(scope="session")
def local_backend_trouble(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Why the local backend cannot run here; "" if it can."""
    state = tmp_path_factory.mktemp("probe")
    command = [sys.executable, "-c", _CAN_ISOLATE, str(state)]
    tried = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


@pytest.fixture(scope="module", params=["process", "local"])
def isolation(request: pytest.FixtureRequest, local_backend_trouble: str) -> str:
    """Each kind of isolation that there is; what this machine cannot do is skipped by name."""
    if request.param == "local" and local_backend_trouble:
        pytest.skip(f"the local backend cannot run here: {local_backend_trouble}")
    kind: str = request.param
    return kind
