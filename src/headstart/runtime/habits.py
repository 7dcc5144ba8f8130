"""What servers do that they should not, though they work: told to the operator, once per server.

Nobody is told in a tool result: no call suffers from it. But it costs time or hides a fault,
and only the operator can change it.
"""

from __future__ import annotations

import logging
import signal

from headstart.config.model import ServerSettings
from headstart.ids import ResourceId

__all__ = ["Habits"]

SHOWN_CHARACTERS = 100

_log = logging.getLogger(__name__)


class Habits:
    """Which bad habits of which servers were told."""

    def __init__(self) -> None:
        self._told: set[tuple[ResourceId, str]] = set()

    def prints_on_stdout(self, server: ServerSettings, line: str) -> None:
        """Warn of a server that printed `line` where only MCP messages belong."""
        shown = line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
        self._tell(
            server,
            f"it prints on stdout what is no MCP message; such lines are skipped (the first: {shown!r})",
            cure="have it log to stderr or to a file, by its own settings or an update",
        )

    def outlives_stdin(self, server: ServerSettings, ended_by: int) -> None:
        """Warn of a server that went on after its stdin was closed, until it got this signal."""
        how = "and not at SIGTERM either: it was killed" if ended_by == signal.SIGKILL else "but at SIGTERM"
        self._tell(
            server,
            f"it did not end soon after its stdin was closed, {how}",
            cure="each stop of it takes longer, and it cannot save what it holds if it is killed: update it, or tell "
            "its author that MCP servers end with their stdin",
        )

    def _tell(self, server: ServerSettings, habit: str, *, cure: str) -> None:
        if (server.name, cure) not in self._told:
            self._told.add((server.name, cure))
            _log.warning("%s: %s. hint: %s", server.name, habit, cure)
