"""The layers of a lineage in a store, and how they are found again after a crash."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from headstart.backends.contract import Capture, Checkpoint
from headstart.backends.local import manifest as manifests
from headstart.backends.local.lineage import LineageLayers
from headstart.backends.local.manifest import Manifest, StoredCheckpoint, StoredSandbox
from headstart.errors import BackendError
from headstart.ids import CheckpointId, SandboxId

__all__ = ["StoredLayers"]

_NOTING = SandboxId("")
"""Stands for the manifest among those who have layers mounted."""

_log = logging.getLogger(__name__)


class StoredLayers(LineageLayers):
    """Layers that outlive the service.

    Args:
        path: Of the manifest.
        found: What it says.
        whole: The layers that are there.
        drop: Has layers deleted, in a while.
        flush: Returns when all that was written before is on the disk.

    Raises:
        BackendError: Something is missing that no crash can have taken.
    """

    def __init__(
        self,
        path: Path,
        found: Manifest,
        *,
        store: str,
        whole: Collection[str],
        drop: Callable[[Sequence[str]], None],
        flush: Callable[[], Awaitable[object]],
    ) -> None:
        super().__init__(first_number=found.number, store=store)
        self._path = path
        self._drop = drop
        self._flush = flush
        self._boot = manifests.this_boot()
        self._image = found.image
        self._places = found.places
        self._flushed_layers = frozenset(found.flushed)
        self._flushed: set[CheckpointId] = set()
        self._written = found
        self._writing = anyio.Lock()
        found_again = _FoundAgain(found, whole, rebooted=found.boot != self._boot)
        for name, sandbox in found.sandboxes.items():
            self.stand(SandboxId(name), found_again.layers_of(sandbox), self.new_layer())
            self.begun.add(SandboxId(name))
        for name, checkpoint in found.checkpoints.items():
            if not found_again.has(checkpoint):
                _log.warning("%s: the checkpoint %s went with the machine, before it was flushed", path.parent, name)
                continue
            kept = Checkpoint(id=CheckpointId(name), capture=Capture(checkpoint.capture), left_out=checkpoint.left_out)
            self.keep(kept, found.stack(checkpoint.top))
            if checkpoint.flushed or found_again.rebooted:
                self._flushed.add(kept.id)
        if found_again.rebooted:  # what is there has come from the disk
            self._flushed_layers = self.layers

    @property
    def places(self) -> tuple[str, ...] | None:
        """The private folders and overlays that its layers have parts for; None before they are settled."""
        return self._places

    def settle_places(self, places: tuple[str, ...]) -> None:
        """Say which these are, unless there are layers already."""
        if self._places is None or not self.layers:
            self._places = places

    def have_dropped(self, layers: Sequence[str]) -> None:
        """Have layers deleted, in a while."""
        if layers:
            self._drop(layers)

    async def noted(self) -> None:
        """See `LineageLayers.noted`. Completes under cancellation."""
        await self._note(durably=False)

    async def flush(self) -> None:
        """Have all that was written so far on the disk, and note, there, that it is.

        Raises:
            BackendError: It cannot be written.
        """
        layers, checkpoints = self.layers, list(self.checkpoints)
        await self._flush()
        await self.note_flushed(layers=layers, checkpoints=checkpoints)

    async def note_flushed(self, *, layers: frozenset[str], checkpoints: Collection[CheckpointId]) -> None:
        """Note, on the disk, that these are there.

        Raises:
            BackendError: It cannot be written.
        """
        self._flushed_layers = (self._flushed_layers | layers) & self.layers
        self._flushed = (self._flushed | set(checkpoints)) & self.checkpoints.keys()
        await self._note(durably=True)

    async def exchange(self, row: tuple[str, ...], by: str) -> tuple[str, ...] | None:
        """See `LineageLayers.exchange`: what is deleted next may have been on the disk, and so must what stands for it."""
        layers, checkpoints = self.layers, list(self.checkpoints)
        try:
            await self._flush()
        except BackendError as error:
            _log.debug("%s: layers are not merged: %s", self._path.parent, error)
            return None
        if self.is_closed or self.replace(row, by) is None:
            return None
        self.mount(_NOTING, row)  # nobody deletes it, whatever comes, before that is noted
        await self.note_flushed(layers=layers | {by}, checkpoints=checkpoints)
        return self.unmount(_NOTING)

    @property
    def is_flushed(self) -> bool:
        """Whether all checkpoints are known to be on the disk."""
        return self.checkpoints.keys() <= self._flushed

    async def _note(self, *, durably: bool) -> None:
        with anyio.CancelScope(shield=True):
            async with self._writing:
                manifest = self._manifest()
                if manifest == self._written and not durably:
                    return
                try:
                    await anyio.to_thread.run_sync(lambda: manifests.write(self._path, manifest, durably=durably))
                except OSError as error:
                    raise BackendError(
                        f"{self._path}: cannot be written: {error.strerror}", hint="see to the disk, and try again"
                    ) from error
                self._written = manifest

    def _manifest(self) -> Manifest:
        return Manifest(
            boot=self._boot,
            image=self._image,
            number=self._number,
            flushed=tuple(sorted(self._flushed_layers & self.layers)),
            below={
                upper: lower for stack in self._stacks() for lower, upper in itertools.pairwise((None, *stack)) if upper
            },
            sandboxes={
                name: StoredSandbox(top=_top(layers), next=self.nexts[name], begun=name in self.begun)
                for name, layers in self.stands.items()
            },
            checkpoints={
                name: StoredCheckpoint(
                    top=_top(kept.layers),
                    capture=kept.checkpoint.capture.value,
                    left_out=kept.checkpoint.left_out,
                    flushed=name in self._flushed,
                )
                for name, kept in self.checkpoints.items()
            },
            places=self._places,
        )


def _top(layers: Sequence[str]) -> str | None:
    return layers[-1] if layers else None


class _FoundAgain:
    """Judges what is there by what should be."""

    def __init__(self, manifest: Manifest, whole: Collection[str], *, rebooted: bool) -> None:
        self._manifest = manifest
        self._whole = whole
        self.rebooted = rebooted

    def layers_of(self, sandbox: StoredSandbox) -> tuple[str, ...]:
        """Return what a sandbox stands on: with the layer on top that a checkpoint has put there, if one has.

        Raises:
            BackendError: A layer is missing that must be there.
        """
        layers = [*self._manifest.stack(sandbox.top)]
        if sandbox.next in self._whole:
            layers.append(sandbox.next)
        while layers and layers[-1] not in self._whole and self._may_miss(layers[-1], sandbox):
            layers.pop()  # its state before it had that one
        self._expect(layers)
        return tuple(layers)

    def has(self, checkpoint: StoredCheckpoint) -> bool:
        """Whether a checkpoint is there.

        Raises:
            BackendError: It is not, and should be.
        """
        if self.rebooted and not checkpoint.flushed:
            return False
        self._expect(self._manifest.stack(checkpoint.top))
        return True

    def _may_miss(self, layer: str, sandbox: StoredSandbox) -> bool:
        was_not_made = layer == sandbox.top and not sandbox.begun
        return was_not_made or (self.rebooted and layer not in self._manifest.flushed)

    def _expect(self, layers: Sequence[str]) -> None:
        for layer in layers:
            if layer not in self._whole:
                raise BackendError(f"layer {layer} is missing")
