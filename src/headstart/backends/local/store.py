"""A lineage's files on disk, and the sandboxes that run on them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from headstart.backends.contract import Checkpoint, Identity, Prepared
from headstart.backends.local.lineage import Member
from headstart.backends.local.sandbox import LayeredFiles, LocalSandbox, take_back
from headstart.backends.local.stored import StoredLayers
from headstart.backends.local.tree import Tree
from headstart.backends.local.watch import Size
from headstart.backends.spawner.client import SpawnerClient
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId

__all__ = ["LocalStore", "Start", "StorePlace"]

_log = logging.getLogger(__name__)


class Start(Protocol):
    """Starts a sandbox on the layers that its lineage has noted; see `LocalBackend`."""

    async def __call__(
        self, files: LayeredFiles, identity: Identity, *, background: bool = False, goes_on: bool = False
    ) -> LocalSandbox: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePlace:
    """Where a store's files are.

    Attributes:
        image: The disk image that bounds them, or None.
        bound: What they may take, if none does.
        close: Lets go of them, when nothing runs on them any more.
        remove: Deletes them after that.
    """

    name: str
    image: Path | None
    bound: Size | None
    close: Callable[[], Awaitable[None]]
    remove: Callable[[], Awaitable[None]]


class LocalStore:
    """Implements `FileStore`, and `Watched`; made by `LocalStores.open`."""

    def __init__(self, place: StorePlace, layers: StoredLayers, *, client: SpawnerClient, start: Start) -> None:
        self._place = place
        self._layers = layers
        self._client = client
        self._start = start
        self._starting: set[SandboxId] = set()
        self._is_closed = self._is_removed = False
        self._closing = anyio.Lock()

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def sandboxes(self) -> Sequence[SandboxId]:
        """See `FileStore.sandboxes`."""
        return list(self._layers.stands)

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """See `FileStore.checkpoints`."""
        return [kept.checkpoint for kept in self._layers.checkpoints.values()]

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> LocalSandbox:
        """See `FileStore.start`. If cancelled, the sandbox's files are what they were."""
        self._check()
        tree = self._fitting(prepared)
        lost = self._lost(identity.sandbox)
        self._starting.add(identity.sandbox)
        try:
            if lost is not None:
                await lost.stop()
            return await self._start_on(tree, identity, background=background)
        finally:
            self._starting.discard(identity.sandbox)

    async def _start_on(self, tree: Tree, identity: Identity, *, background: bool) -> LocalSandbox:
        layers, sandbox = self._layers, identity.sandbox
        is_known = sandbox in layers.stands
        goes_on = is_known and layers.is_alone_on_top(sandbox)
        if not goes_on:
            layers.begin(sandbox, layers.stands.get(sandbox, ()))
        try:
            await layers.noted()
            return await self._start(
                LayeredFiles(tree=tree, lineage=layers), identity, background=background, goes_on=goes_on
            )
        except BaseException:
            if not is_known:
                await take_back(layers, sandbox)
            elif not goes_on:
                layers.have_dropped(layers.step_back(sandbox))
            raise

    def _fitting(self, prepared: Prepared) -> Tree:
        if not isinstance(prepared, Tree) or prepared.template.preload is not None:
            raise BackendError(f"{prepared.template.name}: only what starts cold can have its files in a store")
        base = prepared.template.base
        places = (*prepared.parts["private"], *prepared.parts["overlays"], *([] if base is None else [str(base)]))
        self._layers.settle_places(places)
        if self._layers.places != places:
            raise BackendError(
                f"{prepared.template.name} has other private folders, or begins with other files, ({', '.join(places)}) than what the store"
                f" {self.name} has files for ({', '.join(self._layers.places or ())})",
                hint="start it from the template that it was made from",
            )
        return prepared

    def _lost(self, sandbox: SandboxId) -> Member | None:
        """Return the sandbox that has ended by itself, if there is one."""
        member = self._layers.members.get(sandbox)
        if sandbox in self._starting or (member is not None and not member.is_lost):
            raise BackendError(f"{sandbox} runs already", hint="end it first, or use the one that runs")
        return member

    async def stop(self, sandbox: SandboxId) -> None:
        """See `FileStore.stop`."""
        if sandbox in self._layers.members:
            await self._layers.members[sandbox].stop()

    async def keep_only(self, sandboxes: Collection[SandboxId], checkpoints: Collection[CheckpointId]) -> None:
        """See `FileStore.keep_only`."""
        self._check()
        layers = self._layers
        for sandbox in [name for name in layers.members if name not in sandboxes]:
            await layers.members[sandbox].aclose()
        unused = [layers.leave(name) for name in list(layers.stands) if name not in sandboxes]
        unused += [layers.forget(name) for name in list(layers.checkpoints) if name not in checkpoints]
        await layers.noted()
        layers.have_dropped([layer for each in unused for layer in each])

    @property
    def is_flushed(self) -> bool:
        """Whether all checkpoints are known to be on the disk."""
        return self._layers.is_flushed or self._is_closed

    async def flush(self) -> None:
        """See `FileStore.flush`."""
        self._check()
        await self._layers.flush()

    @property
    def bound(self) -> Size | None:
        """See `Watched`."""
        return self._place.bound

    @property
    def is_in_use(self) -> bool:
        """See `Watched`."""
        return bool(self._layers.members) and not self._is_closed

    async def measure(self) -> Size:
        """See `Watched`."""
        if self._place.image is not None:
            return await anyio.to_thread.run_sync(_size_of, self._place.image)
        told = await self._client.store_errand(self.name, "measure")
        return Size(taken_bytes=told["taken_bytes"], files=told["files"])

    async def end(self, why: str) -> None:
        """See `Watched`."""
        async with anyio.create_task_group() as ending:
            for member in list(self._layers.members.values()):
                ending.start_soon(member.stop, why)

    async def aclose(self) -> None:
        """See `FileStore.aclose`."""
        await self._end_all(flush=True)

    async def _end_all(self, *, flush: bool) -> None:
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if self._is_closed:
                    return
                self._is_closed = self._layers.is_closed = True
                async with anyio.create_task_group() as ending:
                    for member in list(self._layers.members.values()):
                        ending.start_soon(member.stop)
                if self._layers.flattening is not None:
                    await self._layers.flattening.wait()
                if flush:
                    await self._flush_if_possible()
                await self._place.close()

    async def _flush_if_possible(self) -> None:
        try:
            await self._layers.flush()
        except BackendError as error:
            _log.warning("the store %s is closed without being flushed: %s", self.name, error)

    async def remove(self) -> None:
        """See `FileStore.remove`."""
        await self._end_all(flush=False)
        with anyio.CancelScope(shield=True):
            async with self._closing:
                if not self._is_removed:
                    self._is_removed = True
                    await self._place.remove()

    def _check(self) -> None:
        if self._is_closed:
            raise BackendError(f"the store {self.name} is closed", hint="open it again")


def _size_of(image: Path) -> Size:
    try:
        return Size(taken_bytes=image.stat().st_blocks * 512)
    except OSError as error:
        raise BackendError(f"{image}: {error.strerror}") from error
