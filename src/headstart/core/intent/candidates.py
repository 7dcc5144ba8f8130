"""What a router says: this server, this likely, for this reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from headstart.core.bets import PredictorName
from headstart.core.events import ResourceRegistered
from headstart.core.stream import ModelEvent
from headstart.ids import GenerationId, PrincipalId, ResourceId, SessionId

__all__ = ["KEYWORD", "KEYWORD_HINT", "KEYWORD_REQUEST", "KEYWORD_RESULTS", "TOOL_NAME", "Candidate", "IntentRouter"]

TOOL_NAME: Final = PredictorName("tool-name")
"""The model wrote a tool call's name."""
KEYWORD: Final = PredictorName("keyword")
"""Keywords; the last one needed was in the model's own output."""
KEYWORD_HINT: Final = PredictorName("keyword-hint")
"""Nearly as many keywords as are needed, in the user's words or the model's own output."""
KEYWORD_REQUEST: Final = PredictorName("keyword-request")
"""Keywords; the user's words were enough."""
KEYWORD_RESULTS: Final = PredictorName("keyword-results")
"""Keywords; found in a request that brings tool results back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A server that the current step is likely to call.

    Attributes:
        predictor: Who says so; calibration is kept per predictor, so one router may use
            several names for evidence of different worth.
        probability: The router's own, in [0, 1].
        certain: The tool's name was seen and can only mean this server.
        tool: The server's own name of the tool, "" where only the server is known.
        evidence: What was seen, in the order in which it was seen.
    """

    at_s: float
    generation: GenerationId
    principal: PrincipalId
    session: SessionId | None
    resource: ResourceId
    predictor: PredictorName
    probability: float
    certain: bool = False
    tool: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def because(self) -> str:
        """The evidence for people: `keywords: pivot table, workbook`."""
        kind = "tool name" if self.predictor == TOOL_NAME else "keywords"
        return f"{kind}: {', '.join(self.evidence)}"


class IntentRouter(Protocol):
    """Reads model events, names candidates for the current step. Pure and bounded.

    The seam for every kind of routing. A router that is too slow for each token (a
    semantic one) evaluates by the events' own time, at most about once a second for a
    stream, and returns nothing in between.
    """

    def register(self, event: ResourceRegistered) -> None:
        """A server exists, or more is known of it. Cheap: what is derived is derived when needed."""
        ...

    def observe(self, event: ModelEvent) -> tuple[Candidate, ...]:
        """Take a model event; return the servers that it made credible, most often none."""
        ...

    def confirm(self, *, generation: GenerationId, resource: ResourceId) -> None:
        """The generation did lead to a call of `resource`: learn from its text, if this router learns."""
        ...
