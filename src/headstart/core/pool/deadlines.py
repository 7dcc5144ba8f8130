"""When a sandbox has to be looked at again: one deadline each, the next one first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from headstart.core.pool.inventory import Inventory
from headstart.core.pool.sandboxes import Sandbox
from headstart.ids import SandboxId

__all__ = ["Deadlines"]


class Deadlines:
    """A heap of deadlines; entries that were replaced are skipped, and swept when they are many."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._heap: list[tuple[float, SandboxId]] = []

    def set(self, sandbox: Sandbox, at_s: float | None) -> None:
        """Replace a sandbox's deadline; None: none."""
        sandbox.deadline_s = at_s
        if at_s is None:
            return
        heapq.heappush(self._heap, (at_s, sandbox.id))
        if len(self._heap) > 64 + 4 * len(self._inventory):
            self._heap = [(each.deadline_s, each.id) for each in self._inventory if each.deadline_s is not None]
            heapq.heapify(self._heap)

    def next_s(self) -> float | None:
        """Return the earliest deadline."""
        while self._heap and self._current(*self._heap[0]) is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> Iterator[Sandbox]:
        """Yield the sandboxes whose deadline has come; theirs is cleared."""
        while self._heap and self._heap[0][0] <= now_s:
            sandbox = self._current(*heapq.heappop(self._heap))
            if sandbox is not None:
                sandbox.deadline_s = None
                yield sandbox

    def _current(self, due_s: float, sandbox: SandboxId) -> Sandbox | None:
        found = self._inventory.find(sandbox)
        return found if found is not None and found.deadline_s == due_s else None
