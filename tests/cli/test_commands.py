"""Commands are up at once, because each imports only what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HEAVY = ("mcp", "openai", "uvicorn", "starlette")
_RUN = f"""
import sys
from headstart.cli.main import main
try:
    main()
except SystemExit as left:
    print([name for name in {_HEAVY!r} if name in sys.modules], left.code)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("command", ["stop", "status", "trace", "forget"])
def test_a_command_that_only_asks_the_service_imports_neither_sdk_nor_server(command: str, tmp_path: Path) -> None:
    done = run(command, "--state-dir", str(tmp_path))
    assert done.stdout == "[] 1\n"
    assert done.stderr == "error: no headstart service is running here\nhint: start one: headstart serve\n"


def test_serve_does_not_import_the_benches_agents() -> None:
    done = run("serve", "--config", "/no/such/headstart.toml")
    assert "openai" not in done.stdout
    assert done.stdout.endswith(" 2\n")


def test_help_names_every_command() -> None:
    done = run("--help")
    for name in ("init", "serve", "env", "status", "trace", "stop", "doctor", "forget", "replay-model", "mcp", "bench"):
        assert f" {name} " in done.stdout
