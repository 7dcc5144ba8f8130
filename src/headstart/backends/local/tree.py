"""A template whose file tree is built."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import anyio

from headstart.backends.contract import Template
from headstart.backends.spawner.client import SpawnerClient
from headstart.backends.spawner.prepared import ColdPrepared
from headstart.errors import BackendError

__all__ = ["Tree"]


class Tree(ColdPrepared):
    """The `Prepared` of a cold start. The tree is there until it was closed and its last sandbox has ended."""

    def __init__(self, template: Template, key: str, client: SpawnerClient, parts: dict[str, Any]) -> None:
        """`parts` is what building has found out for a sandbox's plan."""
        super().__init__(template)
        self._client = client
        self._closed = False
        self._users = 0
        self.key = key
        self.parts = parts

    def hold(self) -> None:
        """Note one more sandbox: a checkpoint of it lays the tree again."""
        self._users += 1

    async def let_go(self) -> None:
        """Note one sandbox less."""
        self._users -= 1
        await self._release_unless_used()

    async def aclose(self) -> None:
        """Let go of the tree. Sandboxes that were started from it live on."""
        if not self._closed:
            self._closed = True
            await self._release_unless_used()

    async def _release_unless_used(self) -> None:
        if self._closed and not self._users:
            with anyio.CancelScope(shield=True), suppress(BackendError):  # it went with its spawner
                await self._client.release(self.key)
