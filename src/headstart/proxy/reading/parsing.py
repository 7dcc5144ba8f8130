"""One generation, from what forwarding told about it to model events.

Forwarding tells notes: the request once it is whole, the response's head, pieces of its
body, and how the exchange ended. Whatever goes wrong in between, the events of a
generation end with exactly one `GenerationEnded`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from headstart.core.stream import GenerationEnded, GenerationOutcome, GenerationStarted, ModelEvent
from headstart.ids import GenerationId, PrincipalId, SessionId
from headstart.proxy.formats import RequestFacts, ResponseReader, Unreadable, WireFormat
from headstart.proxy.reading.decoding import CannotDecode, Decoder, decoder_for
from headstart.proxy.statistics import Tally

__all__ = ["Answered", "Asked", "Note", "Parsing", "ReadingLimits"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How much is read.

    Attributes:
        request_bytes: A larger request body is forwarded but not read.
        response_bytes: A response's plain text, likewise.
        piece_bytes: More of a response at once is read in pieces of this size, so that none takes long.
        plain_piece_bytes: A piece that decompresses to more is not read: it is a bomb.
        queued_bytes: Copies that wait, of all generations together, and what it takes to keep them.
    """

    request_bytes: int = 32 * 1024 * 1024
    response_bytes: int = 128 * 1024 * 1024
    piece_bytes: int = 4 * 1024
    plain_piece_bytes: int = 256 * 1024
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


Note = Asked | Answered | bytes | GenerationOutcome
"""What forwarding tells; bytes are of the response's body."""


class Parsing:
    """One generation, being read."""

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
        self._plain_bytes = 0
        self._failed_status = False
        self.ended = False

    def take(self, note: Note, at_s: float) -> Iterable[ModelEvent]:
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

    def _read(self, note: Note, at_s: float) -> Iterable[ModelEvent]:
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
        limits = self._limits
        self._decoder = decoder_for(
            head.content_encoding, max_bytes=limits.response_bytes, at_once_bytes=limits.plain_piece_bytes
        )
        self._response = self._format.response_reader(self._generation, streamed=content_type == b"text/event-stream")

    def _read_body(self, data: bytes, at_s: float) -> Iterable[ModelEvent]:
        if self._response is None or self._decoder is None:
            return ()
        plain = self._decoder.decode(data)
        self._plain_bytes += len(plain)
        if self._plain_bytes > self._limits.response_bytes:
            raise Unreadable("response too large to read")
        events = self._response.feed(plain, at_s)
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
