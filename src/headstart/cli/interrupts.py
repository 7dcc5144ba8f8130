"""Commands that are interrupted: what they are at is cancelled once, however often they are told.

Left to itself, a second SIGINT raises wherever the program is, also in the middle of a task's end, which may
then never come. Whoever has waited for a while and interrupts again wants the process to be gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from anyio import CancelScope

__all__ = ["run_interruptible"]

_INTERRUPTED_STATUS = 130
_SAME_S = 1.0
"""Interrupts that come so soon after the first are the same: of a terminal, and of who passes its on."""

_T = TypeVar("_T")


def run_interruptible(work: Callable[[], Awaitable[_T]]) -> _T:
    """Run something to its end.

    Raises:
        KeyboardInterrupt: It was interrupted, and has been cancelled.
        Exception: What it raises.
    """
    import anyio

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return anyio.run(work)
    outcomes: list[_T | Exception] = []

    async def main() -> None:
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as scope:
                    tasks.start_soon(_heed, signals, scope)
                    try:
                        outcomes.append(await work())
                    except Exception as error:  # noqa: BLE001 raised below, in no group
                        outcomes.append(error)
                tasks.cancel_scope.cancel()

    anyio.run(main)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome
    raise KeyboardInterrupt


async def _heed(signals: AsyncIterator[signal.Signals], work: CancelScope) -> None:
    """Cancel the work at the first interrupt, and end the process at one that comes when that takes long."""
    cancelled_s: float | None = None
    async for _ in signals:
        if cancelled_s is None:
            cancelled_s = time.monotonic()
            work.cancel()
        elif time.monotonic() - cancelled_s > _SAME_S:
            os._exit(_INTERRUPTED_STATUS)
