"""Kill -9 the service in the middle of its work, and watch what it had started go away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from headstart.backends.spawner.guest.processes import descendants
from headstart.bench.demo.cells import CELLS, Pace, Served, run_one, serving
from headstart.bench.demo.meter import command_of, is_alive
from headstart.bench.demo.world import World
from headstart.bench.replay_model import Recording

__all__ = ["Killed", "kill_in_the_middle"]

_WATCH_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """What became of the processes of a killed service.

    Attributes:
        before: What ran below it, pid to command line.
        gone_after_s: When the last of them was gone.
        left: What was still there after ten seconds.
    """

    before: Mapping[int, str]
    gone_after_s: float
    left: Mapping[int, str]


async def kill_in_the_middle(world: World, pace: Pace, *, learned_copy: Path, backend: str) -> Killed:
    """Run two sessions, kill the service under them, and wait until nothing of it is left."""
    cell = next(cell for cell in CELLS if cell.name == "predictive+zygote")
    async with serving(
        world, cell, model_url=pace.model_url, state_dir=learned_copy, sets=0, backend=backend
    ) as served:
        before: dict[int, str] = {}
        async with anyio.create_task_group() as tasks:
            for recording in world.sessions[:2]:
                tasks.start_soon(_run_until_it_breaks, served, recording)
            await _until_busy(served)
            before.update((pid, command_of(pid)) for pid in descendants(served.process.pid))
            os.kill(served.process.pid, signal.SIGKILL)
            tasks.cancel_scope.cancel()
        return await _watch(before)


async def _run_until_it_breaks(served: Served, recording: Recording) -> None:
    try:
        await run_one(served, recording)
    except Exception:  # noqa: BLE001 its service is killed under it: how the clients' libraries say so is not the point
        return


async def _until_busy(served: Served) -> None:
    with anyio.fail_after(60):
        while True:
            sandboxes = (await served.ask("/headstart/status"))["pool"]["sandboxes"]
            if sum(1 for sandbox in sandboxes if sandbox["served"] > 0) >= 2:
                return
            await anyio.sleep(0.05)


async def _watch(before: Mapping[int, str]) -> Killed:
    killed = time.monotonic()
    gone_after_s = 0.0
    left = dict(before)
    with anyio.move_on_after(_WATCH_S):
        while left:
            left = {pid: command for pid, command in left.items() if is_alive(pid)}
            gone_after_s = time.monotonic() - killed
            await anyio.sleep(0.01)
    return Killed(before=before, gone_after_s=gone_after_s, left=left)
