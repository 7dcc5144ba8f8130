"""Stores: files of sandboxes that outlive the service, in a folder each below the state directory."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from headstart.backends.contract import Limits
from headstart.backends.local import manifest as manifests
from headstart.backends.local.flattening import Flattening
from headstart.backends.local.manifest import Manifest
from headstart.backends.local.store import LocalStore, Start, StorePlace
from headstart.backends.local.stored import StoredLayers
from headstart.backends.local.watch import DiskWatch, Size
from headstart.backends.spawner.client import SpawnerClient
from headstart.errors import BackendError

__all__ = ["LocalStores"]

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_DOOMED = ".doomed-"
_MANIFEST = "manifest.json"
_FLUSH_S = 5.0

_log = logging.getLogger(__name__)


class LocalStores:
    """Implements `FileStores`.

    Args:
        folder: Where they are.
        can_make_images: Whether this machine can (it seems) keep each in a disk image, which bounds it.
        why_not_plain: Why it cannot keep them in plain folders, or None.
        start: Starts their sandboxes.
        inodes_for: How many files there may be where there is room for so many bytes.
    """

    def __init__(
        self,
        client: SpawnerClient,
        folder: Path,
        *,
        can_make_images: bool,
        why_not_plain: str | None,
        start: Start,
        inodes_for: Callable[[int], int],
    ) -> None:
        self._client = client
        self._folder = folder
        self._can_make_images = can_make_images
        self._why_not_plain = why_not_plain
        self._start = start
        self._inodes_for = inodes_for
        self._open: dict[str, LocalStore | None] = {}
        self._watch = DiskWatch(folder, lambda: [store for store in self._open.values() if store is not None])
        self._has_begun = False

    @property
    def are_possible(self) -> bool:
        """Whether there can be any here."""
        return self._can_make_images or self._why_not_plain is None

    @property
    def weakness(self) -> str | None:
        """What is weaker here than it could be, and the cure."""
        if not self.are_possible:
            return (
                f"no files can outlive the service: no layers can be below {self._folder} ({self._why_not_plain}):"
                " put the state on another file system, or start as root, with loop devices and e2fsprogs"
            )
        if not self._can_make_images:
            return (
                "what may be written to files that outlive the service is looked at once a second, the kernel does not"
                " hold the limit: start as root, with loop devices and e2fsprogs"
            )
        return None

    async def names(self) -> Sequence[str]:
        """See `FileStores.names`."""
        await self._begin()
        return sorted(path.name for path in await anyio.to_thread.run_sync(partial(_folders_in, self._folder)))

    async def open(self, name: str, *, limits: Limits) -> LocalStore:
        """See `FileStores.open`. If cancelled, it is not open."""
        folder = self._folder_of(name)
        if name in self._open:
            raise BackendError(f"the store {name} is open already", hint="close it first")
        if not self.are_possible:
            raise BackendError(f"the store {name} cannot be made: {self.weakness}")
        self._open[name] = None
        try:
            await self._begin()
            self._open[name] = store = await self._opened(name, folder, limits)
            await self._watch.begin(store)
        except BaseException:
            if self._open.pop(name, None) is not None:
                await self._let_go(name, folder)
            raise
        return store

    async def _opened(self, name: str, folder: Path, limits: Limits) -> LocalStore:
        try:
            found = await anyio.to_thread.run_sync(self._found_in, folder)
            try:
                layers = await self._open_as_found(name, folder, found, limits)
            except BackendError as error:
                if found.number or not found.image or self._why_not_plain is not None:
                    raise
                _log.warning("files that outlive the service are not in disk images, which do not work here: %s", error)
                self._can_make_images = False
                found = await anyio.to_thread.run_sync(_made_plain, folder, found)
                layers = await self._open_as_found(name, folder, found, limits)
        except BackendError as error:
            raise BackendError(f"the store {name} in {folder} cannot be opened: {error}", hint=_CURE) from error
        place = StorePlace(
            name=name,
            image=folder / "image" if found.image else None,
            bound=None if found.image else self._bound(limits),
            close=partial(self._close, name, folder),
            remove=partial(self._remove, name, folder),
        )
        return LocalStore(place, layers, client=self._client, start=self._start)

    async def _open_as_found(self, name: str, folder: Path, found: Manifest, limits: Limits) -> StoredLayers:
        try:
            told = await self._client.store_errand(
                name,
                "open",
                folder=str(folder),
                image=self._image(limits, folder, may_be_made=not found.number) if found.image else None,
                layers=sorted(found.layers),
                unsure=sorted(found.unsure),
            )
            drop = partial(self._drop, name)
            flush = partial(self._client.store_errand, name, "flush")
            layers = StoredLayers(folder / _MANIFEST, found, store=name, whole=told["layers"], drop=drop, flush=flush)
            Flattening(layers, start_soon=self._client.start_soon, most_bytes=limits.scratch_bytes)
            await layers.noted()
            layers.have_dropped(sorted(set(told["layers"]) - layers.layers))
        except BaseException:
            await self._let_go(name, folder)
            raise
        return layers

    def _found_in(self, folder: Path) -> Manifest:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = manifests.read(folder / _MANIFEST)
        if found is not None:
            return found
        if (folder / "image").exists() or (folder / "files").exists():
            raise BackendError(f"its {_MANIFEST} is missing")
        made = Manifest(boot=manifests.this_boot(), image=self._can_make_images)
        manifests.write(folder / _MANIFEST, made)
        return made

    def _bound(self, limits: Limits) -> Size | None:
        most = limits.scratch_bytes
        return None if most is None else Size(taken_bytes=most, files=self._inodes_for(most))

    def _image(self, limits: Limits, folder: Path, *, may_be_made: bool) -> dict[str, Any]:
        disk = os.statvfs(folder.parent)
        content_bytes = limits.scratch_bytes or disk.f_bavail * disk.f_frsize
        inodes = self._inodes_for(content_bytes)
        return {"content_bytes": content_bytes, "inodes": inodes, "may_be_made": may_be_made}

    def _drop(self, name: str, layers: Sequence[str]) -> None:
        async def drop() -> None:
            try:
                await self._client.store_errand(name, "drop", layers=layers)
            except BackendError as error:
                _log.debug("the store %s: layers are left until it is opened again: %s", name, error)

        self._client.start_soon(drop)

    async def _close(self, name: str, folder: Path) -> None:
        await self._let_go(name, folder)
        self._open.pop(name, None)

    async def _let_go(self, name: str, folder: Path) -> None:
        with anyio.CancelScope(shield=True):
            try:
                await self._client.store_errand(name, "close", folder=str(folder))
            except BackendError as error:
                _log.debug("the store %s was not closed: %s", name, error)

    async def remove(self, name: str) -> None:
        """See `FileStores.remove`. Once begun it comes to its end, now or at the next start."""
        folder = self._folder_of(name)
        if name in self._open:
            raise BackendError(f"the store {name} is open", hint="close it first")
        await self._remove(name, folder)

    async def _remove(self, name: str, folder: Path) -> None:
        doomed = folder.with_name(f"{_DOOMED}{name}-{secrets.token_hex(4)}")
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(folder.rename, doomed)
            except FileNotFoundError:
                return
            except OSError as error:
                raise BackendError(f"{folder}: cannot be removed: {error.strerror}") from error
            await self._delete(doomed)

    async def _begin(self) -> None:
        """Once: delete what removals that were cut off have left; from then on, watch the disk and flush."""
        if not self._has_begun:
            self._has_begun = True
            for doomed in await anyio.to_thread.run_sync(lambda: _folders_in(self._folder, doomed=True)):
                self._client.start_soon(partial(self._delete, doomed))
            self._client.start_soon(self._watch.run)
            self._client.start_soon(self._flush_in_turn)

    async def _flush_in_turn(self) -> None:
        """Have checkpoints on the disk soon after they were made."""
        while True:
            await anyio.sleep(_FLUSH_S)
            for store in [store for store in self._open.values() if store is not None and not store.is_flushed]:
                try:
                    await store.flush()
                except BackendError as error:
                    _log.warning("the store %s was not flushed: %s", store.name, error)

    async def aclose(self) -> None:
        """Close those that are open. Completes under cancellation."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as closing:
                for store in [store for store in self._open.values() if store is not None]:
                    closing.start_soon(store.aclose)

    async def _delete(self, doomed: Path) -> None:
        try:
            await self._client.store_errand(doomed.name, "delete", folder=str(doomed))
        except BackendError as error:
            _log.warning("%s is left: %s", doomed, error)

    def _folder_of(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise BackendError(
                f"{name!r} cannot name a store", hint="use letters, digits, '.', '_' and '-', and no '.' first"
            )
        return self._folder / name


_CURE = "put back what is missing, end whoever has it open, or remove the store with all that is in it"


def _made_plain(folder: Path, found: Manifest) -> Manifest:
    """Return what a manifest says that has no image, in which nothing was yet."""
    for made in ("image", "image.new"):
        (folder / made).unlink(missing_ok=True)
    return found.model_copy(update={"image": False})


def _folders_in(folder: Path, *, doomed: bool = False) -> list[Path]:
    try:
        entries = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in entries if path.is_dir() and path.name.startswith(_DOOMED) == doomed]
