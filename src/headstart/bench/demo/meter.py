"""What a process tree holds and has burnt, read from /proc by somebody outside it.

Memory is PSS, so that pages shared by forks are counted once. CPU time is read at the end
from the tree's root, when every process below it has been waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import anyio

__all__ = ["MemoryMeter", "command_of", "descendants", "is_alive"]

_PROC = Path("/proc")


def descendants(root: int) -> list[int]:
    """All processes below `root`, itself not among them."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting.extend(children.get(pid, ()))
    return found


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


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir(_PROC):  # noqa: PTH208 hundreds of entries, many times a second
        if not name.isdigit():
            continue
        try:
            stat = (_PROC / name / "stat").read_bytes()
        except OSError:
            continue  # it ended while we looked
        yield int(name), int(stat[stat.rindex(b")") + 2 :].split()[1])


def _pss_bytes(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


@dataclass(slots=True)
class MemoryMeter:
    """Samples the memory of everything below one process until cancelled.

    Attributes:
        every_s: Reading PSS costs about 1 ms per 100 MB; sampling must not become the load.
    """

    root: int
    every_s: float = 0.5
    peak_bytes: int = 0
    samples: int = 0

    async def run(self) -> None:
        while True:
            now = await anyio.to_thread.run_sync(self._measure)
            self.peak_bytes = max(self.peak_bytes, now)
            self.samples += 1
            await anyio.sleep(self.every_s)

    def _measure(self) -> int:
        return sum(_pss_bytes(pid) for pid in descendants(self.root))
