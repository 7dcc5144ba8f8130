"""The copies' way: from the forwarding path into a bounded queue, and out as model events.

Forwarding only appends to its generation's queue and wakes one task. That task works in the time that
forwarding leaves: it stands back for five milliseconds, so that bytes on their way pass before
anything is parsed, then reads in slices of half a millisecond, and between two slices lets the
event loop go round. If something was forwarded meanwhile, or the loop is behind its own clock,
it stands back again. So a burst of requests is forwarded first and read after, and a token
never waits for more than a slice.

A loop that is never idle must be read from too. Once reading is `PATIENCE_S` behind, it takes
a slice after each pause, whatever is forwarded; that slice grows with the lag, so that what is
read keeps up with what comes. Pauses stay: on a machine with more to do than it can, a process
that never sleeps waits longest for its turn. Who is about to look at what a client did in answer
can have it read at once (`catch_up`).

Generations take turns, and what waits of one is read in one go; pieces of text that follow one
another become one event, with the time of the first. So the further behind reading is, the less
it costs, here and for whoever listens.

The bound is in bytes, of request bodies that are still on their way too. When it is reached,
the generation whose bytes do not fit is dropped from reading: it ends UNREADABLE, and
forwarding never waits.

The invariant: every generation that was started ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from time import perf_counter
from typing import cast

from headstart.clock import Clock
from headstart.core.stream import GenerationOutcome, ModelEvent, TextArrived, ToolCallArgumentsArrived
from headstart.ids import GenerationId, IdSource, PrincipalId, SessionId
from headstart.proxy.formats import WireFormat
from headstart.proxy.headers import Header, value_of
from headstart.proxy.reading.parsing import Answered, Asked, Note, Parsing, ReadingLimits
from headstart.proxy.statistics import Tally

__all__ = ["GenerationReading", "ModelReader"]

PAUSE_S = 0.005
LATE_S = 0.001
"""A pause that ends so much too late shows a loop that has more to do than it can."""
PATIENCE_S = 0.05
SLICE_S = 0.0005
LATE_SLICE_PER_LAG = 0.02
MOST_SLICE_S = 0.005
NOTES_AT_ONCE = 32
"""Of one generation, before it is the next one's turn."""
NOTE_BYTES = 200
"""What a note in the queue takes beside its bytes."""


_Waiting = tuple[float, Note, int]
"""When it was, what, and its size in the queue."""


class GenerationReading:
    """One generation, seen from the forwarding path; every method returns at once."""

    __slots__ = ("_asked", "_at_s", "_body", "_body_bytes", "_dropped", "_parsing", "_reader")

    def __init__(self, reader: ModelReader, parsing: Parsing, at_s: float) -> None:
        self._reader = reader
        self._parsing = parsing
        self._at_s = at_s
        self._body: list[bytes] | None = []
        self._body_bytes = 0
        self._asked = False
        self._dropped = False

    def request_bytes(self, data: bytes) -> None:
        """A piece of the request's body went upstream."""
        if self._body is None:
            return
        held = self._body_bytes + len(data)
        if held > self._reader.limits.request_bytes or not self._reader.has_room(len(data)):
            self._release_body()
            return
        self._body.append(data)
        self._body_bytes = held
        self._reader.queued_bytes += len(data)

    def request_complete(self, *, session: SessionId | None, principal: PrincipalId, headers: Iterable[Header]) -> None:
        """The request is whole: the generation starts."""
        headers = tuple(headers)
        body, size = self._release_body()
        self._asked = True
        asked = Asked(
            session=session,
            principal=principal,
            hints=tuple(_header_hints(headers)),
            body=None if body is None else b"".join(body),
            content_encoding=value_of(headers, b"content-encoding") or b"",
        )
        self._put(self._at_s, asked, size + NOTE_BYTES)

    def response_started(self, at_s: float, *, status: int, headers: Iterable[Header]) -> None:
        headers = tuple(headers)
        answered = Answered(
            status=status,
            content_type=value_of(headers, b"content-type") or b"",
            content_encoding=value_of(headers, b"content-encoding") or b"",
        )
        self._put(at_s, answered, NOTE_BYTES)

    def response_bytes(self, at_s: float, data: bytes) -> None:
        if self._dropped:
            return
        if len(data) <= (size := self._reader.limits.piece_bytes):
            self._put(at_s, data, len(data) + NOTE_BYTES)
            return
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self._put(at_s, piece, len(piece) + NOTE_BYTES)

    def ended(self, at_s: float, outcome: GenerationOutcome) -> None:
        """The exchange is over; COMPLETED means that the body came to its proper end."""
        self._release_body()
        if self._asked:
            self._reader.put(self._parsing, at_s, outcome, 0)

    def _release_body(self) -> tuple[list[bytes] | None, int]:
        """Return the copy of the request's body and its size; it is no longer held here."""
        body, size = self._body, self._body_bytes
        self._body, self._body_bytes = None, 0
        self._reader.queued_bytes -= size
        return body, size

    def _put(self, at_s: float, note: Note, size: int) -> None:
        if self._dropped or not self._asked:
            return
        if not self._reader.has_room(size):
            self._dropped = True
            note, size = GenerationOutcome.UNREADABLE, 0
        self._reader.put(self._parsing, at_s, note, size)


class ModelReader:
    """Reads copies into model events, in one task: `run`.

    Args:
        observe: Gets every event; must not block or raise.
        clock: For the lag.
        ids: Names generations.
        tally: Where it is counted.
        limits: How much is read.
    """

    def __init__(
        self,
        observe: Callable[[ModelEvent], None],
        *,
        clock: Clock,
        ids: IdSource,
        tally: Tally,
        limits: ReadingLimits | None = None,
    ) -> None:
        self.limits = limits or ReadingLimits()
        self._observe = observe
        self._clock = clock
        self._ids = ids
        self._tally = tally
        self._waiting: dict[Parsing, deque[_Waiting]] = {}
        """What is not read yet, by generation, in the order in which they are read."""
        self._under_way: dict[Parsing, None] = {}
        self._wake = asyncio.Event()
        self._taken = 0
        self.queued_bytes = 0

    def open(self, wire_format: WireFormat, *, route: str, at_s: float) -> GenerationReading:
        """Begin to read a generation whose request came in at `at_s`."""
        generation = GenerationId(self._ids.new("gen"))
        parsing = Parsing(wire_format, generation, route, self.limits, self._tally)
        return GenerationReading(self, parsing, at_s)

    def has_room(self, size: int) -> bool:
        return self.queued_bytes + size <= self.limits.queued_bytes

    def put(self, parsing: Parsing, at_s: float, note: Note, size: int) -> None:
        self.queued_bytes += size
        self._taken += 1
        notes = self._waiting.get(parsing)
        if notes is None:
            notes = self._waiting[parsing] = deque()
        notes.append((at_s, note, size))
        self._wake.set()

    async def run(self) -> None:
        """Read for ever. Cancelling loses only what was not read yet; `close` reads that."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                busy = await self._stand_back()
                while self._waiting and not busy:
                    self._read_slice(SLICE_S)
                    busy = await self._let_others_pass()
                if self._waiting and (lag_s := self._lag_s()) > PATIENCE_S:
                    self._read_slice(min(lag_s * LATE_SLICE_PER_LAG, MOST_SLICE_S))

    async def _stand_back(self) -> bool:
        """Give forwarding the loop for a while; return whether it needs it still."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + PAUSE_S
        await asyncio.sleep(PAUSE_S)
        return loop.time() > until_s + LATE_S

    async def _let_others_pass(self) -> bool:
        """Let the loop go round once; return whether anything was forwarded."""
        before = self._taken
        await asyncio.sleep(0)
        return self._taken != before

    def _lag_s(self) -> float:
        """How long the oldest note waits of the generation that is read next."""
        at_s, _, _ = next(iter(self._waiting.values()))[0]
        return max(self._clock.monotonic_s() - at_s, 0.0)

    def close(self) -> None:
        """Read everything that is there, and end what was cut off by the end of the service."""
        self.drain()
        for parsing in tuple(self._under_way):
            self.put(parsing, self._clock.monotonic_s(), GenerationOutcome.UPSTREAM_FAILED, 0)
        self.drain()

    def drain(self) -> None:
        """Read everything that is there."""
        while self._waiting:
            self._read_slice(MOST_SLICE_S)

    def catch_up(self) -> None:
        """Read now what is there, for at most the longest slice's time."""
        self._read_slice(MOST_SLICE_S)

    def _read_slice(self, slice_s: float) -> None:
        if not self._waiting:
            return
        self._tally.note_lag(self._lag_s())
        deadline_s = perf_counter() + slice_s
        while self._waiting:
            self._read_next()
            if perf_counter() >= deadline_s:
                return

    def _read_next(self) -> None:
        """Read some of what waits of the next generation."""
        parsing = next(iter(self._waiting))
        notes = self._waiting.pop(parsing)
        events: list[ModelEvent] = []
        for _ in range(min(len(notes), NOTES_AT_ONCE)):
            at_s, note, size = notes.popleft()
            self.queued_bytes -= size
            events += parsing.take(note, at_s)
        if notes:
            self._waiting[parsing] = notes  # behind the others
        if parsing.ended:
            self._under_way.pop(parsing, None)
        else:
            self._under_way[parsing] = None
        for event in _joined(events):
            self._observe(event)


def _joined(events: Sequence[ModelEvent]) -> Iterable[ModelEvent]:
    """Make one event of pieces of the same text that follow one another."""
    if len(events) < 2:
        return events
    return (_one(list(group)) for _, group in groupby(events, key=_text_it_continues))


def _one(pieces: Sequence[ModelEvent]) -> ModelEvent:
    first = pieces[0]
    if len(pieces) == 1 or not isinstance(first, TextArrived | ToolCallArgumentsArrived):
        return first
    return replace(first, text="".join(piece.text for piece in cast("Sequence[TextArrived]", pieces)))


def _text_it_continues(event: ModelEvent) -> object:
    match event:
        case TextArrived():
            return event.kind
        case ToolCallArgumentsArrived():
            return event.index
        case _:
            return object()  # like no other


_HINT_HEADERS = frozenset(
    {
        b"conversation_id",
        b"session_id",
        b"session-id",
        b"thread-id",
        b"x-conversation-id",
        b"x-session-affinity",
        b"x-session-id",
        b"x-thread-id",
        b"x-trajectory-id",
    }
)
_MAX_HINT_CHARS = 256


def _header_hints(headers: Iterable[Header]) -> Iterable[str]:
    for name, value in headers:
        if name in _HINT_HEADERS:
            yield f"{name.decode('latin-1')}={value.decode('latin-1')}"[:_MAX_HINT_CHARS]
