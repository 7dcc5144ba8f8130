"""What one run of the service leaves on the machine, and sweeping up after runs that crashed.

Every run owns one folder `<base>/run-…` and holds a lock on the file `lock` in it for as
long as its spawner lives; the kernel lets go of the lock however the spawner ends. A folder
whose lock is free is therefore stale. The file `cgroups` in it lists the run's control
groups, one path a line. Making and sweeping folders happens under the base's own lock, so
that a folder is never seen between its making and its locking.

A run locks its control groups (the folders themselves) in the same way. Groups of all
services lie side by side, also of those in other PID namespaces, where a pid tells
nothing; a lock does. Whoever makes a group looks, once it holds the lock, whether the group is
still there: a sweep may have been in between.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import time
from typing import Any

__all__ = ["Run", "make_groups", "remove_cgroup", "remove_tree", "remove_trees", "sweep_cgroups"]

_PREFIX = "run-"
_TRIES, _PAUSE_S = 1000, 0.01


class Run:
    """This run's folder; making it first sweeps stale ones.

    Raises:
        OSError: It cannot be made, or somebody else has been making or sweeping one for 10 s.
    """

    def __init__(self, base: str) -> None:
        os.makedirs(base, mode=0o700, exist_ok=True)
        with open(base + "/sweep.lock", "a", opener=_private) as guard:
            _lock_soon(guard.fileno(), base)
            _sweep(base)
            self.name = f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
            self.path = os.path.join(base, self.name)
            os.mkdir(self.path, 0o700)
            self._lock = os.open(self.path + "/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._held_groups: list[int] = []

    def make_cgroup(self, path: str) -> None:
        """Make a control group that is remembered, and nobody else's to sweep while this process lives."""
        with open(self.path + "/cgroups", "a", opener=_private) as listing:
            listing.write(path + "\n")
        for _ in range(_TRIES):
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass  # the try before has made it, and a sweep has not taken it away yet
            held = _hold(path)
            if held is not None:
                self._held_groups.append(held)
                return
            time.sleep(_PAUSE_S)
        raise OSError(errno.EBUSY, f"{path}: somebody else keeps it locked")

    def remove(self) -> None:
        """Remove the folder and the control groups; nothing of the run may live any more."""
        _remove_run(self.path)
        for held in (*self._held_groups, self._lock):
            os.close(held)


def make_groups(run: Run, places: list[dict[str, Any]], *, prefix: str) -> list[str]:
    """Make the run's own control group in every place, after removing what dead runs left there.

    Args:
        run: Whose groups these are; they are removed with it.
        places: Each with `folder`, and the controllers that groups below ours are to get (`hand_down`).
        prefix: Begins the name of every run's group.

    Returns:
        The folder of the group in each place.
    """
    for place in places:
        sweep_cgroups(place["folder"], prefix)
    groups: list[str] = []
    for place in places:
        group = f"{place['folder']}/{prefix}{run.name}"
        _hand_down(place["folder"], place["hand_down"])
        run.make_cgroup(group)
        _hand_down(group, place["hand_down"])
        groups.append(group)
    return groups


def _hand_down(group: str, controllers: list[str]) -> None:
    """Let the groups below a group have controllers; which it refuses, the service sees for itself."""
    for controller in controllers:
        try:
            with open(group + "/cgroup.subtree_control", "w") as handed_down:
                handed_down.write("+" + controller)
        except OSError:
            pass  # nobody may, or processes of the group itself are in the way


def _lock_soon(descriptor: int, what: str) -> None:
    """Lock, but do not outlive our service because somebody else holds the lock and is stopped."""
    for _ in range(_TRIES):
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
    raise OSError(errno.EBUSY, f"{what}: another start there does not get on")


def _private(path: str, flags: int) -> int:
    """Open a file that only its user can read (the umask is the sandboxes')."""
    return os.open(path, flags, 0o600)


def _sweep(base: str) -> None:
    for name in os.listdir(base):
        folder = os.path.join(base, name)
        if name.startswith(_PREFIX) and _is_stale(folder):
            _remove_run(folder)


def _is_stale(folder: str) -> bool:
    try:
        lock = os.open(folder + "/lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _remove_run(folder: str) -> None:
    try:
        with open(folder + "/cgroups") as listing:
            groups = listing.read().split("\n")
    except FileNotFoundError:
        groups = []
    for group in reversed([group for group in groups if group]):
        remove_cgroup(group)
    remove_tree(folder)


def remove_tree(folder: str) -> None:
    """Remove a folder, also if it holds folders that their owner made unreadable."""

    def open_up_and_retry(_function: object, path: str, _trouble: object) -> None:
        try:
            os.chmod(os.path.dirname(path), 0o700)
            os.chmod(path, 0o700)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        except OSError:
            pass  # counted as a leftover, and tried again by the next sweep

    shutil.rmtree(folder, onerror=open_up_and_retry)


def remove_trees(folders: list[str]) -> None:
    """Remove several folders, likewise."""
    for folder in folders:
        remove_tree(folder)


def remove_cgroup(path: str, *, patience_s: float = 0.5) -> bool:
    """Kill what is in a control group (and in those below it) and remove it.

    A group stays busy for a moment after its last process has died, hence the patience.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            for entry in os.scandir(path):
                if entry.is_dir(follow_symlinks=False):
                    remove_cgroup(entry.path, patience_s=patience_s)
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > give_up:
                return False
            _kill_members(path)
            time.sleep(0.002)
        else:
            return True


def sweep_cgroups(parent: str, prefix: str) -> None:
    """Remove empty groups `<prefix>run-…` whose spawner is dead, whatever folder its run had.

    Looks in `parent` and in its siblings: a session or a unit often has a group of its own,
    and the next one would never see what this one left. Nothing is killed: a group that is
    in use is busy and stays.
    """
    for folder in _folders_in(os.path.dirname(parent)):
        for group in _folders_in(folder):
            if os.path.basename(group).startswith(prefix + _PREFIX):
                held = _hold(group)
                if held is not None:
                    _remove_empty(group)
                    os.close(held)


def _folders_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # it has gone meanwhile, or is none of our business


def _hold(group: str) -> int | None:
    """Return a descriptor that keeps a group locked; None if somebody else does, or it is gone."""
    try:
        held = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(group), os.fstat(held)):
            return held
    except OSError:
        pass  # it is somebody else's, or has been swept
    os.close(held)
    return None


def _remove_empty(group: str) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            pass  # busy


def _kill_members(path: str) -> None:
    try:
        with open(path + "/cgroup.procs") as members:
            for pid in members.read().split():
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass  # they ended by themselves
