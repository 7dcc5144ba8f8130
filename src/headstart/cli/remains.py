"""What is left of a service after it ended, counted by somebody outside of it.

Before: note every process below the service, every control group that they are in, with the
groups above it (a run's own group holds others, and no process), and every mount namespace
of theirs. After: look whether any of these is still there (a namespace, as long as one of
the processes is: its number alone could be somebody else's), and whether anything is mounted
in the service's state. What the service itself was in is not its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from headstart.backends.spawner.guest.processes import descendants

__all__ = ["Remains", "Watched", "watch"]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is still there.

    Attributes:
        mounts: Mount points in the service's state, and mount namespaces (`namespace mnt:[number]`).
    """

    processes: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()
    cgroups: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not (self.processes or self.mounts or self.cgroups)

    def __str__(self) -> str:
        return f"{len(self.processes)} processes, {len(self.mounts)} mounts, {len(self.cgroups)} cgroups"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A service and all below it, as they were; a pid alone could be somebody else's later."""

    started: dict[int, int]
    cgroups: frozenset[Path]
    namespaces: frozenset[str]
    state_dir: Path

    def remains(self) -> Remains:
        """Count what is still there now."""
        left = tuple(pid for pid, began in self.started.items() if _began(pid) == began)
        points = (point for point in _mount_points() if point.startswith(f"{self.state_dir}/"))
        kept = sorted(self.namespaces & _mount_namespaces(left))
        return Remains(
            processes=left,
            mounts=(*points, *(f"namespace {namespace}" for namespace in kept)),
            cgroups=tuple(str(group) for group in sorted(self.cgroups) if group.exists()),
        )


def watch(pid: int, *, state_dir: Path) -> Watched:
    """Note a running service's processes, control groups and mount namespaces."""
    began = {one: _began(one) for one in (pid, *descendants(pid))}
    started = {one: ticks for one, ticks in began.items() if ticks is not None}
    return Watched(
        started=started,
        cgroups=_cgroups_of(started) - _cgroups_of([pid]),
        namespaces=_mount_namespaces(started) - _mount_namespaces([pid]),
        state_dir=state_dir,
    )


def _began(pid: int) -> int | None:
    """Return a process's start time in clock ticks, None if it is gone or only waits to be reaped."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def _cgroups_of(pids: Iterable[int]) -> frozenset[Path]:
    """Return the groups that these processes are in, and those above."""
    return frozenset(group for pid in pids for group in _cgroups(pid))


def _cgroups(pid: int) -> Iterator[Path]:
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path)
        for group in (own, *own.parents)[:-1]:  # the root is nobody's own, and shown for whoever is just ending
            folder = _hierarchy(controllers) / group.relative_to("/")
            if folder.exists():
                yield folder


def _hierarchy(controllers: str) -> Path:
    if controllers:
        return _CGROUPS / controllers.removeprefix("name=")
    return _CGROUPS / "unified" if (_CGROUPS / "unified").exists() else _CGROUPS


def _mount_namespaces(pids: Iterable[int]) -> frozenset[str]:
    """Return the mount namespaces of these processes, as far as we may see them."""
    found: set[str] = set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile, or is somebody else's
            found.add(str((_PROC / str(pid) / "ns" / "mnt").readlink()))
    return frozenset(found)


def _mount_points() -> Iterator[str]:
    for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
        yield line.split()[4]
