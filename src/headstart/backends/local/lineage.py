"""The layers of a sandbox and of its forks: which each of them stands on, and which nobody needs any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.backends.contract import Checkpoint
from headstart.ids import CheckpointId, SandboxId

__all__ = ["FIRST_LAYER", "MOST_LAYERS", "KeptCheckpoint", "LineageLayers", "Member"]

FIRST_LAYER = "0"
MOST_LAYERS = 200
"""Each costs a failed lookup a microsecond, and their names must fit a mount's options."""


class Member(Protocol):
    """A sandbox of the lineage that has been started and not closed."""

    def drop(self, layers: Sequence[str]) -> None:
        """Have layers deleted that nobody uses, in a while."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it has ended by itself."""
        ...

    async def stop(self, why: str | None = None) -> None:
        """End it, and keep its files where they outlive it; `why` is told to whoever uses it then."""
        ...

    async def aclose(self) -> None:
        """End it, with its files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint, and its layers, the lowest first."""

    checkpoint: Checkpoint
    layers: tuple[str, ...]


class LineageLayers:
    """Names layers and counts their users: sandboxes that stand on them, and checkpoints that are kept, by whomever.

    >>> lineage, first, second = LineageLayers(), SandboxId("first"), SandboxId("second")
    >>> lineage.begin(first)
    ('0',)
    >>> lineage.begin(second, ("0",))
    ('0', '2')
    >>> lineage.leave(first), lineage.leave(second)
    ((), ('0', '2'))
    """

    def __init__(self, *, first_number: int = int(FIRST_LAYER), store: str | None = None) -> None:
        """`store` has the layers; without one they are in memory, and go with the lineage's last sandbox."""
        self.store = store
        self.is_closed = False
        """Whether nobody may be started any more."""
        self._number = first_number
        self._users: Counter[str] = Counter()
        self.checkpoints: dict[CheckpointId, KeptCheckpoint] = {}
        self.stands: dict[SandboxId, tuple[str, ...]] = {}
        """The layers of each sandbox, the lowest first; it writes into the last one."""
        self.nexts: dict[SandboxId, str] = {}
        """The layer that each sandbox's next checkpoint puts on top; it is not there before."""
        self.begun: set[SandboxId] = set()
        """Those that have been started at least once, so that their topmost layer is there."""
        self.members: dict[SandboxId, Member] = {}

    async def noted(self) -> None:
        """Return when whoever comes after a crash would find it all as it is now.

        Raises:
            BackendError: It cannot be written.
        """

    def have_dropped(self, layers: Sequence[str]) -> None:
        """Have one of those who live delete layers; if nobody does, they went with the last one."""
        if self.members and layers:
            next(iter(self.members.values())).drop(layers)

    def new_layer(self) -> str:
        """Return a name that was never used in this lineage."""
        self._number += 1
        return str(self._number - 1)

    def begin(self, sandbox: SandboxId, below: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Note that a sandbox stands on a new layer on top of those; return its layers."""
        self.begun.discard(sandbox)
        self.stand(sandbox, (*below, self.new_layer()), self.new_layer())
        return self.stands[sandbox]

    def stand(self, sandbox: SandboxId, layers: tuple[str, ...], following: str) -> None:
        """Note what a sandbox stands on from now on, none of what it stood on less, and which layer comes next."""
        self._users.update(layers)
        self._users.subtract(self.stands.get(sandbox, ()))
        self.stands[sandbox], self.nexts[sandbox] = layers, following

    def step_back(self, sandbox: SandboxId) -> tuple[str, ...]:
        """Note that a sandbox does not stand on its topmost layer; return what nobody uses now."""
        top = self.stands[sandbox][-1:]
        self.stands[sandbox] = self.stands[sandbox][:-1]
        return self._let_go(top)

    def is_alone_on_top(self, sandbox: SandboxId) -> bool:
        """Whether nobody else needs the layer that it writes into as it is."""
        layers = self.stands[sandbox]
        return bool(layers) and self._users[layers[-1]] == 1

    def leave(self, sandbox: SandboxId) -> tuple[str, ...]:
        """Note that a sandbox is no more, and return the layers that nobody uses now."""
        self.nexts.pop(sandbox, None)
        self.begun.discard(sandbox)
        return self._let_go(self.stands.pop(sandbox, ()))

    def keep(self, checkpoint: Checkpoint, layers: tuple[str, ...]) -> None:
        """Note a checkpoint; until it is forgotten, it uses its layers."""
        self.checkpoints[checkpoint.id] = KeptCheckpoint(checkpoint=checkpoint, layers=layers)
        self._users.update(layers)

    def forget(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """Let go of a checkpoint, if it is there, and return the layers that nobody uses now."""
        kept = self.checkpoints.pop(checkpoint, None)
        return () if kept is None else self._let_go(kept.layers)

    def _let_go(self, layers: tuple[str, ...]) -> tuple[str, ...]:
        self._users.subtract(layers)
        unused = tuple(name for name in layers if self._users[name] <= 0)
        for name in unused:
            del self._users[name]
        return unused
