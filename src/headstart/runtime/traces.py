"""Finished steps, preparations and summaries, by session: open ones in memory, ended ones in the store."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from headstart.clock import Clock
from headstart.core.events import PrepareForm
from headstart.core.steps import Preparation, SessionSummary, Step
from headstart.core.tracer import Finished
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.codec import RecordCodec
from headstart.runtime.store import FormChoice, Store

__all__ = ["LAST", "StartsFrom", "Trace", "TraceSource", "Traces", "decode_trace"]

LAST = "last"
MOST_STEPS = 1_000
MOST_SESSIONS = 2_000

ChoiceOf = Callable[[PrincipalId, ResourceId], FormChoice | None]
"""Tells from what a server starts and why, None if nobody has looked yet."""


class TraceSource(Protocol):
    """Where finished things come from: the broker."""

    def take_finished(self) -> list[Finished]: ...
    def summary(self, session: SessionId) -> SessionSummary | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartsFrom:
    """From what a server of the session starts, and why; as it was when the trace was taken."""

    server: ResourceId
    form: PrepareForm
    reason: str


_CODEC = RecordCodec([Step, Preparation, SessionSummary, StartsFrom])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A session as time.

    Attributes:
        steps: The newest `MOST_STEPS`, oldest first.
        summary: Of all its steps.
        wall_offset_s: What a time in it has to be added to, to be one on the wall clock;
            None in records of before it was noted.
        forms: Of each server that it called or that was prepared for it, in that order.
    """

    session: SessionId
    summary: SessionSummary
    steps: tuple[Step, ...]
    preparations: tuple[Preparation, ...]
    wall_offset_s: float | None = None
    forms: tuple[StartsFrom, ...] = ()


@dataclass(slots=True)
class _Open:
    steps: deque[Step] = field(default_factory=lambda: deque[Step](maxlen=MOST_STEPS))
    preparations: deque[Preparation] = field(default_factory=lambda: deque[Preparation](maxlen=MOST_STEPS))


class Traces:
    """Collects what the broker has finished; what no session owns is left out."""

    def __init__(self, source: TraceSource, store: Store, clock: Clock, *, choice_of: ChoiceOf) -> None:
        self._source = source
        self._store = store
        self._clock = clock
        self._choice_of = choice_of
        self._open: OrderedDict[SessionId, _Open] = OrderedDict()
        self._newest: SessionId | None = None
        """Whose the last finished step was, in this run."""

    def collect(self) -> None:
        """Take what is finished; sessions that have ended go to the store."""
        for one in self._source.take_finished():
            if one.session is None:
                continue
            match one:
                case Step():
                    self._of(one.session).steps.append(one)
                    self._newest = one.session
                case Preparation():
                    self._of(one.session).preparations.append(one)
                case SessionSummary():
                    if one.closed:
                        self._save(one)

    async def find(self, name: str) -> Trace | None:
        """Return the trace of a session, or of the newest with `last`; None if there is none."""
        self.collect()
        session = self._newest if name == LAST else SessionId(name)
        summary = self._source.summary(session) if session is not None and session in self._open else None
        if session is not None and summary is not None:
            return self._trace(session, summary)
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
            self._store.save_trace(summary.session, summary.principal, _encode(trace))

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


def _encode(trace: Trace) -> str:
    return json.dumps(
        {
            "session": trace.session,
            "summary": _CODEC.encode(trace.summary),
            "steps": [_CODEC.encode(step) for step in trace.steps],
            "preparations": [_CODEC.encode(one) for one in trace.preparations],
            "wall_offset_s": trace.wall_offset_s,
            "forms": [_CODEC.encode(one) for one in trace.forms],
        },
        separators=(",", ":"),
    )


def decode_trace(text: str) -> Trace:
    """Return the trace that was saved as this text.

    Raises:
        ValueError, KeyError: It is none.
    """
    fields = cast("dict[str, Any]", json.loads(text))
    return Trace(
        session=fields["session"],
        summary=cast("SessionSummary", _CODEC.decode(fields["summary"])),
        steps=tuple(cast("Step", _CODEC.decode(one)) for one in fields["steps"]),
        preparations=tuple(cast("Preparation", _CODEC.decode(one)) for one in fields["preparations"]),
        wall_offset_s=fields.get("wall_offset_s"),
        forms=tuple(cast("StartsFrom", _CODEC.decode(one)) for one in fields.get("forms", ())),
    )
