"""A service that runs for the demo, and what is asked of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from headstart.bench.demo.agent import SessionRecord, open_loopback, run_session
from headstart.bench.demo.leash import leashed
from headstart.bench.demo.models import Pace
from headstart.bench.replay_model import Recording
from headstart.errors import HeadstartError

__all__ = ["Served", "ServiceConfig", "serving", "session_name"]

_READY_TIMEOUT_S = 60.0
_SETTLED_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 30.0
_ASK_AGAIN_S = 0.1


def session_name(recording: Recording, pace: Pace) -> str:
    """Name the session that plays a recording at a pace."""
    return f"{recording.session}-{pace.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What differs between the demo's services.

    Attributes:
        state_dir: What it knows; the folder is there already. Its log is written beside it.
        mcp_file: The servers.
        paces: The models; each is an upstream.
        learn: Whether what is seen is remembered.
    """

    state_dir: Path
    mcp_file: Path
    paces: Sequence[Pace]
    backend: str
    mode: str
    zygotes: bool
    learn: bool = False

    @property
    def log(self) -> Path:
        """What it says."""
        return self.state_dir.with_suffix(".log")

    def toml(self) -> str:
        """Return it as `headstart.toml`."""
        upstreams = "\n".join(f"{pace.name} = {json.dumps(pace.model_url)}" for pace in self.paces)
        return f"""
mcp = {json.dumps(str(self.mcp_file))}
[upstreams]
{upstreams}
[service]
backend = {json.dumps(self.backend)}
learn = {json.dumps(self.learn)}
[pool]
mode = {json.dumps(self.mode)}
zygotes = {json.dumps(self.zygotes)}
reserved_sets = 0
memory_mb = 16000
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that runs."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    http: httpx2.AsyncClient

    async def ask(self, path: str) -> dict[str, Any]:
        """Ask a control route."""
        response = await self.http.get(self.url + path, headers={"X-Headstart-Control": self.token})
        response.raise_for_status()
        found: dict[str, Any] = response.json()
        return found

    async def converse(self, recording: Recording, pace: Pace) -> SessionRecord:
        """Run one conversation at one pace, as a session of its own."""
        session = session_name(recording, pace)
        return await run_session(
            session=session,
            prompt=recording.user,
            model=recording.model,
            model_url=f"{self.url}/s/{session}/{pace.name}/v1",
            mcp_url=self._mcp_url(session),
        )

    async def open_session(self, session: str) -> None:
        """Connect and leave: the session is open from then on, and what its pool mode gives to one is started."""
        transport = streamable_http_client(self._mcp_url(session), http_client=self.http)
        async with Client(transport) as client:
            await client.list_tools()

    async def end_session(self, session: str) -> None:
        """End a session, and with it its sandboxes."""
        (await self.http.delete(self._mcp_url(session))).raise_for_status()

    def _mcp_url(self, session: str) -> str:
        return f"{self.url}/s/{session}/mcp"

    async def until_zygotes_stand(self) -> None:
        """Return once it is decided from what each server starts, and their zygotes are made.

        Raises:
            TimeoutError: They are not made after five minutes.
        """
        await self._until(lambda runtime: runtime["forms_undecided"] == 0)

    async def until_sandboxes(self, number: int) -> None:
        """Return once there are as many sandboxes, all of them ready.

        Raises:
            TimeoutError: There are not after five minutes.
        """
        await self._until(
            lambda runtime: len(runtime["sandboxes"]) == number and all(each["ready"] for each in runtime["sandboxes"])
        )

    async def _until(self, settled: Callable[[Mapping[str, Any]], bool]) -> None:
        with anyio.fail_after(_SETTLED_TIMEOUT_S):
            while True:
                if settled((await self.ask("/headstart/status"))["runtime"]):
                    return
                await anyio.sleep(_ASK_AGAIN_S)


@asynccontextmanager
async def serving(*configs: ServiceConfig) -> AsyncGenerator[tuple[Served, ...]]:
    """Run `headstart serve` for each of the configs, started side by side; on leaving, all have stopped.

    Raises:
        HeadstartError: One did not start; the message has the end of its log.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.extend(_start(config) for config in configs)
        pairs = zip(processes, configs, strict=True)
        async with open_loopback() as http:
            yield tuple([await _until_ready(process, config, http) for process, config in pairs])
    finally:
        for process in processes:
            process.terminate()
        with anyio.CancelScope(shield=True):
            for process in processes:
                await anyio.to_thread.run_sync(_reap, process)


def _start(config: ServiceConfig) -> subprocess.Popen[bytes]:
    file = config.state_dir.with_suffix(".toml")
    file.write_text(config.toml(), encoding="utf-8")
    options = ("--config", str(file), "--state-dir", str(config.state_dir), "--port", "0")
    with config.log.open("wb") as sink:
        return subprocess.Popen(leashed("serve", *options), stdout=sink, stderr=sink)


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def _until_ready(process: subprocess.Popen[bytes], config: ServiceConfig, http: httpx2.AsyncClient) -> Served:
    file = config.state_dir / "service.json"
    with anyio.move_on_after(_READY_TIMEOUT_S):
        while process.poll() is None:
            if file.exists():
                told = json.loads(file.read_text(encoding="utf-8"))
                return Served(process=process, url=told["url"], token=told["token"], http=http)
            await anyio.sleep(_ASK_AGAIN_S)
    end = config.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
    raise HeadstartError(f"headstart serve did not start; the end of its log:\n{end}")
