"""One cell of the demo's table: one pool mode at one pace, in a service of its own."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2

from headstart.bench.demo.agent import SessionRecord, run_session
from headstart.bench.demo.meter import TreeMeter
from headstart.bench.demo.world import World
from headstart.bench.replay_model import Recording
from headstart.errors import HeadstartError

__all__ = ["CELLS", "Cell", "CellResult", "Pace", "Served", "open_model", "run_cell", "run_one", "serving"]

_READY_TIMEOUT_S = 60.0
_RESERVED_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to run the pool."""

    name: str
    mode: str
    zygotes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the model writes, how far apart the sessions begin, and where cells keep their state."""

    model_url: str
    tpot_s: float
    gap_s: float
    scratch: Path


CELLS = (
    Cell("eager", "eager", zygotes=False),
    Cell("on-demand", "on-demand", zygotes=False),
    Cell("on-demand+zygote", "on-demand", zygotes=True),
    Cell("predictive", "predictive", zygotes=False),
    Cell("predictive+zygote", "predictive", zygotes=True),
    Cell("reserved", "reserved", zygotes=False),
)


@dataclass(slots=True, kw_only=True)
class CellResult:
    """What one cell measured.

    Attributes:
        traces: Each session's trace, as the service tells it.
        cpu_s: Burnt by everything below the service (sandboxes, zygotes, the spawner), start to end.
        peak_bytes: PSS of the same, at its highest sample.
    """

    cell: Cell
    tpot_s: float
    sessions: list[SessionRecord] = field(default_factory=list[SessionRecord])
    traces: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    status: dict[str, Any] = field(default_factory=dict[str, Any])
    cpu_s: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A service that runs."""

    process: subprocess.Popen[bytes]
    url: str
    token: str
    log: Path

    async def ask(self, path: str) -> dict[str, Any]:
        """Ask a control route."""
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            response = await http.get(self.url + path, headers={"X-Headstart-Control": self.token})
            response.raise_for_status()
            found: dict[str, Any] = response.json()
            return found


@asynccontextmanager
async def open_model(recordings: Path, *, tpot_s: float, ttft_s: float = 0.3) -> AsyncGenerator[str]:
    """Run the replay model in a process of its own and yield its base URL."""
    paces = ("--ttft-ms", str(ttft_s * 1000), "--tpot-ms", str(tpot_s * 1000))
    command = (sys.executable, "-m", "headstart", "replay-model", str(recordings), "--port", "0", *paces)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        with anyio.fail_after(_READY_TIMEOUT_S):
            line = await anyio.to_thread.run_sync(_first_line, process, abandon_on_cancel=True)
        if "http://" not in line:
            raise HeadstartError(f"the replay model did not start: {line.strip()}")
        yield next(word for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.wait()
        if process.stderr:
            process.stderr.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    return process.stderr.readline() if process.stderr else ""


@asynccontextmanager
async def serving(
    world: World, cell: Cell, *, model_url: str, state_dir: Path, sets: int, backend: str
) -> AsyncGenerator[Served]:
    """Run `headstart serve` in one cell's mode; on leaving, it has stopped.

    Raises:
        HeadstartError: It did not start; the message has the end of its log.
    """
    config = state_dir.with_suffix(".toml")
    config.write_text(_config(world, cell, model_url=model_url, sets=sets, backend=backend), encoding="utf-8")
    log = state_dir.with_suffix(".log")
    command = (
        sys.executable,
        "-m",
        "headstart",
        "serve",
        "--config",
        str(config),
        "--state-dir",
        str(state_dir),
        "--port",
        "0",
    )
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdout=sink, stderr=sink)
    try:
        yield await _until_ready(process, state_dir / "service.json", log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_reap, process)


def _config(world: World, cell: Cell, *, model_url: str, sets: int, backend: str) -> str:
    return f"""
mcp = {json.dumps(str(world.mcp_file))}
[upstreams]
default = {json.dumps(model_url)}
[service]
backend = {json.dumps(backend)}
[pool]
mode = {json.dumps(cell.mode)}
zygotes = {json.dumps(cell.zygotes)}
reserved_sets = {sets}
memory_mb = 16000
"""


async def _until_ready(process: subprocess.Popen[bytes], file: Path, log: Path) -> Served:
    with anyio.move_on_after(_READY_TIMEOUT_S):
        while process.poll() is None:
            if file.exists():
                told = json.loads(file.read_text(encoding="utf-8"))
                return Served(process=process, url=told["url"], token=told["token"], log=log)
            await anyio.sleep(0.02)
    end = log.read_text(encoding="utf-8", errors="replace")[-2_000:]
    raise HeadstartError(f"headstart serve did not start; the end of its log:\n{end}")


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def run_cell(
    world: World, cell: Cell, pace: Pace, *, learned: Path, recordings: Sequence[Recording], backend: str
) -> CellResult:
    """Run all conversations in one mode, and take the numbers."""
    name = f"{cell.name}-{pace.tpot_s * 1000:.0f}ms"
    state_dir = pace.scratch / name
    shutil.copytree(learned, state_dir)
    result = CellResult(cell=cell, tpot_s=pace.tpot_s)
    async with serving(
        world, cell, model_url=pace.model_url, state_dir=state_dir, sets=len(recordings), backend=backend
    ) as served:
        meter = TreeMeter(served.process.pid)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(meter.run)
            await _until_settled(served, cell, world, sets=len(recordings))
            await _run_sessions(served, recordings, pace.gap_s, result)
            tasks.cancel_scope.cancel()
        await meter.sample()
        result.status = await served.ask("/headstart/status")
        for record in result.sessions:
            result.traces.append(await served.ask(f"/headstart/trace/{record.session}"))
    result.peak_bytes = meter.peak_bytes
    result.cpu_s = meter.cpu_s
    return result


async def _until_settled(served: Served, cell: Cell, world: World, *, sets: int) -> None:
    """Wait until what the mode prepares beforehand is there: zygotes, and reserved sets."""
    wanted = sets * len(world.servers) if cell.mode == "reserved" else 0
    with anyio.fail_after(_RESERVED_TIMEOUT_S):
        while True:
            status = await served.ask("/headstart/status")
            ready = sum(1 for sandbox in status["runtime"]["sandboxes"] if sandbox["ready"])
            if ready >= wanted and status["runtime"]["forms_undecided"] == 0:
                return
            await anyio.sleep(0.2)


async def _run_sessions(served: Served, recordings: Sequence[Recording], gap_s: float, result: CellResult) -> None:
    async def one(recording: Recording, delay_s: float) -> None:
        await anyio.sleep(delay_s)
        result.sessions.append(await run_one(served, recording))

    async with anyio.create_task_group() as tasks:
        for number, recording in enumerate(recordings):
            tasks.start_soon(one, recording, number * gap_s)


async def run_one(served: Served, recording: Recording) -> SessionRecord:
    """Run one conversation through the service, as a session named like its recording."""
    root = f"{served.url}/s/{recording.session}"
    return await run_session(
        session=recording.session,
        prompt=recording.user,
        model=recording.model,
        model_url=f"{root}/v1",
        mcp_url=f"{root}/mcp",
    )
