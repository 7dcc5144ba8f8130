"""Where control groups may be made, and which controllers they would have there.

Version 1 has one hierarchy per controller, version 2 one for all; a machine may mount
both (then version 2 has no controllers, but can still hold programs that filter by
group, see `metadata_block`).

In version 2 a group has the controllers that its parent hands down (`cgroup.subtree_control`),
and one that holds processes hands down none. A service's own group holds the service, so
the place is an ancestor: the lowest of those that hand down most. On a machine with systemd
that is as far as one may go, for whatever it has not delegated is its own to change; without
systemd, nobody else has filled in the root, and we do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["WANTED", "Place", "find_places", "group_folder", "limits_memory", "offered"]

WANTED = frozenset({"memory", "pids", "cpu", "cpuacct"})
_SYSTEMD = "/run/systemd/system"


@dataclass(frozen=True)
class Place:
    """A folder in which groups of ours may be made, with the controllers that work in them."""

    folder: str
    version: int
    controllers: frozenset[str]

    def as_told_to_spawner(self) -> dict[str, Any]:
        """Return what `runs.make_groups` takes; in version 1 a group has what its hierarchy has."""
        return {"folder": self.folder, "hand_down": sorted(self.controllers) if self.version == 2 else []}


def find_places(proc: str = "/proc/self", systemd: str = _SYSTEMD) -> tuple[Place, ...]:
    """Return where this user may make groups; empty if nowhere.

    Args:
        proc: Where a process's `mountinfo` and `cgroup` are.
        systemd: A folder that exists if systemd runs the machine.
    """
    own = _own_groups(proc)
    places: dict[str, Place] = {}  # by hierarchy: one may be mounted several times
    for mount in _mounted(proc):
        if mount.hierarchy not in places:
            place = (
                _unified_place(mount, own.get("", "/"), managed=os.path.isdir(systemd))
                if mount.kind == "cgroup2"
                else _legacy_place(mount, own)
            )
            if place is not None:
                places[mount.hierarchy] = place
    return tuple(places.values())


@dataclass(frozen=True)
class _Mount:
    hierarchy: str
    root: str
    point: str
    kind: str
    options: frozenset[str]


def _mounted(proc: str) -> Iterator[_Mount]:
    with open(proc + "/mountinfo") as mountinfo:
        for line in mountinfo:
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split()
            if kind in {"cgroup", "cgroup2"}:
                yield _Mount(
                    hierarchy=fields[2],
                    root=fields[3],
                    point=fields[4],
                    kind=kind,
                    options=frozenset(options.split(",")),
                )


def _own_groups(proc: str) -> dict[str, str]:
    """Controllers (comma-separated, "" for version 2) → this process's group."""
    with open(proc + "/cgroup") as cgroup:
        return {names: path for _, names, path in (line.rstrip("\n").split(":", 2) for line in cgroup)}


def _below(mount: _Mount, path: str) -> str:
    if path.startswith(mount.root) and mount.root != "/":
        path = path[len(mount.root) :]
    return os.path.normpath(mount.point + "/" + path)


def _legacy_place(mount: _Mount, own: dict[str, str]) -> Place | None:
    controllers = WANTED & mount.options
    path = next((own[name] for name in own if controllers & set(name.split(","))), "/")
    folder = _below(mount, path)
    if controllers and os.access(folder, os.W_OK):
        return Place(folder, 1, controllers)
    return None


def _unified_place(mount: _Mount, path: str, *, managed: bool) -> Place | None:
    """Among our own group and its ancestors, as far as we may move processes there, take the best."""
    places = [
        Place(folder, 2, _handed_down(folder, managed=managed))
        for folder in _attachable(mount.point, _below(mount, path))
    ]
    return max(places, key=lambda place: len(place.controllers), default=None)  # of equals the first, the lowest


def _attachable(top: str, folder: str) -> Iterator[str]:
    while os.access(folder, os.W_OK) and os.access(folder + "/cgroup.procs", os.W_OK):
        yield folder
        if folder == top:
            return
        folder = os.path.dirname(folder)


def _handed_down(folder: str, *, managed: bool) -> frozenset[str]:
    is_root = not os.path.exists(folder + "/cgroup.type")
    return offered(folder) if managed or not is_root else WANTED & _words(folder + "/cgroup.controllers")


def limits_memory(folder: str) -> bool:
    """Return whether groups below `folder` limit memory."""
    return os.path.exists(folder + "/memory.limit_in_bytes") or "memory" in offered(folder)


def group_folder(base: str, group: str, *, nested: bool) -> str:
    """Return the folder of a sandbox's group `<lineage>/<number>`, below the run's.

    Where memory is limited, it is in its lineage's: a page is charged where it was first written to, and stays so for as long
    as a fork or a checkpoint has it. Elsewhere it lies beside all others.
    """
    return f"{base}/{group}" if nested else f"{base}/{group.rpartition('/')[2]}"


def offered(folder: str) -> frozenset[str]:
    """Return the controllers that groups below `folder` have, in version 2."""
    return WANTED & _words(folder + "/cgroup.subtree_control")


def _words(path: str) -> frozenset[str]:
    try:
        with open(path) as file:
            return frozenset(file.read().split())
    except OSError:
        return frozenset()
