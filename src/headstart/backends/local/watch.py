"""Watching the disk: whoever writes more than his store may hold, or what the host needs itself, is ended.

A store in a disk image cannot grow beyond that. But images are sparse, all of them together may
become larger than what is free, and a store in plain folders has no bound of its own. So it is looked
how large each is, every second, or less often where looking takes long. What can be written between
two looks is the price.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from headstart.errors import BackendError

__all__ = ["DiskWatch", "Size", "Watched"]

_LOOK_S = 1.0
_LOOKING_SHARE = 20
"""Looking takes a twentieth of the time at most."""

_MOST_RESERVED_BYTES = 2 << 30
_RESERVED_PART = 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What is taken of a disk."""

    taken_bytes: int
    files: int = 0


class Watched(Protocol):
    """A store."""

    @property
    def name(self) -> str: ...
    @property
    def bound(self) -> Size | None:
        """What it may take; None if it cannot take more anyway."""
        ...

    @property
    def is_in_use(self) -> bool:
        """Whether something runs on it."""
        ...

    async def measure(self) -> Size:
        """Tell what it takes.

        Raises:
            BackendError: That cannot be told.
        """
        ...

    async def end(self, why: str) -> None:
        """End what runs on it, and keep the files."""
        ...


class DiskWatch:
    """Watches stores; `run` in a task for as long as they are used.

    Args:
        folder: On the disk where they are.
        stores: Returns those that are open.
    """

    def __init__(self, folder: Path, stores: Callable[[], Iterable[Watched]]) -> None:
        self._folder = folder
        self._stores = stores
        self._known: dict[str, Size] = {}
        self._due_s: dict[str, float] = {}

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await anyio.sleep(_LOOK_S)
            await self.look()

    async def begin(self, store: Watched) -> None:
        """Note what a store takes when it is opened: who grows beyond what he may before the first look is found, too."""
        with contextlib.suppress(BackendError):  # the first look tells, and ends what runs there
            self._known[store.name] = await store.measure()

    async def look(self) -> None:
        """End those that have grown beyond what there is for them since they were looked at the last time."""
        stores = list(self._stores())
        names = {store.name for store in stores}
        self._known = {name: size for name, size in self._known.items() if name in names}
        in_use = [store for store in stores if store.is_in_use]
        if not in_use:
            return
        is_low = await anyio.to_thread.run_sync(is_nearly_full, self._folder)
        for store in in_use:
            if is_low or anyio.current_time() >= self._due_s.get(store.name, 0.0):
                await self._look_at(store, is_low=is_low)

    async def _look_at(self, store: Watched, *, is_low: bool) -> None:
        began_s = anyio.current_time()
        try:
            size = await store.measure()
        except BackendError as error:
            await self._end(store, f"what the files in the store {store.name} take cannot be told: {error}")
            return
        took_s = anyio.current_time() - began_s
        self._due_s[store.name] = began_s + took_s + took_s * _LOOKING_SHARE
        before = self._known.get(store.name)
        self._known[store.name] = size
        has_grown = before is not None and (size.taken_bytes > before.taken_bytes or size.files > before.files)
        if has_grown and is_low:
            await self._end(store, f"the disk with {self._folder} is nearly full: make room on it")
        elif has_grown and store.bound is not None and _is_beyond(size, store.bound):
            await self._end(
                store,
                f"the files in the store {store.name} take {size.taken_bytes >> 20} MB ({size.files} files), and may take"
                f" {store.bound.taken_bytes >> 20} MB ({store.bound.files} files): start it again and delete some",
            )

    async def _end(self, store: Watched, why: str) -> None:
        if not store.is_in_use:
            return  # it was closed meanwhile
        _log.warning("sandboxes are ended, and keep their files: %s", why)
        await store.end(f"the sandbox was ended: {why}")
        await self.begin(store)  # what was written until the end is there when it is started again to delete some


def _is_beyond(size: Size, bound: Size) -> bool:
    return size.taken_bytes > bound.taken_bytes or size.files > bound.files


def is_nearly_full(folder: Path) -> bool:
    """Whether a disk has less left than the host should have for itself: a twentieth, or 2 GB of a large one."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return False  # who writes there is told
    reserved = min(_MOST_RESERVED_BYTES, facts.f_blocks * facts.f_frsize // _RESERVED_PART)
    return facts.f_bavail * facts.f_frsize < reserved
