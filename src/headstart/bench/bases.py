"""Whether keeping states of a sandbox costs more if it began with more: 10 MB to 4 GB, in files of 1 MB.

What a sandbox begins with is the layer of its template: one is built for each size, and removed
afterwards. The sandboxes take turns, so that whatever else the machine does meets all sizes alike.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from headstart import Sandbox, SandboxCheckpoint, Sandboxes, SandboxOptions, TemplateOrder
from headstart.bench.states import available_bytes, keep_once
from headstart.sandbox.templates import TemplateStore

__all__ = ["SIZES_MB", "by_base"]

SIZES_MB: Final = (10, 1_000, 4_000)
_SPARE_MB: Final = 1_000


async def by_base(
    state: Path, *, count: int, tell: Callable[[str], None], sizes_mb: Sequence[int] = SIZES_MB
) -> list[dict[str, Any]]:
    """Keep states of sandboxes with bases of all sizes; return `checkpoint_on_base`, `rollback_on_base` and so on.

    Args:
        state: Where the templates and the sandboxes are.
        count: How often each, for each size.
        tell: Is told which size is left out, because there is no room for it.
        sizes_mb: Of the bases.
    """
    samples: list[dict[str, Any]] = []
    built: list[int] = []
    try:
        async with Sandboxes.open(state_dir=state) as boxes, AsyncExitStack() as stack:
            turns: list[tuple[int, Sandbox, SandboxCheckpoint]] = []
            for size_mb in sizes_mb:
                if (lacking := _lacking(state, size_mb)) is not None:
                    tell(f"by_base_mb: nothing of {size_mb} MB, because {lacking}")
                    continue
                built.append(size_mb)
                await boxes.build_template(_order(size_mb))
                box = await stack.enter_async_context(boxes.create(SandboxOptions(template=_name(size_mb))))
                base = await box.checkpoint()
                turns.append((size_mb, box, base))
            for number in range(count):
                for size_mb, box, base in turns:
                    samples += [
                        {**sample, "series": f"{sample['series']}_on_base", "base_mb": size_mb}
                        for sample in await keep_once(box, base, number)
                    ]
    finally:  # when no sandbox has them any more
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_remove, TemplateStore(state / "templates"), built)
    return samples


def _name(size_mb: int) -> str:
    return f"bench-{size_mb}-mb"


def _order(size_mb: int) -> TemplateOrder:
    """Order a template whose set-up command writes as much; into memory at first, as all of them do."""
    line = f"set -o pipefail; head -c {size_mb}000000 /dev/urandom | split -b 1000000 -a 4 - ~/base-"
    options = SandboxOptions(memory_mb=size_mb * 1.5 + 100, disk_mb=size_mb * 1.1 + 10)
    return TemplateOrder(name=_name(size_mb), setup=(line,), options=options)


def _lacking(state: Path, size_mb: int) -> str | None:
    memory_mb, disk_mb = available_bytes() // 1_000_000, shutil.disk_usage(state).free // 1_000_000
    if memory_mb < size_mb * 1.5 + _SPARE_MB:
        return f"building it needs half as much more in memory, and {memory_mb} MB are free"
    if disk_mb < size_mb + _SPARE_MB:
        return f"{disk_mb} MB are free on the disk"
    return None


def _remove(store: TemplateStore, sizes_mb: Sequence[int]) -> None:
    for name in {_name(size_mb) for size_mb in sizes_mb} & set(store.names()):
        store.remove(name)
