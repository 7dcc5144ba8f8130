"""Tell whether a program's files are still those that were preloaded and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["fingerprint"]


def fingerprint(files: Iterable[str]) -> str:
    """Digest path, size and modification time of each file; a missing one counts too.

    Blocking: about 2 µs per file. Links are followed, so an exchanged interpreter shows.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(set(files)):
        digest.update(f"{name}\0{_stamp(Path(name))}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns}"
