"""A sandbox's files, and keeping them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headstart.ids import CheckpointId

__all__ = ["Capture", "Checkpoint", "FileInfo", "FileKind", "Files"]


class FileKind(Enum):
    """What is at a path; a link is itself."""

    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"
    """A device, FIFO or socket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """Something in a sandbox's file tree.

    Attributes:
        name: The last part of its path.
        mode: Its permission bits.
        modified_s: When its content was changed last, seconds since 1970.
    """

    name: str
    path: str
    kind: FileKind
    size_bytes: int
    mode: int
    modified_s: float


class Files(Protocol):
    """A sandbox's files, as its own user can reach them.

    Paths are the sandbox's; a relative one begins at its home. Content does not pass through
    the event loop. Every method raises, besides what it names:

    - `OSError` (`FileNotFoundError`, `PermissionError`, …, with the path), as a local call would,
    - `BackendError` if the sandbox is gone.
    """

    async def read(self, path: str, *, limit_bytes: int = 1 << 30) -> bytes:
        """Return a file's content.

        Raises:
            OSError: `EFBIG` if it is larger than `limit_bytes`; `EINVAL` if it is a device, FIFO or socket,
                or made up by the kernel (`/proc`).
        """
        ...

    async def write(self, path: str, content: bytes, *, mode: int | None = None) -> None:
        """Write a file, at once: whoever reads it meanwhile sees the old content or the new, whole.

        Missing folders are made. A file that is there keeps its mode, unless another is given (its permission bits);
        of a link, the target is written.
        Its folder must be writable, and a mount of a single file cannot be written so. If it fails or is
        cancelled, the file is what it was.

        Raises:
            OSError: `EINVAL` if a device, FIFO or socket is there.
        """
        ...

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Return what is in a folder, by name; a backend may refuse (EFBIG) what has megabytes of names in it."""
        ...

    async def stat(self, path: str) -> FileInfo:
        """Tell what is at a path."""
        ...

    async def make_folder(self, path: str) -> None:
        """Make a folder and those above it; one that is there is fine."""
        ...

    async def rename(self, path: str, to: str) -> None:
        """Give something another path, in place of what is there (unless that is a folder with content)."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, a link or an empty folder."""
        ...


class Capture(Enum):
    """How a checkpoint came about."""

    UNCHANGED = "unchanged"
    """Nothing was written since the last one; it costs nothing."""
    SEALED = "sealed"
    """The layer that was written to changes no more; the sandbox goes on in a new one."""
    COPIED = "copied"
    """What was written was copied, because something that runs may go on writing there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A sandbox's files as they were, for as long as it or a fork of it lives.

    Attributes:
        left_out: What ran and is no part of it, for people: `python3 (41)`.
    """

    id: CheckpointId
    capture: Capture
    left_out: tuple[str, ...] = ()
