"""Control groups: what the service writes and reads in those of a run.

A run has a group in each *place* (see `guest.places`), and its sandboxes have theirs below
it; where memory is counted, each below that of its *lineage*: a sandbox, its forks, and what
checkpoints keep of their programs. Whoever may not make groups at all has no places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from headstart.backends.contract import Limits
from headstart.backends.local.guest.places import Place, group_folder, offered
from headstart.backends.spawner.guest.processes import descendants, in_group, pid_namespace
from headstart.backends.spawner.guest.runs import remove_cgroup

__all__ = ["GroupSetting", "Groups"]

_PERIOD_US = 100_000
_ROUNDS = 50
_FULL_SHARES, _BACKGROUND_SHARES = 1024, 256
_FULL_WEIGHT, _BACKGROUND_WEIGHT = 100, 25
_MOST_SHARES, _MOST_WEIGHT = 262_144, 10_000

GroupSetting = tuple[str, str, str]
"""The run's group (a folder), a file in the sandbox's group below it, and what to write there."""


class Groups:
    """The groups of one run: `folders[i]` is in `places[i]`.

    Attributes:
        controllers: Those that the groups of sandboxes really have.
    """

    def __init__(self, places: tuple[Place, ...], folders: list[str]) -> None:
        self._at = [(_as_made(place, folder), folder) for place, folder in zip(places, folders, strict=True)]
        self.controllers = frozenset[str]().union(*(place.controllers for place, _ in self._at))

    def settings(self, limits: Limits, *, background: bool) -> list[GroupSetting]:
        """Return what to write for a sandbox with these limits."""
        chosen: list[GroupSetting] = []
        for place, folder in self._at:
            chosen.extend((folder, name, value) for name, value in _limit_files(place, limits) if _exists(folder, name))
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

    def folders(self, group: str) -> list[str]:
        """Return the folders of a sandbox's group, in each hierarchy."""
        return [str(self._folder(place, base, group)) for place, base in self._at]

    @staticmethod
    def _folder(place: Place, base: str, group: str) -> Path:
        return Path(group_folder(base, group, nested="memory" in place.controllers))

    def settings_beside(self, group: str, limits: Limits) -> list[GroupSetting]:
        """Return what to write for a group that lies beside a sandbox's and has these limits."""
        beside = dict(zip((base for _, base in self._at), self.folders(group), strict=True))
        return [
            (str(Path(beside[base]).parent), name, value)
            for base, name, value in self.settings(limits, background=False)
        ]

    def bound_lineage(self, group: str, limits: Limits, *, sandboxes: int) -> bool:
        """Let the lineage of a sandbox's group hold as much memory as so many may; return whether that is its bound now.

        If it holds more already, that is.
        """
        if limits.memory_bytes is None:
            return True
        wanted = limits.memory_bytes * sandboxes
        for place, base in self._at:
            if "memory" in place.controllers:
                at = self._folder(place, base, group).parent
                most = max(wanted, _number(at / _used_file(place)))
                try:
                    for name, value in _limit_files(place, Limits(memory_bytes=most, pids=None)):
                        if _exists(base, name):
                            (at / name).write_text(value)
                except OSError:
                    return False  # it has ended, or holds more by now
                return most == wanted
        return True

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

    def gather(self, group: str, init: int, programs: Sequence[int]) -> None:
        """Move what has begun in a sandbox and is not in all of its groups yet (see `guest.moving`) there; bounded.

        Args:
            group: The sandbox's.
            init: Its init's pid.
            programs: Pids of what is no child of anybody in it.
        """
        folders, inside = self.folders(group), pid_namespace(init)
        for _ in range(_ROUNDS):
            listed = {folder: set(in_group(folder)) for folder in folders}
            trees = {pid for program in programs for pid in (program, *descendants(program))}
            members = {pid for pid in trees.union(*listed.values()) if pid_namespace(pid) == inside}
            left = [(folder, pid) for folder in folders for pid in members - listed[folder]]
            if not inside or not left:
                return
            for folder, pid in left:
                with suppress(OSError):  # it, or the sandbox, has ended
                    Path(folder, "cgroup.procs").write_text(str(pid))

    def have(self, group: str, programs: Sequence[int]) -> bool:
        """Whether programs are in all of a sandbox's groups."""
        return not programs or all(set(programs) <= set(in_group(folder)) for folder in self.folders(group))

    def remove(self, group: str) -> None:
        """Remove a group, killing what is in it; may take a moment."""
        for _, folder in self._at:
            remove_cgroup(str(Path(folder, group)))

    def raise_priority(self, group: str) -> None:
        """Give a group its full share of the CPU; nothing happens if it is gone."""
        for place, folder in self._at:
            for name, value in _share_files(place, background=False):
                try:
                    (self._folder(place, folder, group) / name).write_text(value)
                except OSError:
                    return  # the sandbox has ended

    def memory_bytes(self, group: str) -> int | None:
        """Return what is charged to a group, without cache that can be dropped at once; None if not counted."""
        for place, folder in self._at:
            if "memory" in place.controllers:
                return _charged(place, self._folder(place, folder, group))
        return None

    def lineage_memory_bytes(self, group: str) -> int:
        """Return what is charged to the lineage of a sandbox's group, likewise; 0 if not counted."""
        for place, folder in self._at:
            if "memory" in place.controllers:
                return _charged(place, self._folder(place, folder, group).parent)
        return 0

    def cpu_s(self, group: str) -> float | None:
        """Return the CPU time of a group, or None if not counted."""
        for place, folder in self._at:
            at = self._folder(place, folder, group)
            if place.version == 2 and "cpu" in place.controllers:
                return _field(at / "cpu.stat", "usage_usec") / 1e6
            if "cpuacct" in place.controllers:
                return _number(at / "cpuacct.usage") / 1e9
        return None

    def process_count(self, group: str) -> int | None:
        """Return how many processes of a sandbox are in its group, its init among them; None if there are no groups.

        What is in our own PID namespace is none of it: shadows of programs, and images on their way out.
        """
        ours = pid_namespace(os.getpid())
        for folder in self.folders(group):
            return sum(pid_namespace(pid) != ours for pid in in_group(folder))
        return None

    def kills_for_memory(self, group: str) -> int:
        """Return how often the kernel has killed in a group because its memory was used up."""
        for place, folder in self._at:
            if "memory" in place.controllers:
                name = "memory.events" if place.version == 2 else "memory.oom_control"
                return _field(self._folder(place, folder, group) / name, "oom_kill")
        return 0

    def count(self, prefix: str) -> int:
        """Return how many groups exist whose names begin so, in the hierarchy that has most."""
        listed = [[entry.name for entry in Path(folder).glob("*")] for _, folder in self._at]
        return max((sum(name.startswith(prefix) for name in names) for names in listed), default=0)


def _as_made(place: Place, folder: str) -> Place:
    """Believe what the kernel says about the run's group rather than what was hoped for."""
    return place if place.version == 1 else replace(place, controllers=offered(folder))


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


def _exists(folder: str, name: str) -> bool:
    """A kernel that accounts for no swap (`swapaccount=0`) has no file that could limit it."""
    return name != "memory.swap.max" or Path(folder, name).exists()


def _used_file(place: Place) -> str:
    return "memory.current" if place.version == 2 else "memory.usage_in_bytes"


def _charged(place: Place, at: Path) -> int:
    stale = "inactive_file" if place.version == 2 else "total_inactive_file"
    return max(0, _number(at / _used_file(place)) - _field(at / "memory.stat", stale))


def _share_files(place: Place, *, background: bool) -> Iterable[tuple[str, str]]:
    if "cpu" in place.controllers:
        if place.version == 2:
            yield "cpu.weight", str(_BACKGROUND_WEIGHT if background else _FULL_WEIGHT)
        else:
            yield "cpu.shares", str(_BACKGROUND_SHARES if background else _FULL_SHARES)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _read(path).strip()
    return int(text) if text.isdigit() else 0


def _field(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
