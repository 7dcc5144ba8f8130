"""Who changes a sandbox, and who needs it to stand still."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

__all__ = ["Gate"]


class Gate:
    """Many pass together; who wants to be alone waits for them, and holds up those who come later.

    While it is closed, whoever comes is refused at once.
    """

    def __init__(self) -> None:
        self._door = anyio.Lock(fast_acquire=True)
        self._inside = 0
        self._empty = anyio.Event()
        self._refusal: Callable[[], Exception] | None = None

    def close(self, refusal: Callable[[], Exception]) -> None:
        """Refuse everybody from now on, with what this returns."""
        self._refusal = refusal

    def open(self) -> None:
        """Refuse nobody any more."""
        self._refusal = None

    def check(self) -> None:
        """Raise the refusal if it is closed."""
        if self._refusal is not None:
            raise self._refusal()

    @asynccontextmanager
    async def passing(self) -> AsyncGenerator[None]:
        """Be one of many."""
        self.check()
        async with self._door:
            self.check()
            self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self, *, even_closed: bool = False, within_s: float | None = None) -> AsyncGenerator[None]:
        """Be the only one.

        Raises:
            TimeoutError: Those inside have not left within `within_s`.
        """
        async with self._door:
            if not even_closed:
                self.check()
            with anyio.fail_after(within_s):
                while self._inside:
                    self._empty = anyio.Event()
                    await self._empty.wait()
            yield
