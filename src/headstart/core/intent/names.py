"""From a tool's name as a model wrote it to the server that has the tool.

A server's `read` reaches the model under many names: `files__read` from our merged view,
`mcp__files__read` or `mcp__headstart__files__read` from clients that put their own
prefix before it, `files.read`, `files-read` or `files_read` from those that join
otherwise, plain `read` from `/mcp/files`. Names are tried from the strictest reading to
the loosest, and the first reading that gives an answer decides:

1. the merged name exactly (also a shortened one), then with leading `x__` parts removed;
2. server and tool joined by anything, letter case and punctuation ignored, likewise;
3. a plain tool name, exactly;
4. a plain tool name behind a prefix that we do not know (the client's own name for a
   server): believed for certain only if everything offered under that prefix is a tool
   of one server.

A plain name that several servers have means the one of them whose tools were offered, if
that is a single one; else it means nothing. A plain name is somebody else's tool (a
client's own `fetch`) if ours was offered under a qualified name.

The table is a dict of names, so hostile names cost a bounded number of look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from headstart.core.names import distinct_merged_name, merged_name
from headstart.ids import ResourceId

__all__ = ["LONGEST_NAME", "ResolvedTool", "ToolNames"]

LONGEST_NAME = 256
"""Characters; longer names are nobody's."""

_MOST_PREFIXES = 4
_UNSPOKEN = re.compile(r"[\W_]+")
_CLIENT_WORDS = frozenset({"default_api", "functions", "mcp", "tool", "tools"})
"""What clients and models put before a name with nothing but a `.` or `_` between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTool:
    """Where a written name leads.

    Attributes:
        tool: The server's own name of it.
        certain: Only this server can be meant.
    """

    resource: ResourceId
    tool: str
    certain: bool = True


_Entry = tuple[ResourceId, str]


class ToolNames:
    """All tools of a set of servers, by every name that a model may use.

    >>> names = ToolNames({ResourceId("git"): ("git_log", "git_status"), ResourceId("files"): ("read",)})
    >>> names.resolve("mcp__git__git_log")
    ResolvedTool(resource='git', tool='git_log', certain=True)
    >>> names.resolve("files.read").tool, names.resolve("no_such_tool")
    ('read', None)
    """

    def __init__(self, tools: Mapping[ResourceId, tuple[str, ...]]) -> None:
        self._tools = {resource: frozenset(names) for resource, names in tools.items()}
        self._merged: dict[str, set[_Entry]] = {}
        self._loose: dict[str, set[_Entry]] = {}
        self._plain: dict[str, set[_Entry]] = {}
        for resource, names in tools.items():
            for tool in names:
                self._enter(resource, tool)
        self._offered = lru_cache(maxsize=64)(self._read_offer)

    def _enter(self, resource: ResourceId, tool: str) -> None:
        entry = (resource, tool)
        for name in (f"{resource}__{tool}", merged_name(resource, tool), distinct_merged_name(resource, tool)):
            self._merged.setdefault(name, set()).add(entry)
        if _loosen(tool):
            self._loose.setdefault(_loosen(f"{resource}_{tool}"), set()).add(entry)
        self._plain.setdefault(tool, set()).add(entry)

    def resolve(self, written: str, *, offered: tuple[str, ...] = ()) -> ResolvedTool | None:
        """Return the tool that a complete name means, or None if that cannot be told.

        Args:
            written: As in the tool call.
            offered: All names that the model was offered.
        """
        if not 0 < len(written) <= LONGEST_NAME:
            return None
        entry = self._qualified(written)
        if entry is not None:
            return ResolvedTool(resource=entry[0], tool=entry[1])
        return self._resolve_plain(written, offered) or self._resolve_aliased(written, offered)

    def _qualified(self, written: str) -> _Entry | None:
        """Read a name that holds its server's; None if no reading has one answer."""
        for table, readings in ((self._merged, _without_prefixes(written)), (self._loose, _loose_readings(written))):
            for name in readings:
                entries = table.get(name)
                if entries:
                    return next(iter(entries)) if len(entries) == 1 else None
        return None

    def _resolve_plain(self, written: str, offered: tuple[str, ...]) -> ResolvedTool | None:
        entries = self._plain.get(written)
        if not entries:
            return None
        offer = self._offered(offered)
        ours = entries & offer.qualified  # tools that have another, qualified name in this offer
        meant = entries - ours if written in offer.names else ours or entries
        if len(meant) > 1:
            meant = {entry for entry in meant if entry[0] in offer.servers}
        if len(meant) != 1:
            return None
        resource, tool = next(iter(meant))
        return ResolvedTool(resource=resource, tool=tool, certain=self._is_offered(resource, offer))

    def _is_offered(self, resource: ResourceId, offer: _Offer) -> bool:
        """Whether plain names are this server's own: most of its tools are in the offer (or no offer is known)."""
        tools = self._tools[resource]
        theirs = sum(tool in offer.names or (resource, tool) in offer.qualified for tool in tools)
        return not offer.names or 2 * theirs >= len(tools)

    def _resolve_aliased(self, written: str, offered: tuple[str, ...]) -> ResolvedTool | None:
        for rest in _without_prefixes(written):
            entries = self._plain.get(rest)
            if rest == written or not entries:
                continue
            alias = written.removesuffix(rest)
            tails = {name.removeprefix(alias) for name in offered if name.startswith(alias)}
            fitting = [entry for entry in entries if tails <= self._tools[entry[0]]]
            if len(fitting) != 1:
                return None
            return ResolvedTool(resource=fitting[0][0], tool=fitting[0][1], certain=bool(tails))
        return None

    def _read_offer(self, offered: tuple[str, ...]) -> _Offer:
        qualified: set[_Entry] = set()
        servers: set[ResourceId] = set()
        for name in offered:
            if len(name) > LONGEST_NAME:
                continue
            entry = self._qualified(name)
            owners = self._plain.get(name, set[_Entry]()) if entry is None else {entry}
            if entry is not None:
                qualified.add(entry)
            if len(owners) == 1:
                servers.add(next(iter(owners))[0])
        return _Offer(names=frozenset(offered), qualified=frozenset(qualified), servers=frozenset(servers))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offer:
    """What a list of offered names says.

    Attributes:
        qualified: Our tools that were offered under a name that holds their server's.
        servers: Servers of which at least one tool was offered beyond doubt.
    """

    names: frozenset[str]
    qualified: frozenset[_Entry]
    servers: frozenset[ResourceId]


def _without_prefixes(name: str) -> Iterator[str]:
    """Yield a name, then what is left as leading `x__` parts are removed, a few at most."""
    yield name
    for _ in range(_MOST_PREFIXES):
        _, found, name = name.partition("__")
        if not found or not name:
            return
        yield name


def _loose_readings(name: str) -> Iterator[str]:
    """Yield the loose forms of a name, with and without what clients put before it."""
    for rest in _without_prefixes(name):
        loose = _loosen(rest)
        yield loose
        for word in _CLIENT_WORDS:
            if loose.startswith(f"{word}_"):
                yield loose.removeprefix(f"{word}_")


def _loosen(name: str) -> str:
    return _UNSPOKEN.sub("_", name.casefold()).strip("_")
