"""What a wire format has to be able to do. Pure: bytes in, words of `core.stream` out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.core.stream import GenerationOutcome, ModelEvent
from headstart.ids import GenerationId

__all__ = ["RequestFacts", "ResponseReader", "Unreadable", "WireFormat"]


class Unreadable(ValueError):
    """The bytes are not what the format says; they were passed on all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a request says; the fields of `GenerationStarted` that come from its body."""

    hints: tuple[str, ...] = ()
    prefix: str = ""
    opening: str = ""
    model: str = ""
    text: str = ""
    offered_tools: tuple[str, ...] = ()
    answered_calls: tuple[str, ...] = ()
    turn: int = 0


class ResponseReader(Protocol):
    """Reads one response, chunk by chunk."""

    @property
    def outcome(self) -> GenerationOutcome | None:
        """How the generation ended, once the format itself has said so."""
        ...

    @property
    def output_tokens(self) -> int | None:
        """As the upstream reported them."""
        ...

    def feed(self, data: bytes, at_s: float) -> Sequence[ModelEvent]:
        """Read the next plain (decoded) bytes.

        Raises:
            Unreadable: They are not in this format.
        """
        ...

    def finish(self, at_s: float) -> Sequence[ModelEvent]:
        """The body came to its proper end: return what was still open.

        Raises:
            Unreadable: What came is no whole response.
        """
        ...


class WireFormat(Protocol):
    """One provider's way of talking."""

    def matches(self, method: str, path: str) -> bool:
        """Say whether a request is a generation in this format; `path` is what follows `/v1`."""
        ...

    def read_request(self, body: bytes) -> RequestFacts:
        """Read a request's plain body.

        Raises:
            Unreadable: It is not in this format.
        """
        ...

    def response_reader(self, generation: GenerationId, *, streamed: bool) -> ResponseReader:
        """Return a reader for a successful response, sent as events or as one object."""
        ...
