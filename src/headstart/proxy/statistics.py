"""What the proxy did, counted."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

__all__ = ["ProxyStatistics", "Tally", "UnreadCount", "route_label"]

MAX_LABELS = 64
"""Paths are the client's to choose; beyond this many, they are counted together."""

_WORD = re.compile("[a-z_]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadCount:
    """Responses that were passed on without being read.

    Attributes:
        route: Method and path after `/v1`, ids left out (`POST /responses`).
        reason: Why.
    """

    route: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStatistics:
    """A moment's counts, since the proxy was opened.

    Attributes:
        requests: All that came in, refused ones too.
        read: Generations that were read to their end.
        unread: What was passed on but not read, by route and reason.
        bytes_up / bytes_down: Body bytes to and from upstreams.
        active_streams: Exchanges under way.
        parse_lag_s / parse_lag_max_s: How far reading is behind forwarding: at the last
            batch, and at worst.
        queued_bytes: Copies waiting to be read.
    """

    requests: int
    read: int
    unread: tuple[UnreadCount, ...]
    bytes_up: int
    bytes_down: int
    active_streams: int
    parse_lag_s: float
    parse_lag_max_s: float
    queued_bytes: int


class Tally:
    """The counters behind `ProxyStatistics`."""

    def __init__(self) -> None:
        self.requests = 0
        self.read = 0
        self.bytes_up = 0
        self.bytes_down = 0
        self.active_streams = 0
        self.parse_lag_s = 0.0
        self.parse_lag_max_s = 0.0
        self._unread: Counter[tuple[str, str]] = Counter()

    def count_unread(self, route: str, reason: str) -> None:
        key = (route, reason)
        if key not in self._unread and len(self._unread) >= MAX_LABELS:
            key = ("other", "other")
        self._unread[key] += 1

    def note_lag(self, lag_s: float) -> None:
        self.parse_lag_s = lag_s
        self.parse_lag_max_s = max(self.parse_lag_max_s, lag_s)

    def snapshot(self, *, queued_bytes: int) -> ProxyStatistics:
        unread = tuple(
            UnreadCount(route=route, reason=reason, count=count)
            for (route, reason), count in sorted(self._unread.items())
        )
        return ProxyStatistics(
            requests=self.requests,
            read=self.read,
            unread=unread,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            active_streams=self.active_streams,
            parse_lag_s=self.parse_lag_s,
            parse_lag_max_s=self.parse_lag_max_s,
            queued_bytes=queued_bytes,
        )


def route_label(method: str, path: str) -> str:
    """Name a route without what clients put into it.

    >>> route_label("GET", "/files/file-123/content")
    'GET /files/…/content'
    """
    kept = [part if _WORD.fullmatch(part) else "…" for part in path.strip("/").split("/")[:3]]
    return f"{method} /" + "/".join(kept)
