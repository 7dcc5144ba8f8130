"""`headstart mcp`: MCP over stdio, onto the running service; starts one if there is none.

Agents start this once per session and wait for it, so nothing heavy is imported here.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlsplit

from headstart.cli.service_file import NotRunning, ServiceFile, find_service
from headstart.cli.state import STATE_IN_USE_STATUS, state_dir
from headstart.errors import HeadstartError
from headstart.gateway.stdio import StdioRoute, bridge
from headstart.runtime.state_files import unusable

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
        if given.server is not None:
            _check_server(service, given.server)
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
        ConfigError: Its log cannot be written.
    """
    log = folder / "serve.log"
    command = [sys.executable, "-m", "headstart", "serve", "--state-dir", str(folder)]
    command += ["--config", config] if config else []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as exc:
        raise unusable(folder, exc) from exc
    with os.fdopen(handle, "ab") as sink:
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
    told, hint = _reason(log, said_before)
    where = f"its log is {log}"
    raise NotRunning(
        "the service did not start" + (f": {told}" if told else ""), hint=f"{hint} ({where})" if hint else where
    )


def _check_server(service: ServiceFile, server: str) -> None:
    """Ask for the server's path in a way that does nothing: only one that is not there is answered 404.

    Raises:
        HeadstartError: There is none of this name; the message is the service's.
    """
    where = urlsplit(service.url)
    key = os.environ.get("HEADSTART_KEY")
    try:
        with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)) as connection:
            connection.request("PUT", f"/mcp/{quote(server, safe='')}", headers={"X-Headstart-Key": key} if key else {})
            response = connection.getresponse()
            status, body = response.status, response.read()
    except (OSError, http.client.HTTPException):
        return  # whoever connects next tells that
    if status == HTTPStatus.NOT_FOUND:
        raise HeadstartError(json.loads(body)["error"]["message"], hint="headstart mcp without --server has them all")


def _reason(log: Path, offset: int) -> tuple[str, str]:
    """Return the error that a log ends with, from `offset` on, and its hint; else its last line and none."""
    with log.open("rb") as file:
        file.seek(max(offset, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    if not errors:
        return (lines or [""])[-1], ""
    after = lines[errors[-1] + 1 :]
    hint = next((line.removeprefix("hint: ") for line in after if line.startswith("hint: ")), "")
    return lines[errors[-1]].removeprefix("error: "), hint
