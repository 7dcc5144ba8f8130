"""What the cells begin with: every server learned, and the training conversations played.

Kept in the world's folder, and made anew when the servers, the training or Headstart's own
code have changed. Nothing of the measured conversations is in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from headstart.bench.demo.models import MAIN_TPOT_S, open_models
from headstart.bench.demo.service import ServiceConfig, serving, session_name
from headstart.bench.demo.world import World
from headstart.bench.replay_model import Recording
from headstart.errors import HeadstartError

__all__ = ["ensure_learned"]

_TRAINED_AT_ONCE = 3
_LEARNERS = ("backends", "config", "core", "gateway", "proxy", "runtime")
"""The packages whose code decides what is learned."""


async def ensure_learned(world: World, *, backend: str, progress: Callable[[str], None]) -> Path:
    """Return the state directory that cells are copied from, learning first where that is needed.

    Raises:
        HeadstartError: A server could not be learned.
    """
    folder = world.folder / f"learned-{backend}"
    state_dir, marker = folder / "state", folder / "complete"
    wanted = _fingerprint(world)
    if marker.exists() and marker.read_text() == wanted:
        return state_dir
    progress(f"learning {len(world.servers)} servers and {len(world.training)} training conversations")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    await _init(world, folder, state_dir, backend=backend)
    await _train(world, state_dir, backend=backend)
    marker.write_text(wanted)
    return state_dir


async def _init(world: World, folder: Path, state_dir: Path, *, backend: str) -> None:
    command = (sys.executable, "-m", "headstart", "init", "--from", str(world.mcp_file), "--backend", backend)
    done = await anyio.run_process([*command, "--state-dir", str(state_dir)], cwd=folder, check=False)
    if done.returncode != 0:
        raise HeadstartError(f"headstart init failed:\n{done.stdout.decode()}{done.stderr.decode()}")


async def _train(world: World, state_dir: Path, *, backend: str) -> None:
    async with open_models(world.training_file, (MAIN_TPOT_S,)) as (pace,):
        config = ServiceConfig(
            state_dir=state_dir,
            mcp_file=world.mcp_file,
            paces=(pace,),
            backend=backend,
            mode="predictive",
            zygotes=True,
            learn=True,
        )
        async with serving(config) as (served,):
            await served.until_zygotes_stand()
            limiter = anyio.CapacityLimiter(_TRAINED_AT_ONCE)

            async def train(recording: Recording) -> None:
                async with limiter:
                    await served.converse(recording, pace)
                    await served.end_session(session_name(recording, pace))

            async with anyio.create_task_group() as tasks:
                for recording in world.training:
                    tasks.start_soon(train, recording)


def _fingerprint(world: World) -> str:
    """Identify what was learned from, and the code that learned it."""
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[2]
    code = sorted(path for name in _LEARNERS for path in (package / name).rglob("*.py"))
    for path in (world.mcp_file, world.training_file, *code):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version} {os.geteuid()}".encode())
    return digest.hexdigest()
