"""Commands are up at once, because each imports only what it needs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.service_file import ServiceFile, keep_service_file

_HEAVY = ("mcp", "openai", "uvicorn", "starlette", "httpx2", "rich", "anyio")
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


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("stop", "no headstart service is running here"),
        ("status", "no headstart service is running here"),
        ("trace", "no service is running, and no session is recorded in {}"),
        ("forget", "{}: there is nothing to forget"),
    ],
)
def test_a_command_that_only_asks_the_service_imports_neither_sdk_nor_server(
    command: str, told: str, tmp_path: Path
) -> None:
    done = run(command, "--state-dir", str(tmp_path))
    assert done.stdout == "[] 1\n"
    error, hint = done.stderr.splitlines()
    assert error == f"error: {told.format(tmp_path)}"
    assert hint.startswith("hint: ")


def test_forget_does_not_take_an_empty_name_for_everybody(tmp_path: Path) -> None:
    done = run("forget", "--principal", "", "--state-dir", str(tmp_path))
    assert done.stderr.startswith("error: --principal: is empty\nhint: ")
    assert done.stdout == "[] 2\n"


def test_serve_does_not_import_the_benches_agents() -> None:
    done = run("serve", "--config", "/no/such/headstart.toml")
    assert "openai" not in done.stdout
    assert done.stdout.endswith(" 2\n")


@pytest.mark.parametrize("arguments", [("--help",), ("serve", "--help"), ("bench", "--help"), ("--version",)])
def test_help_is_there_before_anything_heavy_could_be_imported(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.stdout.endswith("\n[] 0\n")


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (("statsu",), "headstart: no such command 'statsu'", "did you mean status? see headstart --help"),
        (("zzz",), "headstart: no such command 'zzz'", "see headstart --help"),
        (
            ("status", "--jsno"),
            "headstart status: no such option: --jsno",
            "did you mean --json? see headstart status --help",
        ),
        (("init",), "headstart init: missing option '--from'", "headstart init --from .mcp.json"),
        (
            ("bench", "routin"),
            "headstart bench: no such command 'routin'",
            "did you mean routing? see headstart bench --help",
        ),
        (("mcp", "--sesion"), "headstart mcp: unrecognized arguments: --sesion", "see headstart mcp --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_its_cure(arguments: tuple[str, ...], error: str, hint: str) -> None:
    done = run(*arguments)
    assert done.stderr == f"error: {error}\nhint: {hint}\n"
    assert done.stdout == "[] 2\n"


@pytest.mark.parametrize("arguments", [(), ("bench",)])
def test_without_a_command_the_help_is_printed(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.endswith("[] 2\n")


def test_a_state_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    (tmp_path / "file").touch()
    done = run_headstart("init", "--from", "mcp.json", "--state-dir", str(tmp_path / "file" / "s"), cwd=tmp_path)
    assert done.returncode == 2
    assert "file/s: has a file in its path where a folder should be" in done.stderr
    assert "hint: move that file away, or choose another place with --state-dir" in done.stderr
    assert not (tmp_path / "headstart.toml").exists()


def test_help_names_every_command() -> None:
    done = run("--help")
    for name in ("init", "serve", "env", "status", "trace", "stop", "doctor", "forget", "replay-model", "mcp", "bench"):
        assert f" {name} " in done.stdout


def run_headstart(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headstart", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_init_with_a_bad_upstream_leaves_no_file_behind(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    options = ("--from", "mcp.json", "--upstream", "localhost:8000", "--state-dir", str(tmp_path / "state"))
    done = run_headstart("init", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "error: --upstream: this is no http(s) URL\n"
        "hint: begin with http:// or https://, as in `https://api.openai.com/v1`\n"
    )
    assert not (tmp_path / "headstart.toml").exists()


def test_init_with_a_backend_that_there_is_not_names_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"a": {"command": "true"}}}')
    done = run_headstart("init", "--from", "mcp.json", "--backend", "docker", cwd=tmp_path)
    assert done.stderr == "error: --backend: 'docker' is not possible here\nhint: use auto, local or process\n"
    assert not (tmp_path / "headstart.toml").exists()


def test_replay_model_names_a_port_in_use(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('[[recordings]]\nsession = "a"\nuser = "b"\nsteps = [{ text = "c" }]\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run_headstart("replay-model", "r.toml", "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_env_tells_where_the_service_runs_and_where_it_would_if_it_does_not(tmp_path: Path) -> None:
    (tmp_path / "headstart.toml").touch()
    asked = ("env", "--session", "my-run", "--state-dir", str(tmp_path))
    assert "MCP_URL=http://127.0.0.1:8787/s/my-run/mcp" in run_headstart(*asked, cwd=tmp_path).stdout
    with keep_service_file(tmp_path, ServiceFile(pid=os.getpid(), url="http://127.0.0.1:8795", token="t")):
        assert "MCP_URL=http://127.0.0.1:8795/s/my-run/mcp" in run_headstart(*asked, cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["my run", ""])
def test_env_refuses_a_session_that_the_service_would_refuse(tmp_path: Path, name: str) -> None:
    done = run_headstart("env", "--session", name, "--state-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --session: a session name is 1 to 128 visible ASCII characters\n")
    assert done.stdout == ""
