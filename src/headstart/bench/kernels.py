"""What keeping states costs with a Python kernel in the sandbox, and how much of its memory forks share.

The kernel holds 200 MB: as an array, for which numpy asks for huge pages; as one heap of small pages; or as many objects,
whose reference counts any cell may write to. Beside it there are 10 MB of new files and a bash session. A kernel goes on
in a branch, or after a rollback, with its first cell there: that is measured apart, and so are writing to 10 MB of its
heap then, and the first command of the bash session after a checkpoint.

Each begins when nothing is left to do of what was before (control groups, which hold up forks). Checkpoints and forks are
measured also where that is not waited for: 20 ms after writing files (`…_soon`).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio

from headstart import Branch, Sandbox, Sandboxes, SandboxOptions
from headstart.bench.states import make_dirty
from headstart.errors import BackendError, NotCapturable

__all__ = ["FORKS", "HELD", "SERIES", "are_kept", "share_of_forks", "with_kernel"]

FORKS: Final = 100
HELD: Final = {
    "array": (
        "import os, mmap; held = mmap.mmap(-1, 200 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "try: held.madvise(mmap.MADV_HUGEPAGE)\nexcept OSError: pass\n"
        "held[:] = os.urandom(1 << 20) * 200"
    ),
    "heap": "import os; held = bytearray(os.urandom(1 << 20)) * 200",
    "objects": "held = [str(number) * 3 for number in range(2_200_000)]",
}
SERIES: Final = (
    *("checkpoint", "command", "rollback", "first_cell", "touch", "fork", "first_cell_in_branch"),
    *("checkpoint_soon", "fork_soon"),
)
_WRITE: Final = "for at in range(0, 10 << 20, 4096): held[at] ^= 1"
_TOUCH: Final = {
    "array": _WRITE,
    "heap": _WRITE,
    "objects": "held[:110_000] = [each + '.' for each in held[:110_000]]",
}
_MEMORY_MB: Final = 4_000
_QUIET_S: Final = 0.2


async def are_kept(boxes: Sandboxes) -> bool:
    """Whether a checkpoint holds Python kernels on this machine."""
    async with boxes.create() as box:
        await _cell(box, "1")
        try:
            await box.checkpoint()
        except NotCapturable:
            return False
        return True


async def with_kernel(boxes: Sandboxes, *, count: int) -> list[dict[str, Any]]:
    """Keep, go back and fork; return `count` samples of each of `SERIES` for each kind of memory (`held`)."""
    samples: list[dict[str, Any]] = []
    for held in HELD:
        async with boxes.create(SandboxOptions(memory_mb=_MEMORY_MB)) as box:
            await _cell(box, HELD[held])
            await box.run_in_shell("LINE=0")
            for number in range(count):
                samples += [{**sample, "held": held} for sample in await _keep_once(box, held, number)]
    return samples


async def _keep_once(box: Sandbox, held: str, number: int) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = []

    def note(series: str, began: float) -> None:
        samples.append({"series": f"{series}_with_kernel", "ms": (perf_counter() - began) * 1e3})

    async def quiet() -> float:
        await anyio.sleep(_QUIET_S)
        return perf_counter()

    await make_dirty(box, number)
    await _cell(box, f"number = {number}")
    await box.run_in_shell("LINE=$((LINE + 1))")
    began = await quiet()
    kept = await box.checkpoint()
    note("checkpoint", began)
    began = await quiet()
    await box.run_in_shell("LINE=$((LINE + 1))")
    note("command", began)
    await _cell(box, "number = None")
    began = await quiet()
    await box.rollback(kept)
    note("rollback", began)
    began = perf_counter()
    await _cell(box, f"assert number == {number}")
    note("first_cell", began)
    began = perf_counter()
    await _cell(box, _TOUCH[held])
    note("touch", began)
    began = await quiet()
    branch = await box.fork()
    note("fork", began)
    began = perf_counter()
    await _cell(branch, f"assert number == {number}")
    note("first_cell_in_branch", began)
    await branch.discard()
    for series, keep in (("checkpoint_soon", box.checkpoint), ("fork_soon", box.fork)):
        await _cell(box, "number += 1")
        await box.run_in_shell("LINE=$((LINE + 1))")
        await make_dirty(box, number)
        began = perf_counter()
        more = await keep()
        note(series, began)
        await (more.discard() if isinstance(more, Branch) else box.drop(more))
    await box.drop(kept)
    return samples


async def share_of_forks(boxes: Sandboxes, *, count: int = FORKS) -> dict[str, Any]:
    """Fork a kernel with 200 MB many times, run a small cell in each; return how much of their memory they share.

    `share` is the part of all their memory (RSS) that more than one process has.
    """
    async with boxes.create(SandboxOptions(memory_mb=_MEMORY_MB)) as box, AsyncExitStack() as stack:
        await _cell(box, HELD["heap"])
        branches = [await stack.enter_async_context(await box.fork()) for _ in range(count)]
        for number, branch in enumerate(branches):
            await _cell(branch, f"mine = held[{number}]")
        facts = [await anyio.to_thread.run_sync(_memory_of, branch) for branch in branches]
    resident, private = sum(each[0] for each in facts), sum(each[1] for each in facts)
    return {"series": "forks", "n": count, "rss_mb": resident / 1e6, "share": 1 - private / resident}


def _memory_of(box: Sandbox) -> tuple[int, int]:
    """Return what a kernel has in memory, and what of it is nobody else's, in bytes."""
    process = box.kernel.process
    if process is None or process.pid is None:
        raise BackendError(f"{box.id} has no kernel of its own")
    facts: dict[str, int] = {}
    for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        facts[name] = int(rest.split()[0]) * 1024
    return facts["Rss"], facts["Private_Clean"] + facts["Private_Dirty"]


async def _cell(box: Sandbox, code: str) -> None:
    done = await box.run_code(code)
    if done.error is not None or done.restarted:
        raise BackendError(f"a cell in {box.id} failed: {done.error or 'its kernel was lost'}")
