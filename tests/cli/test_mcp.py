"""The shim starts a service where there is none, and says why it could not."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from headstart.cli import mcp
from headstart.cli.service_file import ServiceFile, keep_service_file
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
    assert second.startswith("hint: use ")
    assert second.endswith(f"(its log is {tmp_path}/state/serve.log)")


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
    assert mcp._reason(log, offset) == ("", "")  # pyright: ignore[reportPrivateUsage]
    with log.open("a") as file:
        file.write("warming up\nerror: the port is taken\nhint: another\n")
    assert mcp._reason(log, offset) == ("the port is taken", "another")  # pyright: ignore[reportPrivateUsage]


class _NoSuchServer(http.server.BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        body = json.dumps({"error": {"message": "no server 'tiem' in the config; there are: time"}}).encode()
        self.send_response(404 if self.path == "/mcp/tiem" else 405)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_server_that_there_is_not_is_told_and_the_shim_fails(tmp_path: Path) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), _NoSuchServer) as service:
        threading.Thread(target=service.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        with keep_service_file(tmp_path, ServiceFile(pid=os.getpid(), url=url, token="t")):
            told = shim(tmp_path, "--server", "tiem")
    assert told.returncode == 1
    assert told.stderr.startswith("error: no server 'tiem' in the config; there are: time\n")
