"""What a chat response says, streamed or whole.

The providers differ in how they cut tool calls into deltas; these are told apart here:

- calls carry an `index`, or none (then a name opens a new call, and what has none goes on
  with the last); some give every call index 0 with its own id;
- the id and the name come first, or are repeated in each delta;
- arguments come in pieces, or whole, or as an object instead of text;
- before there were `tool_calls` there was one `function_call`.

A call is closed when another opens and its arguments are a whole JSON object by then, or
else when the model says that it has finished. A response that breaks off closes nothing.
Only choice 0 is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.core.actions import canonical_arguments
from headstart.core.stream import (
    GenerationOutcome,
    ModelEvent,
    TextArrived,
    TextKind,
    ToolCallArgumentsArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import GenerationId
from headstart.proxy.formats.contract import Unreadable
from headstart.proxy.formats.json_values import JsonMap, as_list, as_map, as_text, map_or_none, read_object
from headstart.proxy.formats.sse import SseParser, SseTooLong

__all__ = ["ChatStream", "WholeChat"]

MAX_WHOLE_BYTES = 32 * 1024 * 1024
MAX_CALLS = 1_024
_MAX_TRIED_BYTES = 4 * 1024 * 1024
"""Parsed in vain, of a response that seems to be whole again and again; beyond, its end is waited for."""
_LOOKED_AT = 16
"""Bytes at a response's end that may be white space behind its last brace."""


@dataclass(slots=True)
class _Call:
    index: int
    key: object
    """What deltas name it by: the wire's index, or its place."""
    wire_id: str = ""
    tool: str = ""
    pieces: list[str] = field(default_factory=list[str])
    opened: bool = False
    closed: bool = False

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


class _Message:
    """An assistant message as it grows: choice 0 of the response."""

    def __init__(self, generation: GenerationId) -> None:
        self._generation = generation
        self._calls: list[_Call] = []

    def grow(self, delta: JsonMap, at_s: float) -> Iterator[ModelEvent]:
        """Add a delta (or a whole message)."""
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        if reasoning:
            yield TextArrived(at_s=at_s, generation=self._generation, text=reasoning, kind=TextKind.REASONING)
        content = delta.get("content")
        if isinstance(content, str):
            if content:
                yield TextArrived(at_s=at_s, generation=self._generation, text=content)
        elif content:
            yield from self._parts(content, at_s)
        if delta.get("tool_calls"):
            for entry in as_list(delta["tool_calls"]):
                yield from self._call_delta(as_map(entry), at_s)
        elif delta.get("function_call"):
            yield from self._call_delta({"index": 0, "function": delta["function_call"]}, at_s)

    def close_calls(self, at_s: float) -> Iterator[ModelEvent]:
        """The model has finished: every call is what it is."""
        for call in self._calls:
            if call.opened and not call.closed:
                yield self._close(call, at_s)

    def _parts(self, content: object, at_s: float) -> Iterator[ModelEvent]:
        for part in map(as_map, as_list(content)):
            thought = _text(part.get("thinking"))
            if thought:
                yield TextArrived(at_s=at_s, generation=self._generation, text=thought, kind=TextKind.REASONING)
            if text := as_text(part.get("text")):
                yield TextArrived(at_s=at_s, generation=self._generation, text=text)

    def _call_delta(self, entry: JsonMap, at_s: float) -> Iterator[ModelEvent]:
        function = as_map(entry.get("function"))
        name = as_text(function.get("name"))
        call = self._find(entry, name)
        if call is None:
            yield from self._close_complete(at_s)
            call = self._add(entry)
        if call.closed:
            return
        call.wire_id = call.wire_id or as_text(entry.get("id"))
        piece = _arguments_text(function.get("arguments"))
        if piece:
            call.pieces.append(piece)
        if name and not call.opened:
            yield from self._open(call, name, at_s)
        elif piece and call.opened:
            yield self._arguments(call, piece, at_s)

    def _find(self, entry: JsonMap, name: str) -> _Call | None:
        """Return the call that a delta goes on with, or None if it begins one."""
        wire_id, index = as_text(entry.get("id")), entry.get("index")
        if not isinstance(index, int):
            last = self._calls[-1] if self._calls else None
            begins = name and not (wire_id and last is not None and last.wire_id == wire_id)
            return None if begins else last
        for call in reversed(self._calls):
            if call.key == index:
                another = name and wire_id and call.wire_id and wire_id != call.wire_id
                return None if another else call
        return None

    def _add(self, entry: JsonMap) -> _Call:
        if len(self._calls) >= MAX_CALLS:
            raise Unreadable(f"more than {MAX_CALLS} tool calls in one response")
        index = entry.get("index")
        call = _Call(index=len(self._calls), key=index if isinstance(index, int) else None)
        self._calls.append(call)
        return call

    def _open(self, call: _Call, name: str, at_s: float) -> Iterator[ModelEvent]:
        call.tool, call.opened = name, True
        yield ToolCallOpened(at_s=at_s, generation=self._generation, index=call.index, tool=name, wire_id=call.wire_id)
        if call.pieces:
            yield self._arguments(call, call.arguments, at_s)

    def _arguments(self, call: _Call, piece: str, at_s: float) -> ModelEvent:
        return ToolCallArgumentsArrived(at_s=at_s, generation=self._generation, index=call.index, text=piece)

    def _close_complete(self, at_s: float) -> Iterator[ModelEvent]:
        for call in self._calls:
            if call.opened and not call.closed and _object_or_none(call.arguments) is not None:
                yield self._close(call, at_s)

    def _close(self, call: _Call, at_s: float) -> ModelEvent:
        call.closed = True
        return ToolCallClosed(
            at_s=at_s,
            generation=self._generation,
            index=call.index,
            tool=call.tool,
            arguments=_canonical(call.arguments),
            wire_id=call.wire_id,
        )


class ChatStream:
    """A response as server-sent events, each a `chat.completion.chunk`."""

    def __init__(self, generation: GenerationId) -> None:
        self.outcome: GenerationOutcome | None = None
        self.output_tokens: int | None = None
        self._sse = SseParser()
        self._message = _Message(generation)
        self._anything = False

    def feed(self, data: bytes, at_s: float) -> Sequence[ModelEvent]:
        try:
            events = self._sse.feed(data)
        except SseTooLong as exc:
            raise Unreadable(str(exc)) from exc
        said: list[ModelEvent] = []
        for event in events:
            if self.outcome is None and event.data.strip():
                said.extend(self._chunk(event.data, at_s))
        return said

    def finish(self, at_s: float) -> Sequence[ModelEvent]:
        if not self._anything:
            raise Unreadable("the stream held no chunk")
        return list(self._message.close_calls(at_s))

    def _chunk(self, data: bytes, at_s: float) -> Iterator[ModelEvent]:
        if data.strip() == b"[DONE]":
            yield from self._message.close_calls(at_s)
            self.outcome = GenerationOutcome.COMPLETED
            return
        chunk = read_object(data)
        self._anything = True
        if chunk.get("error"):
            self.outcome = GenerationOutcome.UPSTREAM_FAILED
            return
        if chunk.get("usage"):
            self.output_tokens = _output_tokens(chunk)
        choice = _first_choice(chunk)
        if choice is None:
            return
        yield from self._message.grow(as_map(choice.get("delta")), at_s)
        if choice.get("finish_reason"):
            yield from self._message.close_calls(at_s)


class WholeChat:
    """A response as one JSON object."""

    def __init__(self, generation: GenerationId) -> None:
        self.outcome: GenerationOutcome | None = None
        self.output_tokens: int | None = None
        self._body = bytearray()
        self._tried_bytes = 0
        self._message = _Message(generation)

    def feed(self, data: bytes, at_s: float) -> Sequence[ModelEvent]:
        """Read the response as soon as it is whole: its client does not wait for the exchange's end either."""
        self._body += data
        if len(self._body) > MAX_WHOLE_BYTES:
            raise Unreadable(f"the response is larger than {MAX_WHOLE_BYTES} bytes")
        if self._tried_bytes > _MAX_TRIED_BYTES or not self._body[-_LOOKED_AT:].rstrip().endswith(b"}"):
            return ()
        self._tried_bytes += len(self._body)
        try:
            said = self.finish(at_s)
        except Unreadable:
            return ()  # not whole yet; if it never is, `finish` says so
        self.outcome = GenerationOutcome.COMPLETED
        return said

    def finish(self, at_s: float) -> Sequence[ModelEvent]:
        response = read_object(bytes(self._body))
        choice = _first_choice(response)
        if choice is None:
            raise Unreadable("the response has no choice")
        self.output_tokens = _output_tokens(response)
        message = as_map(choice.get("message"))
        calls = [{**as_map(call), "index": place} for place, call in enumerate(as_list(message.get("tool_calls")))]
        said = list(self._message.grow({**message, "tool_calls": calls}, at_s))
        said.extend(self._message.close_calls(at_s))
        return said


def _first_choice(response: JsonMap) -> JsonMap | None:
    for entry in as_list(response.get("choices")):
        choice = map_or_none(entry)
        if choice is not None and choice.get("index", 0) == 0:
            return choice
    return None


def _output_tokens(response: JsonMap) -> int | None:
    tokens = as_map(response.get("usage")).get("completion_tokens")
    return tokens if isinstance(tokens, int) else None


def _text(value: object) -> str:
    """Return text that is a string, or a list of parts with a `text` each."""
    if not value:
        return ""
    return as_text(value) or "".join(as_text(as_map(part).get("text")) for part in as_list(value))


def _arguments_text(value: Any) -> str:
    if isinstance(value, str) or value is None:
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _object_or_none(text: str) -> dict[str, Any] | None:
    try:
        return map_or_none(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _canonical(text: str) -> str:
    arguments = _object_or_none(text) if text.strip() else {}
    if arguments is None:
        return text
    try:
        return canonical_arguments(arguments)
    except ValueError:  # NaN and infinity are no JSON, but some models write them
        return text
