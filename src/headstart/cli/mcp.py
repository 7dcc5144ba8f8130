"""`headstart mcp`: MCP over stdio, onto the running service; starts one if there is none.

Agents start this once per session and wait for it, so nothing heavy is imported here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from headstart.cli.service_file import NotRunning, ServiceFile, find_service
from headstart.cli.state import STATE_IN_USE_STATUS, state_dir
from headstart.errors import HeadstartError
from headstart.gateway.stdio import StdioRoute, bridge

__all__ = ["main"]

_START_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 16_384


def main(arguments: list[str]) -> int:
    """Run the shim until stdin ends; returns its exit status."""
    parser = _Parser(prog="headstart mcp", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--server", help="one server with its own names; default: all, merged")
    parser.add_argument("--session", help="the session to join; default: one of its own")
    parser.add_argument("--config", help="headstart.toml, for a service that has to be started")
    parser.add_argument("--state-dir", type=Path, help="whose service; default: the user's own")
    given = parser.parse_args(arguments)
    folder = state_dir(given.state_dir)
    try:
        service = _running(folder, config=given.config)
    except HeadstartError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        return 1
    route = StdioRoute(
        base_url=service.url, server=given.server, session=given.session, key=os.environ.get("HEADSTART_KEY")
    )
    return bridge(route, stdin=sys.stdin.buffer, stdout=sys.stdout.buffer, stderr=sys.stderr)


class _Parser(argparse.ArgumentParser):
    """Tells a wrong command line the way every other command does."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {self.prog}: {message}\nhint: see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def _running(folder: Path, *, config: str | None) -> ServiceFile:
    try:
        return find_service(folder)
    except NotRunning:
        return _start(folder, config=config)


def _start(folder: Path, *, config: str | None) -> ServiceFile:
    """Start a service that outlives this process, and wait until it answers.

    Raises:
        NotRunning: It did not come up; the message has what its log says.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = folder / "serve.log"
    command = [sys.executable, "-m", "headstart", "serve", "--state-dir", str(folder)]
    command += ["--config", config] if config else []
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as sink:
        said_before = sink.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            return find_service(folder)
        except NotRunning:
            if process.poll() not in (
                None,
                STATE_IN_USE_STATUS,
            ):  # in use: another shim was faster; wait for its service
                break
            time.sleep(0.05)
    told = _reason(log, said_before)
    raise NotRunning("the service did not start" + (f": {told}" if told else ""), hint=f"its log is {log}")


def _reason(log: Path, offset: int) -> str:
    """Return the error that a log ends with, from `offset` on; else its last line."""
    with log.open("rb") as file:
        file.seek(max(offset, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
