"""What is weaker here than a backend's best, in the order in which it is useful to hear it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["by_usefulness", "terse", "without_network"]


def by_usefulness(lines: Iterable[str]) -> list[str]:
    """Return the lines with those last whose only cure is to run the whole service as root.

    >>> by_usefulness(["own user: start as root", "no limits: delegate a group", "own user: start as root"])
    ['no limits: delegate a group', 'own user: start as root']
    """
    return sorted(dict.fromkeys(lines), key=lambda line: line.endswith(": start as root"))


def terse(lines: Iterable[str]) -> list[str]:
    """Return what is weaker, without the cures (`headstart doctor` and `init` have these).

    >>> terse(["no limits of cpu; others stand in: delegate a group"])
    ['no limits of cpu']
    """
    return [line.rpartition(": ")[0].partition(";")[0] or line for line in by_usefulness(lines)]


def without_network(servers: Sequence[str]) -> str:
    """Name the servers that reach nothing, with the cure; "" if there are none.

    >>> without_network(["git", "fetch"])
    'git, fetch (set network = "host" under [servers.NAME] in headstart.toml where a server needs it)'
    """
    cure = 'set network = "host" under [servers.NAME] in headstart.toml where a server needs it'
    return f"{', '.join(servers)} ({cure})" if servers else ""
