"""A process that is held by a pidfd, so that nobody else is ever taken for it."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import anyio

from headstart.backends.spawner.guest.processes import is_below

__all__ = ["HeldProcess"]


class HeldProcess:
    """A process below the spawner; made by `hold`, to be closed.

    Its number may come to mean another process once it has ended. The descriptor never
    does: it is what is waited for and signalled.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        """Its number, as the service sees it."""
        self._descriptor = descriptor

    @classmethod
    def hold(cls, pid: int, *, below: int) -> HeldProcess | None:
        """Hold the process `pid`; None if it has ended, or has not sprung from the process `below`."""
        try:
            held = cls(pid, os.pidfd_open(pid))
        except OSError:  # it has ended, or no descriptors are left
            return None
        # From an ordinary user, /proc may hide (hidepid) what is undumpable, as inits are; a
        # stranger whom that user could harm, it shows.
        is_ours = is_below(pid, below) or not Path(f"/proc/{pid}").exists()
        if is_ours and not held.has_ended:  # else what was looked at may have been another already
            return held
        held.close()
        return None

    @property
    def has_ended(self) -> bool:
        look = select.poll()
        look.register(self._descriptor, select.POLLIN)
        return bool(look.poll(0))

    async def wait_ended(self) -> None:
        await anyio.wait_readable(self._descriptor)

    def kill(self) -> None:
        """Send SIGKILL; harmless when it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Let go of it, once; it lives on."""
        os.close(self._descriptor)
