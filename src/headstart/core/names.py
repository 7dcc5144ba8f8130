"""The name that a tool has among all servers' tools.

A merged name is `server__tool`, within what model APIs accept: letters, digits, `_` and
`-`, at most 64 of them. What does not fit is cut and marked with a digest of the whole,
so the same server and tool have the same name in every session and after every restart.
"""

from __future__ import annotations

import hashlib
import re

__all__ = ["MERGED_NAME_LIMIT", "distinct_merged_name", "merged_name"]

MERGED_NAME_LIMIT = 64
"""Characters; the longest tool name that all common model APIs take."""

_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_MARK_DIGITS = 8


def merged_name(server: str, tool: str) -> str:
    """Return the name of `tool` in the view that merges all servers.

    >>> merged_name("git", "git_status"), merged_name("my.server", "a/b")
    ('git__git_status', 'my_server__a_b')
    >>> len(merged_name("server", "x" * 100))
    64
    """
    name = _UNFIT.sub("_", f"{server}__{tool}")
    return name if len(name) <= MERGED_NAME_LIMIT else distinct_merged_name(server, tool)


def distinct_merged_name(server: str, tool: str) -> str:
    """Return the name with its digest, for where the plain one does not fit or is taken.

    >>> distinct_merged_name("git", "git.status")
    'git__git_status_97b4cc07'
    """
    mark = hashlib.blake2b(f"{server}\x1f{tool}".encode("utf-8", "surrogatepass"), digest_size=_MARK_DIGITS // 2)
    head = _UNFIT.sub("_", f"{server}__{tool}")[: MERGED_NAME_LIMIT - _MARK_DIGITS - 1]
    return f"{head}_{mark.hexdigest()}"
