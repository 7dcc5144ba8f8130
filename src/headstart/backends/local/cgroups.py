"""Control groups: where this service may make its own, and what it writes and reads there.

Version 1 has one hierarchy per controller, version 2 one for all; a machine may mount
both (then version 2 has no controllers, but can still hold programs that filter by
group, see `metadata_block`). A *place* is a folder below which our groups go, with the
controllers that work there. Whoever may not make groups at all gets no places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headstart.backends.contract import Limits
from headstart.backends.spawner.guest.processes import descendants
from headstart.backends.spawner.guest.runs import remove_cgroup

__all__ = ["GroupSetting", "Groups", "Place", "find_places"]

_WANTED = frozenset({"memory", "pids", "cpu", "cpuacct"})
_PERIOD_US = 100_000
_ROUNDS = 50
_FULL_SHARES, _BACKGROUND_SHARES = 1024, 256
_FULL_WEIGHT, _BACKGROUND_WEIGHT = 100, 25
_MOST_SHARES, _MOST_WEIGHT = 262_144, 10_000

GroupSetting = tuple[str, str, str]
"""The run's group (a folder), a file in the sandbox's group below it, and what to write there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder in which groups of ours may be made."""

    folder: Path
    version: int
    controllers: frozenset[str]


def find_places() -> tuple[Place, ...]:
    """Return where this user may make groups; empty if nowhere."""
    own = _own_groups()
    places: dict[str, Place] = {}  # by hierarchy: one may be mounted several times
    for mount in _mounted():
        if mount.hierarchy not in places and (place := _place_in(mount, own)):
            places[mount.hierarchy] = place
    return tuple(places.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    hierarchy: str
    root: str
    point: Path
    kind: str
    options: frozenset[str]


def _mounted() -> Iterable[_Mount]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split()
        if kind in {"cgroup", "cgroup2"}:
            yield _Mount(
                hierarchy=fields[2],
                root=fields[3],
                point=Path(fields[4]),
                kind=kind,
                options=frozenset(options.split(",")),
            )


def _place_in(mount: _Mount, own: dict[str, str]) -> Place | None:
    if mount.kind == "cgroup2":
        return _unified_place(mount, own.get("", "/"))
    controllers = _WANTED & mount.options
    path = next((own[name] for name in own if controllers & set(name.split(","))), "/")
    folder = _below(mount, path)
    if controllers and os.access(folder, os.W_OK):
        return Place(folder=folder, version=1, controllers=controllers)
    return None


def _own_groups() -> dict[str, str]:
    """Controllers (comma-separated, "" for version 2) → this process's group."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    return {names: path for _, names, path in (line.split(":", 2) for line in lines)}


def _below(mount: _Mount, path: str) -> Path:
    if path.startswith(mount.root) and mount.root != "/":
        path = path[len(mount.root) :]
    return mount.point / path.lstrip("/")


def _unified_place(mount: _Mount, path: str) -> Place | None:
    """Find the lowest group from ours upwards that lets us make groups with controllers below it.

    A group that holds processes cannot hand controllers down, so it is usually an ancestor
    (root: any; others: what systemd delegated to the user).
    """
    own = _below(mount, path)
    bare: Place | None = None
    for folder in (own, *own.parents):
        if not folder.is_relative_to(mount.point) or not _may_attach(folder):
            break
        controllers = _WANTED & set(_read(folder / "cgroup.subtree_control").split())
        place = Place(folder=folder, version=2, controllers=frozenset(controllers))
        if controllers:
            return place
        bare = place
    return bare


def _may_attach(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


class Groups:
    """The groups of one run: `folders[i]` is in `places[i]`."""

    def __init__(self, places: tuple[Place, ...], folders: list[str]) -> None:
        self._at = list(zip(places, folders, strict=True))
        self.controllers = frozenset[str]().union(*(place.controllers for place in places))

    def settings(self, limits: Limits, *, background: bool) -> list[GroupSetting]:
        """Return what to write for a sandbox with these limits."""
        chosen: list[GroupSetting] = []
        for place, folder in self._at:
            chosen.extend((folder, name, value) for name, value in _limit_files(place, limits))
            chosen.extend((folder, name, value) for name, value in _share_files(place, background=background))
        return chosen

    def weigh(self, cores: int) -> None:
        """Let all sandboxes together weigh as much as two full ones for each core.

        A group competes with its *siblings*, and beside ours those are single processes:
        left alone, all sandboxes together would weigh as much as one of them.
        """
        for place, folder in self._at:
            if "cpu" not in place.controllers:
                continue
            name, full, most = ("cpu.weight", _FULL_WEIGHT, _MOST_WEIGHT)
            if place.version == 1:
                name, full, most = ("cpu.shares", _FULL_SHARES, _MOST_SHARES)
            Path(folder, name).write_text(str(min(most, full * 2 * cores)))

    def make(self, group: str, limits: Limits, *, background: bool) -> None:
        """Make a group with these limits.

        Raises:
            OSError: It cannot be made.
        """
        for _, folder in self._at:
            Path(folder, group).mkdir()
        for folder, name, value in self.settings(limits, background=background):
            Path(folder, group, name).write_text(value)

    def take_in(self, group: str, root: int) -> None:
        """Move a process and all below it into a group; bounded, also against one that forks as fast as it can.

        Raises:
            OSError: The kernel refuses (not: a process has ended meanwhile).
        """
        moved: set[int] = set()
        for _ in range(_ROUNDS):
            members = {root, *descendants(root)} - moved
            for pid in members:
                for _, folder in self._at:
                    with suppress(ProcessLookupError):
                        Path(folder, group, "cgroup.procs").write_text(str(pid))
            if not members:
                return
            moved |= members

    def remove(self, group: str) -> None:
        """Remove a group, killing what is in it; may take a moment."""
        for _, folder in self._at:
            remove_cgroup(str(Path(folder, group)))

    def raise_priority(self, group: str) -> None:
        """Give a group its full share of the CPU; nothing happens if it is gone."""
        for place, folder in self._at:
            for name, value in _share_files(place, background=False):
                try:
                    Path(folder, group, name).write_text(value)
                except OSError:
                    return  # the sandbox has ended

    def memory_bytes(self, group: str) -> int | None:
        """Return what is charged to a group, without cache that can be dropped at once; None if not counted."""
        for place, folder in self._at:
            if "memory" in place.controllers:
                at = Path(folder, group)
                name = "memory.current" if place.version == 2 else "memory.usage_in_bytes"
                stale = "inactive_file" if place.version == 2 else "total_inactive_file"
                return max(0, _number(at / name) - _field(at / "memory.stat", stale))
        return None

    def cpu_s(self, group: str) -> float | None:
        """Return the CPU time of a group, or None if not counted."""
        for place, folder in self._at:
            if place.version == 2 and "cpu" in place.controllers:
                return _field(Path(folder, group, "cpu.stat"), "usage_usec") / 1e6
            if "cpuacct" in place.controllers:
                return _number(Path(folder, group, "cpuacct.usage")) / 1e9
        return None

    def process_count(self, group: str) -> int | None:
        """Return how many processes are in a group, or None if there are no groups."""
        for _, folder in self._at:
            return len(_read(Path(folder, group, "cgroup.procs")).split())
        return None

    def kills_for_memory(self, group: str) -> int:
        """Return how often the kernel has killed in a group because its memory was used up."""
        for place, folder in self._at:
            if "memory" in place.controllers:
                name = "memory.events" if place.version == 2 else "memory.oom_control"
                return _field(Path(folder, group, name), "oom_kill")
        return 0

    def count(self, prefix: str) -> int:
        """Return how many groups exist whose names begin so, in the hierarchy that has most."""
        listed = [[entry.name for entry in Path(folder).glob("*")] for _, folder in self._at]
        return max((sum(name.startswith(prefix) for name in names) for names in listed), default=0)


def _limit_files(place: Place, limits: Limits) -> Iterable[tuple[str, str]]:
    if "memory" in place.controllers and limits.memory_bytes is not None:
        if place.version == 2:
            yield "memory.max", str(limits.memory_bytes)
            yield "memory.swap.max", "0"
        else:
            yield "memory.limit_in_bytes", str(limits.memory_bytes)
    if "pids" in place.controllers and limits.pids is not None:
        yield "pids.max", str(limits.pids + 1)  # our init is one
    if "cpu" in place.controllers and limits.cpu_cores is not None:
        quota_us = max(1000, int(limits.cpu_cores * _PERIOD_US))
        if place.version == 2:
            yield "cpu.max", f"{quota_us} {_PERIOD_US}"
        else:
            yield "cpu.cfs_quota_us", str(quota_us)


def _share_files(place: Place, *, background: bool) -> Iterable[tuple[str, str]]:
    if "cpu" in place.controllers:
        if place.version == 2:
            yield "cpu.weight", str(_BACKGROUND_WEIGHT if background else _FULL_WEIGHT)
        else:
            yield "cpu.shares", str(_BACKGROUND_SHARES if background else _FULL_SHARES)


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
