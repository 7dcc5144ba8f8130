"""What a process tree holds and has burnt, read from /proc by somebody outside it.

Memory is PSS, so that pages shared by forks are counted once. CPU time is each process's
own, as last seen: what was waited for by somebody in between would not reach the root.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from headstart.backends.spawner.guest.processes import descendants, pss_bytes

__all__ = ["TreeMeter", "command_of", "is_alive"]

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def command_of(pid: int) -> str:
    """Return a process's command line, "" if it has none or is gone."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a name that waits to be reaped."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def _cpu_of(pid: int) -> tuple[int, float] | None:
    """Return when a process began (in ticks, so that a pid used again is told apart) and its CPU-seconds."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


@dataclass(slots=True)
class TreeMeter:
    """Samples everything below one process.

    Attributes:
        every_s: Reading PSS costs about 1 ms per 100 MB; sampling must not become the load.
        peak_bytes: PSS of all together, at its highest sample.
    """

    root: int
    every_s: float = 0.5
    peak_bytes: int = 0
    samples: int = 0
    _cpu_s: dict[tuple[int, int], float] = field(default_factory=dict[tuple[int, int], float])

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of all processes that were seen; what one burnt after its last sample is missing."""
        return sum(self._cpu_s.values())

    def forget_peak(self) -> None:
        """From now on, `peak_bytes` is the peak since now."""
        self.peak_bytes = 0

    @asynccontextmanager
    async def sampling(self) -> AsyncGenerator[None]:
        """Sample while the block runs, and once more at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            yield
            tasks.cancel_scope.cancel()
        await self.sample()

    async def _run(self) -> None:
        while True:
            await self.sample()
            await anyio.sleep(self.every_s)

    async def sample(self) -> None:
        now = await anyio.to_thread.run_sync(self._measure)
        self.peak_bytes = max(self.peak_bytes, now)
        self.samples += 1

    def _measure(self) -> int:
        pids = descendants(self.root)
        for pid in pids:
            seen = _cpu_of(pid)
            if seen is not None:
                began, burnt_s = seen
                self._cpu_s[pid, began] = burnt_s
        return sum(pss_bytes(pid) for pid in pids)
