"""A recorded step as a timed series of deltas. Pure.

Tokens are pieces of about four characters, always cut at the same places. A delta leaves
when its *last* token is there: a tool's name is several tokens long, but servers announce
it whole. Delta k is due `ttft_s + k * tpot_s` after the request came in, counted from the
request and not from the delta before, so lateness never adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headstart.bench.replay_model.recordings import RecordedStep
from headstart.ids import IdSource

__all__ = ["Delta", "Pace", "message_of", "output_tokens", "play", "tokens"]

TOKEN_CHARS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast the model writes.

    Attributes:
        ttft_s: Seconds from the request to the first token.
        tpot_s: Seconds from one token to the next.
    """

    ttft_s: float = 0.0
    tpot_s: float = 0.0

    def due_s(self, token: int) -> float:
        """Seconds after the request at which token number `token` (from 0) is written."""
        return self.ttft_s + token * self.tpot_s


@dataclass(frozen=True, slots=True)
class Delta:
    """One chunk: its content, and the number of the token that completes it."""

    token: int
    content: dict[str, Any]


def tokens(text: str) -> list[str]:
    """Cut text into its tokens.

    >>> tokens("Let me look")
    ['Let ', 'me l', 'ook']
    """
    return [text[start : start + TOKEN_CHARS] for start in range(0, len(text), TOKEN_CHARS)]


def play(step: RecordedStep, ids: IdSource) -> Iterator[Delta]:
    """Yield the step's deltas in the order in which a model writes them."""
    token = step.hidden_tokens
    for field, text in (("reasoning_content", step.reasoning), ("content", step.text)):
        for piece in tokens(text):
            yield Delta(token, {field: piece})
            token += 1
    for index, call in enumerate(step.calls):
        token += len(tokens(call.name)) - 1
        opening = {"name": call.name, "arguments": ""}
        wire_id = call.id or ids.new("call")
        yield Delta(token, {"tool_calls": [{"index": index, "id": wire_id, "type": "function", "function": opening}]})
        token += 1
        for piece in tokens(call.arguments_text):
            yield Delta(token, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            token += 1


def output_tokens(step: RecordedStep) -> int:
    """Count the step's tokens, hidden ones included."""
    written = (step.reasoning, step.text, *(text for call in step.calls for text in (call.name, call.arguments_text)))
    return step.hidden_tokens + sum(len(tokens(text)) for text in written)


def message_of(step: RecordedStep, ids: IdSource) -> dict[str, Any]:
    """Return the whole assistant message, as a response that is not streamed holds it."""
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = [
            {
                "id": call.id or ids.new("call"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for call in step.calls
        ]
    return message
