"""The copies' way: from the forwarding path into a bounded queue, and out as model events.

Forwarding only appends to a queue and wakes one task. That task first stands back for five
milliseconds, so that bytes on their way pass before anything is parsed, then reads what has
gathered for about one, and so on: parsing comes in batches and takes a bounded share of
the event loop. The batch grows with the lag, a twentieth of it, so that the share follows the
load: a burst of requests is forwarded first and read after, a steady stream is read a few
milliseconds late. Who is about to look at what a client did in answer can have it read at once
(`catch_up`).

The bound is in bytes, of request bodies that are still on their way too. When it is reached,
the generation whose bytes do not fit is dropped from reading: it ends UNREADABLE, and
forwarding never waits.

The invariant: every generation that was started ends exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter

from headstart.clock import Clock
from headstart.core.stream import GenerationOutcome, ModelEvent
from headstart.ids import GenerationId, IdSource, PrincipalId, SessionId
from headstart.proxy.formats import WireFormat
from headstart.proxy.headers import Header, value_of
from headstart.proxy.reading.parsing import Answered, Asked, Note, Parsing, ReadingLimits
from headstart.proxy.statistics import Tally

__all__ = ["GenerationReading", "ModelReader"]

PAUSE_S = 0.005
LEAST_BATCH_S = 0.001
MOST_BATCH_S = 0.005
BATCH_PER_LAG = 0.05
NOTE_BYTES = 200
"""What a note in the queue takes beside its bytes."""


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
        if not self._dropped:
            self._put(at_s, data, len(data) + NOTE_BYTES)

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
        self._queue: deque[tuple[Parsing, float, Note, int]] = deque()
        self._under_way: dict[Parsing, None] = {}
        self._wake = asyncio.Event()
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
        self._queue.append((parsing, at_s, note, size))
        self._wake.set()

    async def run(self) -> None:
        """Read for ever. Cancelling loses only what was not read yet; `close` reads that."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await asyncio.sleep(PAUSE_S)
                self._read_batch()

    def close(self) -> None:
        """Read everything that is there, and end what was cut off by the end of the service."""
        self.drain()
        for parsing in tuple(self._under_way):
            self.put(parsing, self._clock.monotonic_s(), GenerationOutcome.UPSTREAM_FAILED, 0)
        self.drain()

    def drain(self) -> None:
        """Read everything that is there."""
        while self._queue:
            self._read_batch()

    def catch_up(self) -> None:
        """Read now what is there, for at most one large batch's time."""
        self._read_batch(MOST_BATCH_S)

    def _read_batch(self, least_s: float = LEAST_BATCH_S) -> None:
        if not self._queue:
            return  # somebody caught up while the task stood back
        lag_s = max(self._clock.monotonic_s() - self._queue[0][1], 0.0)
        self._tally.note_lag(lag_s)
        deadline_s = perf_counter() + min(max(lag_s * BATCH_PER_LAG, least_s), MOST_BATCH_S)
        while self._queue:
            parsing, at_s, note, size = self._queue.popleft()
            self.queued_bytes -= size
            for event in parsing.take(note, at_s):
                self._observe(event)
            if parsing.ended:
                self._under_way.pop(parsing, None)
            else:
                self._under_way[parsing] = None
            if perf_counter() >= deadline_s:
                return


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
