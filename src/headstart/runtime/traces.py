"""Finished steps, preparations and summaries, by session: open ones in memory, ended ones in the store.

All of them are noted in the journal as well, so that those of a run that is killed are not lost.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from headstart.clock import Clock
from headstart.core.steps import Preparation, SessionSummary, Step
from headstart.core.tracer import Finished
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.recovery import cut_off
from headstart.runtime.store import FormChoice, Store
from headstart.runtime.trace_record import MOST_STEPS, StartsFrom, Trace, decode_trace, encode_trace

__all__ = ["LAST", "TraceSource", "Traces"]

LAST = "last"
MOST_SESSIONS = 2_000

ChoiceOf = Callable[[PrincipalId, ResourceId], FormChoice | None]
"""Tells from what a server starts and why, None if nobody has looked yet."""


class TraceSource(Protocol):
    """Where finished things come from: the broker."""

    def take_finished(self) -> list[Finished]: ...
    def summary(self, session: SessionId) -> SessionSummary | None: ...


@dataclass(slots=True)
class _Open:
    steps: deque[Step] = field(default_factory=lambda: deque[Step](maxlen=MOST_STEPS))
    preparations: deque[Preparation] = field(default_factory=lambda: deque[Preparation](maxlen=MOST_STEPS))


class Traces:
    """Collects what the broker has finished, and gives it to `note`; what no session owns is left out."""

    def __init__(
        self,
        source: TraceSource,
        store: Store,
        clock: Clock,
        *,
        choice_of: ChoiceOf,
        note: Callable[[Finished], None],
    ) -> None:
        self._source = source
        self._note = note
        self._recovered = anyio.Event()
        self._store = store
        self._clock = clock
        self._choice_of = choice_of
        self._open: OrderedDict[SessionId, _Open] = OrderedDict()
        self._newest: Step | None = None
        """The step of a session that ended last, in this run."""

    def collect(self) -> None:
        """Take what is finished; sessions that have ended go to the store."""
        for one in self._source.take_finished():
            if one.session is None:
                continue
            self._note(one)
            match one:
                case Step():
                    self._of(one.session).steps.append(one)
                    if self._newest is None or one.end_s >= self._newest.end_s:
                        self._newest = one
                case Preparation():
                    self._of(one.session).preparations.append(one)
                case SessionSummary():
                    if one.closed:
                        self._save(one)

    async def recover(self, journals: Path, but: str) -> None:
        """Take over what a run that was killed had open; `but` is this run's name."""
        try:
            for trace in await anyio.to_thread.run_sync(lambda: cut_off(journals, but=but)):
                self._keep(trace)
        finally:
            self._recovered.set()

    async def find(self, name: str) -> Trace | None:
        """Return the trace of a session, or of the newest with `last`; None if there is none."""
        self.collect()
        newest = None if self._newest is None else self._newest.session
        session = newest if name == LAST else SessionId(name)
        summary = self._source.summary(session) if session is not None and session in self._open else None
        if session is not None and summary is not None:
            return self._trace(session, summary)
        await self._recovered.wait()
        found = await self._store.traces(session)
        return decode_trace(found[0]) if found else None

    def save_open(self) -> None:
        """Keep the traces of sessions that outlive this run."""
        self.collect()
        for session in list(self._open):
            summary = self._source.summary(session)
            if summary is not None and summary.steps:
                self._save(summary)

    def forget(self, principal: PrincipalId | None) -> None:
        """Drop what is in memory of one principal (None: of all)."""
        self.collect()
        self._newest = None
        for session, held in list(self._open.items()):
            if principal is None or any(step.principal == principal for step in held.steps):
                del self._open[session]

    def _of(self, session: SessionId) -> _Open:
        held = self._open.setdefault(session, _Open())
        if len(self._open) > MOST_SESSIONS:
            self._open.popitem(last=False)
        return held

    def _save(self, summary: SessionSummary) -> None:
        trace = self._trace(summary.session, summary)
        self._open.pop(summary.session, None)
        if trace.steps or trace.preparations:
            self._keep(trace)

    def _keep(self, trace: Trace) -> None:
        self._store.save_trace(
            trace.session, trace.summary.principal, encode_trace(trace), newest_wall_s=trace.newest_wall_s
        )

    def _trace(self, session: SessionId, summary: SessionSummary) -> Trace:
        held = self._open.get(session) or _Open()
        return Trace(
            session=session,
            summary=summary,
            steps=tuple(held.steps),
            preparations=tuple(held.preparations),
            wall_offset_s=self._clock.wall_s() - self._clock.monotonic_s(),
            forms=tuple(self._forms(summary.principal, held)),
        )

    def _forms(self, principal: PrincipalId, held: _Open) -> Iterator[StartsFrom]:
        called = (call.resource for step in held.steps for call in step.calls)
        for server in dict.fromkeys((*called, *(one.resource for one in held.preparations))):
            choice = self._choice_of(principal, server)
            if choice is not None:
                yield StartsFrom(server=server, form=choice.form, reason=choice.reason)
