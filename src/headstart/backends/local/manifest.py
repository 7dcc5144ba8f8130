"""What a store's folder says about itself: which layers each sandbox and each checkpoint stands on.

It is written beside and renamed, so it is always whole. It may be a little older than the layers are,
as they change first when a sandbox's is sealed: so it names, with each sandbox, the layer that would be on
top then (`next`). If that is there, the sandbox was sealed, or nothing was written to it: right in both cases.
When the machine was restarted, on the other hand, what was made after the last flush may be missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from headstart.errors import BackendError

__all__ = ["Manifest", "StoredCheckpoint", "StoredSandbox", "read", "this_boot", "write"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class StoredSandbox(_Strict):
    """Where a sandbox stands; `begun`: it was started at least once, so its topmost layer was whole."""

    top: str | None
    next: str
    begun: bool


class StoredCheckpoint(_Strict):
    """A checkpoint; `flushed`: all of it is on the disk."""

    top: str | None
    capture: str
    left_out: tuple[str, ...]
    flushed: bool


class Manifest(_Strict):
    """See the module.

    Attributes:
        boot: The machine's, since its last start.
        image: Whether the files are in a disk image.
        number: The next layer's.
        flushed: Those of its layers that were there at the last flush.
        below: What each layer lies on; None: on the template's files.
        places: The private folders and overlays, in the order of their numbers in a layer, of whatever was
            started first; and the base that it began with, if there is one.
    """

    version: Literal[1] = 1
    boot: str
    image: bool
    number: int = 0
    flushed: tuple[str, ...] = ()
    below: dict[str, str | None] = {}
    sandboxes: dict[str, StoredSandbox] = {}
    checkpoints: dict[str, StoredCheckpoint] = {}
    places: tuple[str, ...] | None = None

    @property
    def layers(self) -> frozenset[str]:
        """Every layer that may be there and is needed."""
        return frozenset((*self.below, *(sandbox.next for sandbox in self.sandboxes.values())))

    @property
    def unsure(self) -> frozenset[str]:
        """Those of them that may be there in part: they were being made."""
        begun_with = (sandbox.top for sandbox in self.sandboxes.values() if not sandbox.begun and sandbox.top)
        return frozenset((*begun_with, *(sandbox.next for sandbox in self.sandboxes.values())))

    def stack(self, top: str | None) -> tuple[str, ...]:
        """Return a layer and those below it, the lowest first.

        Raises:
            BackendError: It names layers that lie on each other in a circle, or on what is not there.
        """
        layers: list[str] = []
        while top is not None:
            if top not in self.below or len(layers) > len(self.below):
                raise BackendError(f"its manifest does not say what layer {top} lies on")
            layers.append(top)
            top = self.below[top]
        return tuple(reversed(layers))


def this_boot() -> str:
    """Return what tells this start of the machine from every other."""
    return _BOOT_ID.read_text().strip()


def read(path: Path) -> Manifest | None:
    """Return what a manifest says; None if there is none.

    Raises:
        BackendError: It cannot be read.
    """
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BackendError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise BackendError(f"{path}: is no manifest of a store: {error.errors()[0]['msg']}") from error


def write(path: Path, manifest: Manifest, *, durably: bool = False) -> None:
    """Put a manifest in the place of what is there, at once; with `durably`, it is on the disk afterwards.

    Raises:
        OSError: It cannot be written; what was there stays.
    """
    beside = path.with_suffix(".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(manifest.model_dump_json().encode())
        if durably:
            file.flush()
            os.fsync(descriptor)
    beside.rename(path)
    if durably:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
