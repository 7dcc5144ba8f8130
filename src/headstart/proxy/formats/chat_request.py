"""What a chat request says about its conversation.

Two digests place it: `opening` (system prompt and first user message) and `prefix`
(everything up to the last assistant message). They cover what the model reads and nothing
that clients vary between requests; both are hints, since conversations may begin alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from headstart.proxy.formats.contract import RequestFacts
from headstart.proxy.formats.json_values import JsonMap, as_list, as_map, as_text, read_object

__all__ = ["content_text", "read_chat_request"]

MAX_TEXT_CHARS = 16_384
MAX_HINTS = 16
MAX_HINT_CHARS = 256

_HINT_FIELDS = ("user", "safety_identifier", "previous_response_id", "prompt_cache_key", "session_id", "conversation")
_ID_WORDS = ("session", "conversation", "thread", "trajectory", "rollout", "run", "user")
"""Metadata is anybody's; only what its name says is an id is taken."""


def read_chat_request(body: bytes) -> RequestFacts:
    """Read a request's plain body.

    Raises:
        Unreadable: It is not a JSON object.
    """
    return _facts(read_object(body))


def _facts(request: JsonMap) -> RequestFacts:
    messages = [as_map(message) for message in as_list(request.get("messages"))]
    spoken = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    new_from = spoken[-1] + 1 if spoken else 0
    new = messages[new_from:]
    return RequestFacts(
        hints=tuple(_hints(request))[:MAX_HINTS],
        prefix=_digest(messages[:new_from]) if spoken else "",
        opening=_digest(_opening(messages)),
        model=as_text(request.get("model")),
        text=_newest_text(new),
        offered_tools=tuple(_offered_tools(request)),
        answered_calls=tuple(as_text(message["tool_call_id"]) for message in new if message.get("tool_call_id")),
        turn=len(spoken),
    )


def content_text(content: object) -> str:
    """Return the text of a message's `content`: a string, or parts of which some are text."""
    if isinstance(content, str):
        return content
    return "\n".join(filter(None, (as_text(as_map(part).get("text")) for part in as_list(content))))


def _newest_text(messages: Sequence[JsonMap]) -> str:
    text = "\n".join(filter(None, (content_text(message.get("content")) for message in messages)))
    return text[-MAX_TEXT_CHARS:]


def _opening(messages: Sequence[JsonMap]) -> Iterable[JsonMap]:
    for message in messages:
        yield message
        if message.get("role") == "user":
            return


def _offered_tools(request: JsonMap) -> Iterable[str]:
    for tool in map(as_map, as_list(request.get("tools"))):
        name = as_text(as_map(tool.get("function")).get("name")) or as_text(tool.get("name"))
        if name:
            yield name
    for function in map(as_map, as_list(request.get("functions"))):  # before `tools` there were these
        if name := as_text(function.get("name")):
            yield name


def _hints(request: JsonMap) -> Iterable[str]:
    for field in _HINT_FIELDS:
        value = request.get(field)
        if text := as_text(value) or as_text(as_map(value).get("id")):
            yield f"{field}={text}"[:MAX_HINT_CHARS]
    for name, value in as_map(request.get("metadata")).items():
        if isinstance(value, str | int) and any(word in name.lower() for word in _ID_WORDS):
            yield f"metadata.{name}={value}"[:MAX_HINT_CHARS]


def _digest(messages: Iterable[JsonMap]) -> str:
    """Digest what the model reads; in one piece, since a long conversation has thousands of parts."""
    text = "\x1e".join("\x1f".join(_read_by_the_model(message)) for message in messages)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read_by_the_model(message: JsonMap) -> Iterable[str]:
    yield as_text(message.get("role"))
    yield _as_written(message.get("content"))
    yield as_text(message.get("tool_call_id"))
    for call in map(as_map, as_list(message.get("tool_calls"))):
        function = as_map(call.get("function"))
        yield as_text(call.get("id"))
        yield as_text(function.get("name"))
        yield _as_written(function.get("arguments"))


def _as_written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
