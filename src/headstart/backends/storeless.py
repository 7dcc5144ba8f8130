"""For backends whose sandboxes' files always go with them."""

from __future__ import annotations

from collections.abc import Sequence

from headstart.backends.contract import FileStore, Limits
from headstart.errors import BackendError

__all__ = ["NoStores"]


class NoStores:
    """Implements `FileStores` where there are none.

    Args:
        why: What is said to whoever wants one.
        cure: What to do about it.
    """

    def __init__(self, why: str, *, cure: str) -> None:
        self._why = why
        self._cure = cure

    async def names(self) -> Sequence[str]:
        return ()

    async def open(self, name: str, *, limits: Limits) -> FileStore:  # noqa: ARG002
        raise BackendError(f"{name} cannot be kept: {self._why}", hint=self._cure)

    async def remove(self, name: str) -> None:
        """There is none."""
