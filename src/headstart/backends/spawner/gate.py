"""Who changes a sandbox, and who needs it to stand still."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Gate"]


class Gate:
    """Many pass together; who wants to be alone waits for them, and holds up those who come later."""

    def __init__(self) -> None:
        self._door = anyio.Lock(fast_acquire=True)
        self._inside = 0
        self._empty = anyio.Event()

    @asynccontextmanager
    async def passing(self) -> AsyncGenerator[None]:
        """Be one of many."""
        async with self._door:
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncGenerator[None]:
        """Be the only one."""
        async with self._door:
            while self._inside:
                self._empty = anyio.Event()
                await self._empty.wait()
            yield
