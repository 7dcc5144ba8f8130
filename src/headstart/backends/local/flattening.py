"""Flattening: layers that nobody needs one by one are merged into one, while everything goes on.

A sandbox that makes checkpoints and drops them would stand on more and more layers, and on all that
was ever written in them. So a row of layers of which no other sandbox and no checkpoint needs a part is merged by a helper, in
the background, into a new one beside them. Then the new one is noted in the row's place, wherever that was; who
is mounted on the old ones goes on with these until its next checkpoint, which builds its tree anew, or until it ends.
With the last of them they are deleted.

In a store, a merged layer is on the disk before it is noted: what it stands for is deleted soon, and may have been flushed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel

from headstart.backends.local.lineage import LineageLayers, Member
from headstart.errors import BackendError

__all__ = ["Flattening"]

_log = logging.getLogger(__name__)

_MANY = 8
"""So many layers are merged that have not been looked at before, or else it would cost more than they do."""

_LONG = 64
"""Where so many layers lie on each other, two are enough."""

_GROWN_BYTES, _GROWN_PART = 32 << 20, 16
"""If so much more is taken, or such a part of the bytes or files that there are, two are enough: some may be overwritten."""

_StartSoon = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]


class Flattening:
    """Flattens one lineage's layers, when it is told that something has changed.

    Args:
        start_soon: Starts a task; see `SpawnerClient.start_soon`.
        most_bytes: What its files may take, if that is less than there is where they are.
    """

    def __init__(self, lineage: LineageLayers, *, start_soon: _StartSoon, most_bytes: int | None = None) -> None:
        self._lineage = lineage
        self._most_bytes = most_bytes
        self._start_soon = start_soon
        self._looked_at: set[str] = set()
        self._weights: dict[str, Sequence[int]] = {}
        self._are_files_scarce = False
        self._taken: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self._enough: dict[str, int] = {}
        self._is_begun = False
        self._done = anyio.Event()
        self._done.set()
        lineage.flattening = self

    def note_room(self, room: Mapping[str, Sequence[int]]) -> None:
        """Note how many `bytes` and `files` are taken, and of how many, by whomever."""
        self._taken = {what: taken for what, (taken, _) in room.items()}
        self._least = {what: min(taken, self._least.get(what, 0)) for what, taken in self._taken.items()}
        files, most_files = room["files"]
        self._are_files_scarce = files * 2 > most_files > 0  # merging takes some for a while
        self._enough = {what: of // _GROWN_PART for what, (_, of) in room.items()}
        bounds = [_GROWN_BYTES, *([] if self._most_bytes is None else [self._most_bytes // _GROWN_PART])]
        self._enough["bytes"] = min(*bounds, self._enough["bytes"])

    def _has_grown(self) -> bool:
        grown = (taken - self._least[what] >= self._enough[what] > 0 for what, taken in self._taken.items())
        return self._are_files_scarce or any(grown)

    def consider(self) -> None:
        """Begin to flatten if there is reason to, and somebody lives who can; else do nothing."""
        if not self._is_begun and self._due() and self._somebody():
            self._is_begun = True
            self._start_soon(self._flatten)

    async def wait(self) -> None:
        """Return when nothing is being merged."""
        await (
            anyio.lowlevel.checkpoint()
        )  # what was begun takes its first step, unless its spawner is gone: then it never does
        await self._done.wait()

    def _due(self) -> tuple[str, ...] | None:
        """Return the row in which there is most that has not been looked at, if that is enough."""
        rows = [(sum(name not in self._looked_at for name in row), row) for row in self._lineage.rows()]
        new, row = max(rows, default=(0, ()))
        longest = max(map(len, self._lineage.stands.values()), default=0)
        enough = 1 if self._has_grown() or longest >= _LONG else _MANY
        return row if new >= enough else None

    def _somebody(self) -> Member | None:
        members = self._lineage.members.values()
        return next((member for member in members if not member.is_lost and not member.paused), None)

    async def _flatten(self) -> None:
        self._done = anyio.Event()
        try:
            while not self._lineage.is_closed and (row := self._due()) and (member := self._somebody()):
                self._least = self._taken
                await self._flatten_row(member, row)
        except BackendError as error:
            _log.debug("layers are not merged: %s", error)
        finally:
            self._is_begun = False
            self._done.set()

    async def _flatten_row(self, member: Member, row: tuple[str, ...]) -> None:
        lineage, into = self._lineage, self._lineage.new_layer()
        self._looked_at |= {*row}
        try:
            merged = await self._merge(member, row, into)
        except BackendError:
            lineage.have_dropped([into])
            raise
        unused = await lineage.exchange(merged, into) if merged else None
        if unused is None:
            lineage.have_dropped([into])  # there may be a part of it
        else:
            self._looked_at.add(into)
            lineage.have_dropped(unused)

    async def _merge(self, member: Member, row: tuple[str, ...], into: str) -> tuple[str, ...]:
        """Have a helper merge what pays of a row; return what that was."""
        there = self._lineage.layers
        self._looked_at &= there
        self._weights = {name: weight for name, weight in self._weights.items() if name in there}
        known = {name: self._weights[name] for name in row if name in self._weights}
        told = await member.merge(row, below=self._lineage.below(row[0]), into=into, weights=known)
        if "merged" not in told:
            raise BackendError("the helper that merged layers was killed")
        self._weights |= told["weights"]
        return tuple(told["merged"])
