"""What keeping states of a sandbox costs its user: checkpoint, rollback, fork, and standing still.

Each checkpoint and fork finds 10 MB that were written since the last one; each rollback throws as
much away. One after another, 20 ms apart.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio
import anyio.to_thread

from headstart import Sandbox, SandboxCheckpoint, Sandboxes
from headstart.backends.spawner.accounting import tree_usage

__all__ = ["PAUSED", "available_bytes", "checkpoints", "keep_once", "make_dirty", "paused"]

PAUSED: Final = 500
_DIRTY_FILES: Final = 10
_APART_S = 0.02
_SETTLE_S = 1.0


async def checkpoints(boxes: Sandboxes, *, count: int) -> list[dict[str, Any]]:
    """Keep, go back and fork; return the series `checkpoint`, `rollback`, `fork` and `discard`, `count` of each."""
    samples: list[dict[str, Any]] = []
    async with boxes.create() as box:
        base = await box.checkpoint()
        for number in range(count):
            samples += await keep_once(box, base, number)
    return samples


async def keep_once(box: Sandbox, base: SandboxCheckpoint, number: int) -> list[dict[str, Any]]:
    """Keep a state, go back and fork, once each, and leave the sandbox as it was at `base`; return the samples."""
    samples: list[dict[str, Any]] = []

    def note(series: str, began: float, **more: Any) -> None:
        samples.append({"series": series, "ms": (perf_counter() - began) * 1e3, **more})

    await make_dirty(box, number)
    began = perf_counter()
    kept = await box.checkpoint()
    note("checkpoint", began, capture=kept.capture.value)
    await make_dirty(box, number + 1)
    began = perf_counter()
    await box.rollback(kept)
    note("rollback", began)
    await make_dirty(box, number + 2)
    began = perf_counter()
    branch = await box.fork()
    note("fork", began)
    began = perf_counter()
    await branch.discard()
    note("discard", began)
    await box.rollback(base)
    await box.drop(kept)
    return samples


async def make_dirty(box: Sandbox, number: int) -> None:
    """Write 10 MB of files, and have it quiet for a moment."""
    content = bytes([number % 256]) * 1_000_000
    for name in range(_DIRTY_FILES):
        await box.files.write(f"dirty-{name}", content)
    await anyio.sleep(_APART_S)


async def paused(boxes: Sandboxes) -> dict[str, Any]:
    """Create many sandboxes, have each run a command, pause it; return what the machine has less memory then.

    `mb` is by how much `MemAvailable` fell: with kernel memory, what the service itself holds for them, the
    spawner and its parked processes, and whatever else happened on the machine. `pss_mb` is user memory only.
    """
    before_bytes, before_pss = await _settled()
    async with AsyncExitStack() as stack:
        for _ in range(PAUSED):
            box = await stack.enter_async_context(boxes.create())
            await box.run(("true",))
            await box.pause()
        after_bytes, after_pss = await _settled()
    return {
        "series": "paused",
        "n": PAUSED,
        "mb": (before_bytes - after_bytes) / 1e6,
        "pss_mb": (after_pss - before_pss) / 1e6,
    }


async def _settled() -> tuple[int, int]:
    """Return the memory that is available, and the PSS of this process and all below it."""
    await anyio.sleep(_SETTLE_S)  # what was freed is counted late
    held = await anyio.to_thread.run_sync(tree_usage, os.getpid())
    return available_bytes(), held.memory_bytes


def available_bytes() -> int:
    """Return how much memory the machine has left, as it says itself."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
