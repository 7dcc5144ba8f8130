"""Holding a sandbox within the CPU that it may use until somebody needs it.

A bet that nobody has claimed may use what was reserved for it and no more (`core/waste.py`).
So one looks how much it has used, before it can have used up what is left: the less is left,
the sooner. Near its limit more is asked for; where there is none it stands still, with its
memory and all that it has done, until there is more, somebody claims it, or it is given up.

Nothing stops a process at a CPU-second of its tree's, so the last part of the allowance, what may
be used between two looks, is not handed out. Who looks late lets it use more by that.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final

import anyio

from headstart.backends.contract import RunningSandbox
from headstart.errors import BackendError

__all__ = ["Allowance"]

LOOK_S: Final = 0.025
"""Two looks are never closer together."""

ASK_AGAIN_S: Final = 1.0
"""While it stands still."""

_ASKED_AHEAD: Final = 2.5
"""More is asked for when so many looks are left."""

_MOST_CORES: Final = 4
"""A start that nobody waits for, at low priority, is not expected to keep more of them busy."""

_log = logging.getLogger(__name__)


class Allowance:
    """What a sandbox may use, changed from outside, kept by a task of its own.

    Args:
        cpu_s: CPU-seconds in all; None: what it needs.
        cores: How many it can keep busy; None: all there are.
        ask: Tells what it has used; may call `change`.
        may_stand: Whether it may be held still now.
        standing: Entered while it stands still.

    Attributes:
        holds: It stands still, or is about to.
    """

    def __init__(
        self,
        cpu_s: float | None,
        *,
        cores: float | None,
        ask: Callable[[RunningSandbox], Awaitable[None]],
        may_stand: Callable[[], bool],
        standing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._limit_s = cpu_s
        self._cores = min(cores or _MOST_CORES, len(os.sched_getaffinity(0)), _MOST_CORES)
        self._ask = ask
        self._may_stand = may_stand
        self._standing = standing
        self._changed = anyio.Event()
        self.holds = False

    def change(self, cpu_s: float | None) -> None:
        """Say anew how many CPU-seconds it may use in all; None: what it needs."""
        self._limit_s = cpu_s
        self._changed.set()
        self._changed = anyio.Event()

    async def keep(self, sandbox: RunningSandbox) -> None:
        """Hold the sandbox to it, until it may use what it needs; what is cancelled leaves it as it is."""
        unseen_s = self._cores * LOOK_S
        while self._limit_s is not None:
            try:
                used_s = await sandbox.cpu_s()
                if self._limit_s - used_s < _ASKED_AHEAD * unseen_s:
                    await self._ask(sandbox)
                left_s = self._left_s(used_s)
                if left_s <= unseen_s and self._may_stand():
                    await self._hold(sandbox, used_s + unseen_s)
                    continue
            except BackendError as error:
                _log.debug("%s cannot be held to what it may use: %s", sandbox.id, error)
                left_s = 0.0
            await self._change_within(max(LOOK_S, (left_s - unseen_s) / self._cores))

    async def _hold(self, sandbox: RunningSandbox, needed_s: float) -> None:
        self.holds = True  # whoever cancels us may find it paused
        try:
            await sandbox.pause()
        except BackendError:
            self.holds = False
            raise
        with self._standing():
            while self._left_s(needed_s) <= 0.0 and self._may_stand():
                await self._change_within(ASK_AGAIN_S)
                await self._ask(sandbox)
        await sandbox.resume()
        self.holds = False

    async def _change_within(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._changed.wait()

    def _left_s(self, used_s: float) -> float:
        return float("inf") if self._limit_s is None else self._limit_s - used_s
