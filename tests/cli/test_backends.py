"""Without isolation is only ever what the operator has asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.backends import open_backend
from headstart.config.model import ServiceSettings, Settings
from headstart.errors import BackendUnavailable

CURE = 'headstart doctor says what is missing; service.backend = "process" runs servers without isolation'


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state directory in which the local backend cannot open, whatever this machine can do."""
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "local").write_text("no folder")
    return folder


@pytest.mark.anyio
@pytest.mark.parametrize("backend", ["auto", "local"])
async def test_where_nothing_can_be_isolated_no_backend_opens(state: Path, backend: str) -> None:
    settings = Settings(servers=(), state_dir=state, service=ServiceSettings(backend=backend))
    with pytest.raises(BackendUnavailable, match=r"^sandboxes cannot be isolated here: ") as refused:
        async with open_backend(settings):
            pytest.fail("something opened")
    assert refused.value.hint == CURE
    assert not (state / "process").exists()


@pytest.mark.anyio
async def test_the_backend_without_isolation_opens_when_it_is_named(state: Path) -> None:
    settings = Settings(servers=(), state_dir=state, service=ServiceSettings(backend="process"))
    async with open_backend(settings) as backend:
        assert (backend.name, backend.capabilities.isolation) == ("process", "none")


def test_serve_refuses_to_run_without_isolation_unless_told_to(state: Path, tmp_path: Path) -> None:
    servers = tmp_path / "mcp.json"
    servers.write_text('{"mcpServers": {"good": {"command": "true"}}}')
    (tmp_path / "headstart.toml").write_text("")
    command = [sys.executable, "-m", "headstart", "serve", "--mcp", str(servers), "--port", "0"]
    done = subprocess.run(
        [*command, "--state-dir", str(state)], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: sandboxes cannot be isolated here: ")
    assert hint == f"hint: {CURE}"
