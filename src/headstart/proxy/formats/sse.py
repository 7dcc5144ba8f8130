"""Server-sent events, read incrementally by the specification (WHATWG HTML §9.2.6).

Works on bytes: line ends are ASCII, so a chunk may end anywhere, also inside a UTF-8
sequence or between CR and LF. An event that no blank line ended is never reported.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SseEvent", "SseParser", "SseTooLong"]

LINE_BYTES = 64
"""What keeping a data line takes beside its text."""
BOM = b"\xef\xbb\xbf"


class SseTooLong(ValueError):
    """An event is larger than anything a model sends."""


class SseEvent(NamedTuple):
    """One event: its type (b"" for the default, `message`) and its data lines joined by LF."""

    type: bytes
    data: bytes


class SseParser:
    r"""Turns chunks into events.

    >>> parser = SseParser()
    >>> parser.feed(b'data: one\r')
    []
    >>> parser.feed(b'\n\r\n')
    [SseEvent(type=b'', data=b'one')]
    """

    def __init__(self, *, max_event_bytes: int = 16 * 1024 * 1024) -> None:
        self._max_event_bytes = max_event_bytes
        self._line: list[bytes] = []
        self._held_bytes = 0
        self._type = b""
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._skip_line_feed = False
        self._at_start = True
        self._between_events = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next chunk; return the events that it completes.

        Raises:
            SseTooLong: An event grows beyond the limit.
        """
        if self._between_events and _is_one_plain_event(chunk):
            self._at_start = False
            return [SseEvent(b"", chunk[6:-2])]
        return self._feed_any(chunk)

    def _feed_any(self, chunk: bytes) -> list[SseEvent]:
        self._between_events = False
        chunk = self._with_plain_line_ends(chunk)
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        if not rest:
            return []
        lines = [b"".join(self._line), *rest]
        self._line = [lines.pop()]
        events = [event for event in map(self._take_line, lines) if event is not None]
        self._held_bytes = len(self._line[0]) + self._data_bytes
        self._between_events = not (self._held_bytes or self._type or self._skip_line_feed)
        return events

    def _with_plain_line_ends(self, chunk: bytes) -> bytes:
        """Make every line end LF, remembering a CR at the chunk's end that an LF may still follow."""
        if self._skip_line_feed and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_line_feed = False
        if b"\r" not in chunk:
            return chunk
        self._skip_line_feed = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _hold(self, part: bytes) -> None:
        self._line.append(part)
        self._held_bytes += len(part)
        if self._held_bytes > self._max_event_bytes:
            raise SseTooLong(f"an event is longer than {self._max_event_bytes} bytes")

    def _take_line(self, line: bytes) -> SseEvent | None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._data_bytes += len(value) + LINE_BYTES
        elif name == b"event":
            self._type = value
        return None  # comments (an empty name), `id`, `retry` and unknown fields say nothing about the model

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._type, b"\n".join(self._data)) if self._data else None
        self._type, self._data, self._data_bytes = b"", [], 0
        return event


def _is_one_plain_event(chunk: bytes) -> bool:
    """Say whether a chunk is what model servers nearly always write: one `data` line and a blank one."""
    return chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and chunk.count(b"\n") == 2 and b"\r" not in chunk
