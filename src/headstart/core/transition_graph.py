"""Counts of what followed what: the data under `core/transitions.py`, bounded.

A row is a state's successors with their counts. A full row drops its rarest successor but
keeps its share of the row's total, so that forgetting never makes what is left look more
certain. Counts are halved when a row has seen enough, so old habits fade.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from headstart.ids import ResourceId

__all__ = ["START", "GraphData", "GraphLimits", "Row", "TransitionGraph"]

START: Final = ResourceId("")
"""The state of a session before its first call."""

GraphData = Mapping[str, Mapping[str, float]]
"""A graph as plain data: state → successor → count. The key `""` is `START` as a state and
"no successor that is kept" as a successor: those dropped, and the ends of sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits:
    """Bounds of one graph.

    Attributes:
        states: Rows kept; the one least recently left goes first.
        successors: Kept per row; the rarest goes first.
        row_capacity: Transitions in a row after which its counts are halved.
    """

    states: int = 2_048
    successors: int = 64
    row_capacity: float = 256.0


@dataclass(slots=True, kw_only=True)
class Row:
    """The transitions out of one state.

    Attributes:
        counts: Per successor.
        dropped: Transitions to successors that are no longer kept, or to the session's end.
    """

    counts: dict[ResourceId, float] = field(default_factory=dict[ResourceId, float])
    dropped: float = 0.0
    total: float = 0.0

    def add(self, successor: ResourceId, *, limits: GraphLimits) -> None:
        """Count one transition."""
        if successor not in self.counts and len(self.counts) >= limits.successors:
            rarest = min(self.counts, key=self.counts.__getitem__)
            self.dropped += self.counts.pop(rarest)
        self.counts[successor] = self.counts.get(successor, 0.0) + 1.0
        self._count(limits)

    def add_end(self, *, limits: GraphLimits) -> None:
        """Count a session that ended here."""
        self.dropped += 1.0
        self._count(limits)

    def _count(self, limits: GraphLimits) -> None:
        self.total += 1.0
        if self.total >= limits.row_capacity:
            self._halve()

    def _halve(self) -> None:
        halved = {successor: count / 2.0 for successor, count in self.counts.items()}
        self.counts = {successor: count for successor, count in halved.items() if count >= 0.25}
        self.dropped = self.dropped / 2.0 + sum(halved.values()) - sum(self.counts.values())
        self.total = self.dropped + sum(self.counts.values())


class TransitionGraph:
    """Transition counts of one principal or one session."""

    __slots__ = ("_limits", "_rows")

    def __init__(self, limits: GraphLimits | None = None) -> None:
        self._limits = limits or GraphLimits()
        self._rows: dict[ResourceId, Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[ResourceId]:
        return iter(self._rows)

    def row(self, state: ResourceId) -> Row:
        """Return a state's row, an empty one if it was never left; not to be changed."""
        return self._rows.get(state) or Row()

    def add(self, state: ResourceId, successor: ResourceId) -> None:
        """Count one transition."""
        self._left(state).add(successor, limits=self._limits)

    def add_end(self, state: ResourceId) -> None:
        """Count a session that ended in a state."""
        self._left(state).add_end(limits=self._limits)

    def _left(self, state: ResourceId) -> Row:
        """Return the row of a state that is left now."""
        row = self._rows.pop(state, None) or Row()
        self._rows[state] = row  # reinserted: the dict's order is by last use
        if len(self._rows) > self._limits.states:
            del self._rows[next(iter(self._rows))]
        return row

    def export(self) -> GraphData:
        """Return the counts as plain data, oldest use first."""
        return {
            str(state): {**{str(to): count for to, count in row.counts.items()}, "": row.dropped}
            for state, row in self._rows.items()
        }

    @classmethod
    def restore(cls, data: GraphData, limits: GraphLimits | None = None) -> TransitionGraph:
        """Rebuild a graph from exported data, within the limits.

        Raises:
            ValueError: A count is negative or not a number.
        """
        graph = cls(limits)
        bounds = graph._limits
        for state, successors in list(data.items())[-bounds.states :]:
            if not all(0.0 <= count < float("inf") for count in successors.values()):
                raise ValueError(f"the transitions out of {state!r} hold a count that is none: {dict(successors)}")
            seen = {ResourceId(to): count for to, count in successors.items() if to}
            kept = dict(nlargest(bounds.successors, seen.items(), key=lambda item: item[1]))
            dropped = successors.get("", 0.0) + sum(seen.values()) - sum(kept.values())
            graph._rows[ResourceId(state)] = Row(counts=kept, dropped=dropped, total=sum(kept.values()) + dropped)
        return graph
