"""A sandbox whose server came into being as a fork of a zygote."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import anyio

from headstart.backends.contract import Command, Usage
from headstart.backends.forked.prepared import Fork, Nest
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.channel import Execution
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.backends.spawner.streams import StdioPipes
from headstart.errors import BackendError
from headstart.ids import SandboxId

__all__ = ["ForkedSandbox"]

_log = logging.getLogger(__name__)


class ForkedSandbox(SpawnedSandbox):
    """The server runs from the start; `attach` hands out the stdio that it was forked with.

    Args:
        fork: What `Nest.fork` returned.
        raise_priority: Undoes `background`.
        clean_up: Called (in a worker thread) when nothing of the sandbox runs any more.
    """

    def __init__(
        self,
        sandbox: SandboxId,
        fork: Fork,
        entry: Command,
        *,
        nest: Nest,
        raise_priority: Callable[[], None],
        clean_up: Callable[[], None],
    ) -> None:
        super().__init__(sandbox, fork.channel, entry, polite=nest.polite)
        self._fork = fork
        self._nest = nest
        self._do_raise_priority = raise_priority
        self._clean_up = clean_up

    async def _start_entry(self, descriptors: Sequence[int]) -> tuple[StdioPipes, Execution]:
        if descriptors:
            raise BackendError(f"{self.id} runs already: it can be given no descriptors")
        return self._fork.pipes, self._fork.server

    async def raise_priority(self) -> None:
        await anyio.to_thread.run_sync(self._do_raise_priority)

    async def usage(self) -> Usage:
        """Count PSS: what a fork shares with its zygote is charged to the zygote's control group for good."""
        return await anyio.to_thread.run_sync(tree_usage, self._fork.channel.pid)

    async def _remove(self) -> None:
        await self._fork.channel.end()
        self._fork.pipes.close()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._clean_up)
            await self._nest.let_go(self._fork.channel)
