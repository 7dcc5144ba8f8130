"""Where benches keep what they need only while they run.

It lies in the user's cache and not in a new temporary folder: of a bench that was killed,
the next one finds what it left, and sweeps it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from headstart.backends.spawner.guest.runs import Run
from headstart.bench.servers import cache_dir

__all__ = ["open_scratch", "scratch_dir"]


def scratch_dir() -> Path:
    """Return the folder that all benches share; backends that are opened on it sweep for themselves."""
    return cache_dir().parent / "bench-scratch"


@contextmanager
def open_scratch() -> Generator[Path]:
    """Make a folder of the caller's own, and remove it at the end; those of dead processes go first.

    Raises:
        OSError: It cannot be made.
    """
    run = Run(str(scratch_dir()))
    try:
        yield Path(run.path)
    finally:
        run.remove()
