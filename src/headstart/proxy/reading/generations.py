"""The copies' way: from the forwarding path into a bounded queue, and out as model events.

Forwarding only appends to a queue and wakes one task. That task first stands back for five
milliseconds, so that bytes on their way pass before anything is parsed, then reads what has
gathered for about one, and so on: parsing comes in batches and takes a bounded share of
the event loop. The batch grows with the lag, a twentieth of it, so that the share follows the
load: a burst of requests is forwarded first and read after, a steady stream is read a few
milliseconds late.

The bound is in bytes. When it is reached, the generation whose bytes do not
fit is dropped from reading: it ends UNREADABLE, and forwarding never waits.

The invariant: every generation that was started ends exactly once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

from headstart.clock import Clock
from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, ModelEvent
from headstart.ids import GenerationId, IdSource, PrincipalId, SessionId
from headstart.proxy.formats import RequestFacts, ResponseReader, Unreadable, WireFormat
from headstart.proxy.headers import Header, value_of
from headstart.proxy.reading.decoding import CannotDecode, Decoder, decoder_for
from headstart.proxy.statistics import Tally

__all__ = ["GenerationReading", "ModelReader", "ReadingLimits"]

_log = logging.getLogger(__name__)

PAUSE_S = 0.005
LEAST_BATCH_S = 0.001
MOST_BATCH_S = 0.005
BATCH_PER_LAG = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How much is read.

    Attributes:
        request_bytes: A larger request body is forwarded but not read.
        response_bytes: A response's plain text, likewise.
        queued_bytes: Copies that wait, of all generations together.
    """

    request_bytes: int = 32 * 1024 * 1024
    response_bytes: int = 128 * 1024 * 1024
    queued_bytes: int = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, whole.

    Attributes:
        body: Its body as it came, None where it was too large to copy.
    """

    session: SessionId | None
    principal: PrincipalId
    hints: tuple[str, ...]
    body: bytes | None = field(repr=False)
    content_encoding: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A response's head."""

    status: int
    content_type: bytes
    content_encoding: bytes


_Note = Asked | Answered | bytes | GenerationOutcome
"""What forwarding tells; bytes are of the response's body."""


class GenerationReading:
    """One generation, seen from the forwarding path; every method returns at once."""

    __slots__ = ("_asked", "_at_s", "_body", "_body_bytes", "_dropped", "_parsing", "_reader")

    def __init__(self, reader: ModelReader, parsing: _Parsing, at_s: float) -> None:
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
        self._body_bytes += len(data)
        if self._body_bytes > self._reader.limits.request_bytes:
            self._body = None
        else:
            self._body.append(data)

    def request_complete(self, *, session: SessionId | None, principal: PrincipalId, headers: Iterable[Header]) -> None:
        """The request is whole: the generation starts."""
        headers = tuple(headers)
        body, self._body = self._body, None
        self._asked = True
        asked = Asked(
            session=session,
            principal=principal,
            hints=tuple(_header_hints(headers)),
            body=None if body is None else b"".join(body),
            content_encoding=value_of(headers, b"content-encoding") or b"",
        )
        self._put(self._at_s, asked, self._body_bytes)

    def response_started(self, at_s: float, *, status: int, headers: Iterable[Header]) -> None:
        headers = tuple(headers)
        answered = Answered(
            status=status,
            content_type=value_of(headers, b"content-type") or b"",
            content_encoding=value_of(headers, b"content-encoding") or b"",
        )
        self._put(at_s, answered, 0)

    def response_bytes(self, at_s: float, data: bytes) -> None:
        if not self._dropped:
            self._put(at_s, data, len(data))

    def ended(self, at_s: float, outcome: GenerationOutcome) -> None:
        """The exchange is over; COMPLETED means that the body came to its proper end."""
        if self._asked:
            self._reader.put(self._parsing, at_s, outcome, 0)

    def _put(self, at_s: float, note: _Note, size: int) -> None:
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
        self._queue: deque[tuple[_Parsing, float, _Note, int]] = deque()
        self._under_way: dict[_Parsing, None] = {}
        self._wake = asyncio.Event()
        self.queued_bytes = 0

    def open(self, wire_format: WireFormat, *, route: str, at_s: float) -> GenerationReading:
        """Begin to read a generation whose request came in at `at_s`."""
        generation = GenerationId(self._ids.new("gen"))
        parsing = _Parsing(wire_format, generation, route, self.limits, self._tally)
        return GenerationReading(self, parsing, at_s)

    def has_room(self, size: int) -> bool:
        return self.queued_bytes + size <= self.limits.queued_bytes

    def put(self, parsing: _Parsing, at_s: float, note: _Note, size: int) -> None:
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

    def _read_batch(self) -> None:
        lag_s = max(self._clock.monotonic_s() - self._queue[0][1], 0.0)
        self._tally.note_lag(lag_s)
        deadline_s = perf_counter() + min(max(lag_s * BATCH_PER_LAG, LEAST_BATCH_S), MOST_BATCH_S)
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


class _Parsing:
    """One generation, seen from the reading task."""

    def __init__(
        self, wire_format: WireFormat, generation: GenerationId, route: str, limits: ReadingLimits, tally: Tally
    ) -> None:
        self._format = wire_format
        self._generation = generation
        self._route = route
        self._limits = limits
        self._tally = tally
        self._decoder: Decoder | None = None
        self._response: ResponseReader | None = None
        self._failed_status = False
        self.ended = False

    def take(self, note: _Note, at_s: float) -> Iterable[ModelEvent]:
        """Turn what forwarding told into events; whatever goes wrong ends the generation UNREADABLE."""
        if self.ended:
            return ()
        try:
            return self._read(note, at_s)
        except (Unreadable, CannotDecode) as exc:
            return self._give_up(at_s, str(exc))
        except Exception:  # noqa: BLE001 - supervises: one generation that trips the parser must not end the reading of others
            _log.exception("%s: reading failed", self._generation)
            return self._give_up(at_s, "the parser failed")

    def _read(self, note: _Note, at_s: float) -> Iterable[ModelEvent]:
        match note:
            case bytes():
                return self._read_body(note, at_s)
            case Asked():
                return (self._started(note, at_s),)
            case Answered():
                self._read_head(note)
                return ()
            case GenerationOutcome():
                return self._read_end(note, at_s)

    def _started(self, asked: Asked, at_s: float) -> ModelEvent:
        facts = self._facts(asked)
        return GenerationStarted(
            at_s=at_s,
            generation=self._generation,
            principal=asked.principal,
            session=asked.session,
            hints=asked.hints + facts.hints,
            prefix=facts.prefix,
            opening=facts.opening,
            model=facts.model,
            text=facts.text,
            offered_tools=facts.offered_tools,
            answered_calls=facts.answered_calls,
            turn=facts.turn,
        )

    def _facts(self, asked: Asked) -> RequestFacts:
        """Read the request; one that cannot be read still starts a generation, of which nothing is known."""
        if asked.body is None:
            self._tally.count_unread(self._route, "request too large to read")
            return RequestFacts()
        try:
            decoder = decoder_for(asked.content_encoding, max_bytes=self._limits.request_bytes)
            return self._format.read_request(decoder.decode(asked.body))
        except (Unreadable, CannotDecode):
            self._tally.count_unread(self._route, "request not readable")
            return RequestFacts()

    def _read_head(self, head: Answered) -> None:
        if head.status >= 400:
            self._failed_status = True
            return
        content_type = head.content_type.partition(b";")[0].strip().lower()
        if content_type not in (b"text/event-stream", b"application/json"):
            raise Unreadable(f"content-type {content_type.decode('latin-1')!r} is not read")
        self._decoder = decoder_for(head.content_encoding, max_bytes=self._limits.response_bytes)
        self._response = self._format.response_reader(self._generation, streamed=content_type == b"text/event-stream")

    def _read_body(self, data: bytes, at_s: float) -> Iterable[ModelEvent]:
        if self._response is None or self._decoder is None:
            return ()
        events = self._response.feed(self._decoder.decode(data), at_s)
        if self._response.outcome is None:
            return events
        return (*events, self._end(self._response.outcome, at_s))

    def _read_end(self, outcome: GenerationOutcome, at_s: float) -> Iterable[ModelEvent]:
        if outcome is GenerationOutcome.UNREADABLE:
            return self._give_up(at_s, "reading fell behind")
        if self._failed_status and outcome is GenerationOutcome.COMPLETED:
            outcome = GenerationOutcome.UPSTREAM_FAILED
        if outcome is not GenerationOutcome.COMPLETED or self._response is None:
            return (self._end(outcome, at_s),)
        return (*self._response.finish(at_s), self._end(outcome, at_s))

    def _give_up(self, at_s: float, reason: str) -> Iterable[ModelEvent]:
        self._tally.count_unread(self._route, reason)
        return (self._end(GenerationOutcome.UNREADABLE, at_s),)

    def _end(self, outcome: GenerationOutcome, at_s: float) -> ModelEvent:
        self.ended = True
        if outcome is not GenerationOutcome.UNREADABLE:
            self._tally.read += 1
        tokens = None if self._response is None else self._response.output_tokens
        self._response = self._decoder = None
        return GenerationEnded(at_s=at_s, generation=self._generation, outcome=outcome, output_tokens=tokens)


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
