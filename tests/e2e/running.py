"""A real service in a process of its own, and the commands that a person would type at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from headstart.backends.spawner.guest.processes import descendants
from headstart.bench.demo.meter import command_of, is_alive

SERVERS = Path(__file__).parent / "servers"
_READY_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with an `mcpServers` file, a `headstart.toml`, and the state that comes of them."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "headstart.toml"

    @property
    def mcp(self) -> Path:
        return self.folder / "mcp.json"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "serve.log"

    def configure(self, servers: Mapping[str, Mapping[str, Any]], toml: str = "") -> Place:
        """Write both files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mcp.write_text(json.dumps({"mcpServers": servers}, indent=2), encoding="utf-8")
        self.config.write_text(f'mcp = "mcp.json"\n{toml}', encoding="utf-8")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A service that answers."""

    process: subprocess.Popen[str]
    place: Place
    url: str
    token: str = field(repr=False)

    def control(self, path: str) -> dict[str, Any]:
        """Ask a control route as its owner."""
        answer = httpx2.get(
            f"{self.url}/headstart/{path}",
            headers={"X-Headstart-Control": self.token},
            timeout=20,
            trust_env=False,
        )
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def status(self) -> dict[str, Any]:
        return self.control("status")

    def trace(self, session: str) -> dict[str, Any]:
        return self.control(f"trace/{session}")

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command on this service's state."""
        return headstart(*arguments, "--state-dir", str(self.place.state))

    def processes(self) -> dict[int, str]:
        """Everything below the service, by pid."""
        return {pid: command_of(pid) for pid in descendants(self.process.pid)}

    def log(self) -> str:
        return self.place.log.read_text(encoding="utf-8", errors="replace")


def headstart(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headstart", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        check=False,
    )


@contextmanager
def service(place: Place, *arguments: str, **variables: str) -> Generator[Running]:
    """Run `headstart serve`; on leaving it is told to stop, and had to end by itself."""
    command = [sys.executable, "-m", "headstart", "serve", "--config", str(place.config)]
    command += ["--state-dir", str(place.state), "--port", "0", *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    listening = threading.Event()
    reader = threading.Thread(target=_copy_log, args=(process, place.log, listening), daemon=True)
    reader.start()
    try:
        assert listening.wait(_READY_WITHIN_S), "the service said nothing"
        if process.poll() is not None or not (place.state / "service.json").exists():
            pytest.fail(f"the service did not start:\n{place.log.read_text(encoding='utf-8')}")
        told = json.loads((place.state / "service.json").read_text(encoding="utf-8"))
        yield Running(process=process, place=place, url=told["url"], token=told["token"])
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(5)


def _copy_log(process: subprocess.Popen[str], log: Path, listening: threading.Event) -> None:
    assert process.stderr is not None
    with process.stderr as lines, log.open("a", encoding="utf-8") as copy:
        for line in lines:
            copy.write(line)
            copy.flush()
            if line.startswith("headstart: http"):
                listening.set()
    listening.set()


def scripted(behaviour: str, *, args: Sequence[str] = (), **options: Any) -> dict[str, Any]:
    """An entry of `mcpServers` for a server that behaves as told."""
    return server_entry("scripted.py", behaviour, *args, **options)


def server_entry(
    program: str, *args: str, env: Mapping[str, str] | None = None, command: str = sys.executable, **options: Any
) -> dict[str, Any]:
    return {
        "command": command,
        "args": [str(SERVERS / program), *args],
        "env": dict(env or {}),
        "headstart": {"mounts": [str(SERVERS)], **options},
    }


def wait_until(condition: Callable[[], bool], *, within_s: float = 10.0, what: str = "") -> float:
    """Look until something is so that has no event to wait for; returns the seconds it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"not within {within_s:g} s: {what or condition}"
        time.sleep(_LOOK_EVERY_S)
    return time.monotonic() - began


def alive(pids: Mapping[int, str]) -> dict[int, str]:
    return {pid: command for pid, command in pids.items() if is_alive(pid)}
