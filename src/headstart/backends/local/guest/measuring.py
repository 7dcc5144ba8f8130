"""How much disk a folder takes that somebody else writes to meanwhile, and who may not want it to be known."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

__all__ = ["measure"]

_LONGEST = 2000
_MOST_FOLDERS_OPEN = 200
_BLOCK_BYTES = 512


def measure(folder: str) -> tuple[int, int]:
    """Return the bytes that are taken in a folder, and the number of files and folders.

    Raises:
        OSError: `ENAMETOOLONG`: folders are nested deeper than can be measured.
    """
    bases = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]  # of paths that would be too long else
    try:
        return _measured(bases)
    finally:
        for base in bases:
            os.close(base)


def _measured(bases: list[int]) -> tuple[int, int]:
    taken, count = 0, 0
    seen: set[int] = set()
    waiting = [(bases[0], ".")]
    while waiting:
        base, path = waiting.pop()
        try:
            here = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=base)
        except FileNotFoundError:
            continue  # it has gone meanwhile
        if len(path) > _LONGEST:
            bases.append(here)
            base, path = here, "."
            if len(bases) > _MOST_FOLDERS_OPEN:
                raise OSError(errno.ENAMETOOLONG, "folders are nested too deeply to be measured")
        with os.scandir(here) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    count += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((base, f"{path}/{entry.name}"))
                    if facts.st_ino not in seen:
                        taken += facts.st_blocks * _BLOCK_BYTES
                    if facts.st_nlink > 1:
                        seen.add(facts.st_ino)
        if here != base:
            os.close(here)
    return taken, count
