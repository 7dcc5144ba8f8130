"""What a model says, in one vocabulary for all wire formats.

The proxy's parsers turn OpenAI chat chunks (and later Responses and Anthropic events)
into these; nothing behind the proxy knows a wire format. Every event names its
generation and the time at which its bytes were *seen* by the proxy, in seconds on the
service's monotonic clock.

A generation's events come in this order::

    GenerationStarted (TextArrived | ToolCallOpened | ToolCallArgumentsArrived | ToolCallClosed)* GenerationEnded

`GenerationEnded` always comes, also when the upstream failed or the client went away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headstart.ids import GenerationId, PrincipalId, SessionId

__all__ = [
    "GenerationEnded",
    "GenerationOutcome",
    "GenerationStarted",
    "ModelEvent",
    "TextArrived",
    "TextKind",
    "ToolCallArgumentsArrived",
    "ToolCallClosed",
    "ToolCallOpened",
]


class TextKind(Enum):
    """Who a piece of text is for."""

    VISIBLE = "visible"
    REASONING = "reasoning"


class GenerationOutcome(Enum):
    """How a generation came to its end."""

    COMPLETED = "completed"
    UPSTREAM_FAILED = "upstream_failed"
    CLIENT_LEFT = "client_left"
    UNREADABLE = "unreadable"
    """The bytes were passed on faithfully, but could not be parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationStarted:
    """A request for a model response entered the proxy.

    Attributes:
        session: From the URL or the header; None where the request names none.
        hints: Ids that the client sent of its own accord (session headers, `user`,
            `metadata`, `previous_response_id`), as `name=value`; they join
            conversations to each other, not to tool sessions.
        prefix: Digest of the conversation up to and including its last assistant
            message, "" for a first turn. A hint only: two conversations may share it.
        opening: Digest of the conversation's system prompt and first user message.
        text: The new text since the last assistant message (the user's words, tool
            results), at most 16,384 characters, newest kept.
        offered_tools: The tool names offered to the model, in order.
        answered_calls: The wire ids of tool calls whose results are in this request's
            new messages, in order.
        turn: How many assistant messages came before.
    """

    at_s: float
    generation: GenerationId
    principal: PrincipalId
    session: SessionId | None = None
    hints: tuple[str, ...] = ()
    prefix: str = ""
    opening: str = ""
    model: str = ""
    text: str = ""
    offered_tools: tuple[str, ...] = ()
    answered_calls: tuple[str, ...] = ()
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextArrived:
    """Some output text arrived; a piece may end in the middle of a word."""

    at_s: float
    generation: GenerationId
    text: str
    kind: TextKind = TextKind.VISIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallOpened:
    """The model began to write a tool call and its name is known.

    Attributes:
        index: Its place among the generation's tool calls, from 0.
        wire_id: The id that the model gave it, "" if none.
        tool: The name as the model wrote it, still with any client's or gateway's prefix.
    """

    at_s: float
    generation: GenerationId
    index: int
    tool: str
    wire_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArgumentsArrived:
    """A piece of a tool call's arguments, JSON text as it is being written."""

    at_s: float
    generation: GenerationId
    index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallClosed:
    """A tool call is complete.

    Attributes:
        arguments: Canonical JSON text, or the raw text where it is not valid JSON.
    """

    at_s: float
    generation: GenerationId
    index: int
    tool: str
    arguments: str
    wire_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationEnded:
    """The response is over.

    Attributes:
        output_tokens: As reported by the upstream, else None.
    """

    at_s: float
    generation: GenerationId
    outcome: GenerationOutcome
    output_tokens: int | None = None


ModelEvent = (
    GenerationStarted | TextArrived | ToolCallOpened | ToolCallArgumentsArrived | ToolCallClosed | GenerationEnded
)
