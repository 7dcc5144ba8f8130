"""The control group of one fork of a zygote, joined behind its back.

A fork is born into its zygote's group. Moving it takes 7 ms on a quiet machine, which
nobody should wait for: the server starts at once, and a worker thread moves it and what it
has started. Until then (a few milliseconds) the zygote's own limits hold.
"""

from __future__ import annotations

import logging
import threading

from headstart.backends.contract import Limits
from headstart.backends.local.cgroups import Groups
from headstart.backends.spawner.guest.processes import is_below

__all__ = ["ForkGroup"]

_log = logging.getLogger(__name__)


class ForkGroup:
    """Safe to use from several threads; every method may block for a moment."""

    def __init__(self, groups: Groups, name: str, limits: Limits, *, background: bool) -> None:
        self._groups = groups
        self._name = name
        self._limits = limits
        self._background = background
        self._removed = False
        self._changing = threading.Lock()

    def take_in(self, root: int, *, below: int) -> None:
        """Make the group and move `root` and everything below it there, unless it is removed already.

        Nothing is moved if `root` has not sprung from the process `below`: it has ended
        then, and its number is a stranger's.
        """
        with self._changing:
            if self._removed or not is_below(root, below):
                return
            try:
                self._groups.make(self._name, self._limits, background=self._background)
                self._groups.take_in(self._name, root)
            except OSError as error:
                _log.warning("a zygote's fork stays under its zygote's limits: %s", error)

    def raise_priority(self) -> None:
        with self._changing:
            self._background = False
            self._groups.raise_priority(self._name)

    def count_kills(self) -> int:
        """Return how often the kernel has killed for memory. Does not wait for the others."""
        return self._groups.kills_for_memory(self._name)

    def remove(self) -> None:
        with self._changing:
            self._removed = True
            self._groups.remove(self._name)
