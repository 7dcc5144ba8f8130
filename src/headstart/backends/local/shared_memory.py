"""The memory of a lineage: what its sandboxes hold, and what is left of those that have ended.

A page is charged to the control group where it was first written to, for as long as anybody has it. A
fork of a Python kernel has its origin's pages, as a checkpoint does, and the origin may end before them: then
they are charged to the group of the lineage alone.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from headstart.backends.contract import Limits
from headstart.backends.local.cgroups import Groups

__all__ = ["SharedMemory"]


class SharedMemory:
    """How much of it there may be, and is. Each sandbox has a limit of its own beside.

    Args:
        limits: Of each sandbox.
    """

    def __init__(self, groups: Groups, limits: Limits) -> None:
        self._groups = groups
        self._limits = limits
        self.is_kept = False
        """Whether some of it was kept."""
        self._living: list[str] = []
        self._coming = 0
        self._bounded_for: int | None = None

    def join(self, group: str) -> None:
        """Count a sandbox that has started, by the name of its group."""
        self._living.append(group)

    @contextmanager
    def leaving(self, group: str) -> Generator[None, None, None]:
        """Count a sandbox no more, which will have ended by the end of it; what it still holds is left to the others."""
        self._living.remove(group)
        with self.expecting_one():  # it has its memory until then
            yield

    @contextmanager
    def expecting_one(self) -> Generator[None, None, None]:
        """Have room for another sandbox, which will have joined by the end of it, or has failed."""
        self._coming += 1
        self.bound()
        try:
            yield
        finally:
            self._coming -= 1
            self.bound()

    def bound(self) -> None:
        """Let all together hold as much as those that live, and those that are coming, may; not less than they hold."""
        sandboxes = len(self._living) + self._coming
        if self._living and sandboxes != self._bounded_for:
            is_as_wanted = self._groups.bound_lineage(self._living[0], self._limits, sandboxes=sandboxes)
            self._bounded_for = sandboxes if is_as_wanted else None

    @property
    def lineage(self) -> str:
        """Its name among those of the run."""
        return self._living[0].partition("/")[0]

    def is_oldest(self, group: str) -> bool:
        """Whether none that lives is older than this."""
        return self._living[:1] == [group]

    def left_bytes(self, group: str) -> int:
        """Return what is charged to none of the sandboxes that live, with the oldest of them; 0 with any other."""
        if not self.is_oldest(group):
            return 0
        own = sum(self._groups.memory_bytes(each) or 0 for each in self._living)
        return max(0, self._groups.lineage_memory_bytes(group) - own)
