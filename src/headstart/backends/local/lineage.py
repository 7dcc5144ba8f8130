"""The layers of a sandbox and of its forks: which each of them stands on, and which nobody needs any more."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headstart.backends.contract import Checkpoint
from headstart.ids import CheckpointId, SandboxId

__all__ = ["FIRST_LAYER", "MOST_LAYERS", "KeptCheckpoint", "LineageLayers", "Member"]

FIRST_LAYER = "0"
MOST_LAYERS = 200
"""That a sandbox can stand on: their names must fit a mount's options."""


class Member(Protocol):
    """A sandbox of the lineage that has been started and not closed."""

    def drop(self, layers: Sequence[str]) -> None:
        """Have layers deleted that nobody uses, in a while."""
        ...

    async def merge(self, row: Sequence[str], **details: Any) -> Mapping[str, Any]:
        """Have layers merged; see `guest.merging.merge`.

        Raises:
            BackendError: It was not possible.
        """
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it has ended by itself."""
        ...

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        ...

    async def stop(self, why: str | None = None) -> None:
        """End it, and keep its files where they outlive it; `why` is told to whoever uses it then."""
        ...

    async def aclose(self) -> None:
        """End it, with its files."""
        ...


class Flattens(Protocol):
    """Has layers merged that nobody needs one by one; see `flattening`."""

    def consider(self) -> None:
        """Begin if there is reason to."""
        ...

    def note_room(self, room: Mapping[str, Sequence[int]]) -> None:
        """Note how many `bytes` and `files` are taken, and of how many, by whomever."""
        ...

    async def wait(self) -> None:
        """Return when nothing is being merged."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint, and its layers, the lowest first."""

    checkpoint: Checkpoint
    layers: tuple[str, ...]


class LineageLayers:
    """Names layers and counts their users: sandboxes that stand on them, and checkpoints that are kept, by whomever.

    A row of layers that all have the same users is needed as one only, and may be replaced by one (`rows`, `replace`).
    Who has been started on the old ones goes on with these until he is sealed or ends, so it is also noted who
    has which mounted: a layer can be deleted when neither is anybody's.

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
        self._mounted: dict[SandboxId, list[tuple[str, ...]]] = {}
        """What each sandbox that lives may have mounted."""
        self.flattening: Flattens | None = None

    async def noted(self) -> None:
        """Return when whoever comes after a crash would find it all as it is now.

        Raises:
            BackendError: It cannot be written.
        """

    def have_dropped(self, layers: Sequence[str]) -> None:
        """Have one of those who live delete layers; if nobody does, they went with the last one."""
        living = [member for member in self.members.values() if not member.is_lost]
        if living and layers:
            living[0].drop(layers)

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
        mounted = self._mounted.pop(sandbox, [])
        return self._let_go(self.stands.pop(sandbox, ()), *mounted)

    def keep(self, checkpoint: Checkpoint, layers: tuple[str, ...]) -> None:
        """Note a checkpoint; until it is forgotten, it uses its layers."""
        self.checkpoints[checkpoint.id] = KeptCheckpoint(checkpoint=checkpoint, layers=layers)
        self._users.update(layers)

    def forget(self, checkpoint: CheckpointId) -> tuple[str, ...]:
        """Let go of a checkpoint, if it is there, and return the layers that nobody uses now."""
        kept = self.checkpoints.pop(checkpoint, None)
        return () if kept is None else self._let_go(kept.layers)

    def _let_go(self, layers: tuple[str, ...], *mounted: tuple[str, ...]) -> tuple[str, ...]:
        self._users.subtract(layers)
        self.consider_flattening()
        return self._unused(layers, *mounted)

    def _unused(self, *stacks: tuple[str, ...]) -> tuple[str, ...]:
        held = self._held_by_mounts()
        names = dict.fromkeys(name for stack in stacks for name in stack)
        unused = tuple(name for name in names if self._users[name] <= 0 and name not in held)
        for name in names:
            if self._users[name] <= 0:
                del self._users[name]
        return unused

    # ------------------------------------------------------------ what is mounted

    @property
    def held(self) -> frozenset[str]:
        """Those that must not be deleted."""
        return self.layers | self._held_by_mounts()

    def _held_by_mounts(self) -> frozenset[str]:
        return frozenset(name for stacks in self._mounted.values() for stack in stacks for name in stack)

    def mount(self, sandbox: SandboxId, layers: tuple[str, ...]) -> None:
        """Note that a sandbox may have these layers mounted from now on, too."""
        self._mounted.setdefault(sandbox, []).append(layers)

    def mounted(self, sandbox: SandboxId, *, was_swapped: bool) -> tuple[str, ...]:
        """Note what came of the last `mount` of a running sandbox; return the layers that nobody uses now.

        Not the one that would be on top: without a swap, it is not there.
        """
        stacks = self._mounted[sandbox]
        self._mounted[sandbox] = stacks[-1:] if was_swapped else stacks[:-1]
        unused = self._unused(*stacks)
        return unused if was_swapped else tuple(name for name in unused if name != stacks[-1][-1])

    def unmount(self, sandbox: SandboxId) -> tuple[str, ...]:
        """Note that a sandbox does not run any more; return the layers that nobody uses now."""
        return self._unused(*self._mounted.pop(sandbox, []))

    # ------------------------------------------------------------ what can be merged

    def consider_flattening(self) -> None:
        """Have layers merged in the background, if there are many that nobody needs one by one."""
        if self.flattening is not None:
            self.flattening.consider()

    @property
    def layers(self) -> frozenset[str]:
        """Those that somebody stands on or keeps."""
        return frozenset(itertools.chain.from_iterable(self._stacks()))

    async def exchange(self, row: tuple[str, ...], by: str) -> tuple[str, ...] | None:
        """Do what `replace` does, so that whoever comes after a crash finds the one or the other; return what it does.

        Raises:
            BackendError: It cannot be noted; neither may be deleted.
        """
        return self.replace(row, by)

    def rows(self) -> list[tuple[str, ...]]:
        """List the rows of two layers or more of which nobody needs one without the others, the lowest layer first.

        The layer that a sandbox writes into is in none.
        """
        tops = {layers[-1] for layers in self.stands.values() if layers}
        rows = dict[tuple[str, ...], None]()
        for stack in self._stacks():
            row: list[str] = []
            for name in (*stack, None):
                if name is None or name in tops or (row and self._users[name] != self._users[row[-1]]):
                    rows |= {tuple(row): None} if len(row) > 1 else {}
                    row = []
                row += [] if name is None or name in tops else [name]
        return list(rows)

    def below(self, layer: str) -> tuple[str, ...]:
        """Return what a layer lies on, the lowest first."""
        stack = next(stack for stack in self._stacks() if layer in stack)
        return stack[: stack.index(layer)]

    def replace(self, row: tuple[str, ...], by: str) -> tuple[str, ...] | None:
        """Have one layer stand for a row of them wherever that is; return the layers that nobody uses now.

        None if the row is not there any more, or somebody needs a part of it; then nothing has changed.
        """
        if not any(_has(whole, row) for whole in self.rows()):
            return None
        for sandbox, layers in self.stands.items():
            self.stands[sandbox] = _replaced(layers, row, by)
        for checkpoint, kept in self.checkpoints.items():
            layers = _replaced(kept.layers, row, by)
            self.checkpoints[checkpoint] = KeptCheckpoint(checkpoint=kept.checkpoint, layers=layers)
        self._users[by] = self._users[row[0]]
        for name in row:
            self._users[name] = 0
        return self._unused(row)

    def _stacks(self) -> list[tuple[str, ...]]:
        return [*self.stands.values(), *(kept.layers for kept in self.checkpoints.values())]


def _has(whole: tuple[str, ...], row: tuple[str, ...]) -> bool:
    return row[0] in whole and whole[(at := whole.index(row[0])) : at + len(row)] == row


def _replaced(layers: tuple[str, ...], row: tuple[str, ...], by: str) -> tuple[str, ...]:
    if row[0] not in layers:
        return layers
    at = layers.index(row[0])
    return (*layers[:at], by, *layers[at + len(row) :])
