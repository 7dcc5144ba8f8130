"""What a run of the service had open when it was killed, read from its journal.

A run that stops in good order saves its open sessions and says so at the end of its journal
(`RunEnded`). Of one that did not, the journal has what was finished of each session; calls
that had come since are told in a last step, as far as their events say: what was sent and
answered, and what was still going on when the journal ends. Everything else in it is
passed over unread, so that a journal of hundreds of megabytes takes a second or two.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from headstart.core.events import CallAbandoned, CallArrived, CallReturned, SessionOpened
from headstart.core.steps import (
    CallSpans,
    Part,
    Preparation,
    SessionSummary,
    Span,
    Step,
    tile,
    with_preparation,
    with_step,
)
from headstart.ids import CallId, SessionId
from headstart.runtime.journal import Entry, Header, RunEnded, decode, decode_header
from headstart.runtime.state_files import unusable
from headstart.runtime.trace_record import MOST_STEPS, Trace

__all__ = ["cut_off"]

_READ: Final = (SessionOpened, CallArrived, CallReturned, CallAbandoned, Step, Preparation, SessionSummary, RunEnded)
_HEADS: Final = tuple(f'{{"e":"{cls.__name__}"'.encode() for cls in _READ)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    summary: SessionSummary
    parts: dict[Part, float] = field(default_factory=lambda: dict.fromkeys(Part, 0.0))
    steps: deque[Step] = field(default_factory=lambda: deque[Step](maxlen=MOST_STEPS))
    preparations: deque[Preparation] = field(default_factory=lambda: deque[Preparation](maxlen=MOST_STEPS))
    calls: dict[CallId, CallArrived] = field(default_factory=dict[CallId, CallArrived])
    """Those that are in no finished step."""

    def add_step(self, step: Step) -> None:
        self.summary = with_step(self.summary, step)
        for span in step.tiles:
            self.parts[span.part] += span.seconds
        self.steps.append(step)
        for call in step.calls:
            self.calls.pop(call.call, None)


def cut_off(journals: Path, *, but: str = "") -> list[Trace]:
    """Return the traces of the newest run's open sessions, newest last; none if it ended in good order.

    A journal that cannot be read is told in the log and has none.

    Args:
        journals: The folder with all runs' journals.
        but: The run that asks, which is not dead.
    """
    try:
        parts = _newest_run(journals, but)
        return [] if not parts else _Run(parts).traces()
    except OSError as exc:
        _log.warning("%s; what was cut off by a kill is not told", unusable(journals, exc))
        return []


def _newest_run(journals: Path, but: str) -> list[Path]:
    runs: dict[str, list[Path]] = {}
    for path in sorted(path for path in journals.glob("*.jsonl") if path.is_file()):
        runs.setdefault(path.stem.rpartition("-")[0], []).append(path)
    runs.pop(but, None)
    return max(runs.values(), key=_last_written_ns) if runs else []


def _last_written_ns(parts: list[Path]) -> int:
    return parts[-1].stat().st_mtime_ns


class _Run:
    """One run's journal, read from its first part that is left to its end."""

    def __init__(self, parts: list[Path]) -> None:
        self._sessions: dict[SessionId, _Session] = {}
        self._session_of: dict[CallId, SessionId] = {}
        self._ends: dict[CallId, CallReturned | CallAbandoned] = {}
        self._last_s = 0.0
        self._ended = False
        self._header: Header | None = None
        for part in parts:
            for entry in self._entries(part):
                self._take(entry)
        if self._header is not None:
            written_s = parts[-1].stat().st_mtime - (self._header.began_wall_s - self._header.began_s)
            self._last_s = max(self._last_s, written_s)  # what is passed over unread is a sign of life, too

    def traces(self) -> list[Trace]:
        if self._ended or self._header is None:
            return []
        found = [self._trace(name, session) for name, session in self._sessions.items()]
        told = [trace for trace in found if trace.steps or trace.preparations]
        return sorted(told, key=lambda trace: trace.summary.last_s)

    def _entries(self, part: Path) -> Iterator[Entry]:
        with part.open("rb") as file:
            for line in file:
                try:
                    if line.startswith(_HEADS):
                        yield decode(line)
                    elif self._header is None:
                        self._header = decode_header(line)
                except (ValueError, KeyError) as exc:  # the last line of a killed run may be cut
                    _log.debug("%s: a line is left out: %s", part, exc)

    def _take(self, entry: Entry) -> None:
        match entry:
            case SessionOpened():
                self._last_s = entry.at_s
                summary = SessionSummary(
                    session=entry.session, principal=entry.principal, opened_s=entry.at_s, last_s=entry.at_s
                )
                self._sessions.setdefault(entry.session, _Session(summary))
            case SessionSummary():
                if entry.closed:
                    self._sessions.pop(entry.session, None)
            case Step() | Preparation():
                self._finished(entry)
            case CallArrived():
                self._last_s = entry.at_s
                if entry.session in self._sessions:
                    self._sessions[entry.session].calls[entry.call] = entry
            case CallReturned() | CallAbandoned():
                self._last_s = entry.at_s
                self._ends[entry.call] = entry
            case RunEnded():
                self._ended = True
            case _:
                raise AssertionError(f"{type(entry).__name__} is not read")

    def _finished(self, one: Step | Preparation) -> None:
        session = self._sessions.get(one.session) if one.session is not None else None
        if session is None:
            return
        if isinstance(one, Step):
            session.add_step(one)
            for call in one.calls:
                self._ends.pop(call.call, None)
        else:
            session.summary = with_preparation(session.summary, one)
            session.preparations.append(one)

    def _trace(self, name: SessionId, session: _Session) -> Trace:
        if session.calls:
            session.add_step(self._last_step(session))
        header = self._header
        return Trace(
            session=name,
            summary=replace(session.summary, parts=tuple(session.parts.items())),
            steps=tuple(session.steps),
            preparations=tuple(session.preparations),
            wall_offset_s=None if header is None else header.began_wall_s - header.began_s,
            cut_off_s=self._last_s,
        )

    def _last_step(self, session: _Session) -> Step:
        calls = tuple(self._spans(call) for call in session.calls.values())
        start_s = min(call.start_s for call in calls)
        end_s = max(call.end_s for call in calls)
        return Step(
            principal=session.summary.principal,
            session=session.summary.session,
            conversation="",
            number=session.summary.steps + 1,
            start_s=start_s,
            end_s=end_s,
            generation=None,
            calls=calls,
            tiles=tile(calls, start_s=start_s, end_s=end_s),
        )

    def _spans(self, call: CallArrived) -> CallSpans:
        """Tell a call as far as its own events do; when its sandbox was granted is not among them."""
        end = self._ends.get(call.call)
        end_s = self._last_s if end is None else end.at_s
        if isinstance(end, CallReturned):
            cuts = [(Part.ENV_PREP, end.sent_s), (Part.SANDBOX_EXEC, end.answered_s), (Part.DATA_IO, end_s)]
        else:
            cuts = [(Part.UNATTRIBUTED, end_s)]
        spans: list[Span] = []
        at_s = call.at_s
        for part, until_s in cuts:
            spans.append(Span(part=part, start_s=at_s, end_s=max(at_s, until_s), call=call.call))
            at_s = spans[-1].end_s
        return CallSpans(
            call=call.call,
            resource=call.resource,
            tool=call.tool,
            start_s=call.at_s,
            end_s=at_s,
            spans=tuple(spans),
            is_error=isinstance(end, CallReturned) and end.is_error,
            abandoned=not isinstance(end, CallReturned),
        )
