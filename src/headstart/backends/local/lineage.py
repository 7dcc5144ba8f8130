"""The layers of a sandbox and of its forks: which each of them stands on, and which nobody needs any more."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from headstart.ids import CheckpointId

__all__ = ["FIRST_LAYER", "MOST_LAYERS", "LineageLayers"]

FIRST_LAYER = "0"
MOST_LAYERS = 200
"""Each costs a failed lookup a microsecond, and their names must fit a mount's options."""


class LineageLayers:
    """Names layers and counts their users: sandboxes that live, and checkpoints that are kept, by whomever.

    >>> lineage = LineageLayers()
    >>> first = (FIRST_LAYER, lineage.new_layer())
    >>> lineage.hold(first)
    >>> lineage.hold(first[:1])
    >>> lineage.let_go(first)
    ('1',)
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(int(FIRST_LAYER) + 1)
        self._users: Counter[str] = Counter()
        self.checkpoints: dict[CheckpointId, tuple[str, ...]] = {}
        """Their layers."""
        self.members: list[Callable[[Sequence[str]], None]] = []
        """What deletes layers, of each sandbox that lives."""

    def have_dropped(self, layers: Sequence[str]) -> None:
        """Have one of those who live delete layers; if nobody does, they went with the last one."""
        if self.members and layers:
            self.members[0](layers)

    def new_layer(self) -> str:
        """Return a name that was never used in this lineage."""
        return str(next(self._numbers))

    def keep(self, checkpoint: CheckpointId, layers: tuple[str, ...]) -> None:
        """Note a checkpoint; until it is forgotten, it uses its layers."""
        self.checkpoints[checkpoint] = layers
        self.hold(layers)

    def forget(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """Let go of a checkpoint, if it is there, and return the layers that nobody uses now."""
        return self.let_go(self.checkpoints.pop(checkpoint, ()))

    def hold(self, layers: Sequence[str]) -> None:
        """Note one more user of each."""
        self._users.update(layers)

    def let_go(self, layers: Sequence[str]) -> tuple[str, ...]:
        """Note one user less of each, and return those that nobody uses now."""
        self._users.subtract(layers)
        unused = tuple(name for name in layers if self._users[name] <= 0)
        for name in unused:
            del self._users[name]
        return unused
