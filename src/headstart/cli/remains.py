"""What is left of a service after it ended, counted by somebody outside of it.

Before: note every process below the service and every control group that they are in.
After: look whether any of these is still there, and whether anything is mounted in its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headstart.backends.spawner.guest.processes import descendants

__all__ = ["Remains", "Watched", "watch"]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What is still there."""

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
    state_dir: Path

    def remains(self) -> Remains:
        """Count what is still there now."""
        return Remains(
            processes=tuple(pid for pid, began in self.started.items() if _began(pid) == began),
            mounts=tuple(point for point in _mount_points() if point.startswith(f"{self.state_dir}/")),
            cgroups=tuple(str(group) for group in sorted(self.cgroups) if group.exists()),
        )


def watch(pid: int, *, state_dir: Path) -> Watched:
    """Note a running service's processes and control groups."""
    own = set(_cgroups_of(pid))
    started: dict[int, int] = {}
    groups: set[Path] = set()
    for one in (pid, *descendants(pid)):
        began = _began(one)
        if began is not None:
            started[one] = began
            groups.update(_cgroups_of(one))
    return Watched(started=started, cgroups=frozenset(groups - own), state_dir=state_dir)


def _began(pid: int) -> int | None:
    """Return a process's start time in clock ticks, None if it is gone or only waits to be reaped."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] == "Z" else int(fields[19])


def _cgroups_of(pid: int) -> Iterator[Path]:
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if path == "/":
            continue  # nobody's own, and where whoever is just ending is shown
        for root in _hierarchy(controllers):
            folder = root / path.lstrip("/")
            if folder.exists():
                yield folder


def _hierarchy(controllers: str) -> tuple[Path, ...]:
    if controllers:
        return (_CGROUPS / controllers.removeprefix("name="),)
    return (_CGROUPS / "unified",) if (_CGROUPS / "unified").exists() else (_CGROUPS,)


def _mount_points() -> Iterator[str]:
    for line in (_PROC / "self" / "mountinfo").read_text().splitlines():
        yield line.split()[4]
