"""What tests of an end look at on the machine itself, and how they count its seconds."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["in_line_s", "keepers", "noted_namespaces"]


def in_line_s() -> float:
    """Return how long this thread has been ready to run and was not, in all; 0 where the kernel does not count it."""
    with suppress(OSError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    return 0.0


@contextmanager
def noted_namespaces(pids: Iterable[int]) -> Generator[frozenset[str]]:
    """Yield the namespaces of these processes that are not also ours, as `mnt:[number]`, as far as we may see them.

    They are held open meanwhile: a number that is free is soon that of somebody else's namespace.
    """
    ours, noted = {link for _, link in _links(Path("/proc/self/ns"))}, set[str]()
    with ExitStack() as stack:
        for pid in pids:
            for entry, link in _links(Path(f"/proc/{pid}/ns")):
                if link not in ours | noted:
                    with suppress(OSError):  # it has ended meanwhile
                        held = os.open(entry, os.O_RDONLY)
                        stack.callback(os.close, held)
                        noted.add(link)
        yield frozenset(noted)


def keepers(namespaces: frozenset[str]) -> list[str]:
    """Return who else is in one of these namespaces, or has it open, as far as we may see."""
    return [
        f"{process}: {link}"
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and int(process.name) != os.getpid()
        for folder in ("ns", "fd")
        for _, link in _links(process / folder)
        if link in namespaces and not _waits_to_be_reaped(process)
    ]


def _links(folder: Path) -> Iterator[tuple[Path, str]]:
    with suppress(OSError):  # it has ended meanwhile, or is somebody else's
        for entry in folder.iterdir():
            with suppress(OSError):
                yield entry, str(entry.readlink())


def _waits_to_be_reaped(process: Path) -> bool:
    with suppress(OSError):
        return (process / "stat").read_text().rpartition(") ")[2].startswith("Z")
    return True
