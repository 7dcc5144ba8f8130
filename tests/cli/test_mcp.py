"""The shim starts a service where there is none, and says why it could not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headstart.cli import mcp
from headstart.cli.state import STATE_IN_USE_STATUS, only_one


def shim(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headstart", "mcp", "--state-dir", str(folder), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=25, check=False, input="")


def test_a_config_that_cannot_be_used_is_told_at_once_with_its_reason(tmp_path: Path) -> None:
    config = tmp_path / "headstart.toml"
    config.write_text("[service]\nbackend = 7\n")
    told = shim(tmp_path / "state", "--config", str(config))
    assert told.returncode == 1
    first, second = told.stderr.splitlines()
    assert first == "error: the service did not start: headstart.toml:2: service.backend: 7 is not possible here"
    assert second == f"hint: its log is {tmp_path}/state/serve.log"


def test_a_state_directory_in_use_has_an_exit_status_of_its_own(tmp_path: Path) -> None:
    config = tmp_path / "headstart.toml"
    config.write_text("[upstreams]\ndefault = 'http://127.0.0.1:9/v1'\n")
    command = [sys.executable, "-m", "headstart", "serve", "--state-dir", str(tmp_path), "--config", str(config)]
    with only_one(tmp_path):
        left = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert (left.returncode, STATE_IN_USE_STATUS) == (3, 3), left.stderr
    assert "a service is running on this state directory" in left.stderr


def test_the_reason_is_what_the_log_says_since_the_start(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.write_text("error: of an older start\n")
    offset = log.stat().st_size
    assert mcp._reason(log, offset) == ""  # pyright: ignore[reportPrivateUsage]
    with log.open("a") as file:
        file.write("warming up\nerror: the port is taken\nhint: another\n")
    assert mcp._reason(log, offset) == "the port is taken"  # pyright: ignore[reportPrivateUsage]
