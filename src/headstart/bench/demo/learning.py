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

from headstart.bench.demo.cells import Cell, open_model, run_one, serving
from headstart.bench.demo.world import World
from headstart.errors import HeadstartError

__all__ = ["ensure_learned"]

_TRAINING = Cell("training", "predictive", zygotes=True)


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
    async with (
        open_model(world.training_file, tpot_s=0.002, ttft_s=0.05) as model_url,
        serving(world, _TRAINING, model_url=model_url, state_dir=state_dir, sets=0, backend=backend) as served,
    ):
        for recording in world.training:
            await run_one(served, recording)


def _fingerprint(world: World) -> str:
    """Identify what was learned from, and the code that learned it."""
    digest = hashlib.blake2b(digest_size=16)
    package = Path(__file__).parents[2]
    for path in (world.mcp_file, world.training_file, *sorted(package.rglob("*.py"))):
        digest.update(path.read_bytes())
    digest.update(f"{sys.version} {os.geteuid()}".encode())
    return digest.hexdigest()
