"""Checkpoints of a running sandbox's files: its topmost layer is sealed or copied, by a helper of the spawner.

*Sealing*: the file tree is built anew in a mount namespace of the helper's, from the same
layers and an empty one on top, and takes the old tree's place by `pivot_root`. What runs in
the sandbox has its root there from then on; the layer that was the topmost changes no more.

Whoever holds a file open for writing, a folder open, a shared mapping or a working folder in
the old tree would go on writing into the sealed layer, and nobody would notice. So they are
looked for, while everything in the sandbox is frozen. If there is one, the topmost layer is
*copied* instead, and stays where it is for those who hold something in it.

The tree that went is taken away when the answer has been given: that waits for every CPU.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from headstart.backends.local.guest import private
from headstart.backends.local.guest.copying import copy_tree
from headstart.backends.local.guest.freezing import frozen
from headstart.backends.local.guest.holders import holders
from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["Errand"]

_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_CARRIED = ("/proc", "/dev/pts")
_MOST_TOLD = 8


class Errand:
    """What a helper does to one sandbox; it lives in the spawner's namespaces until it begins.

    Args:
        init: Pid of the sandbox's init, as the spawner sees it.
        mounts: A descriptor of the sandbox's mount namespace.
        template: A descriptor of its template's.
        groups: Its control groups' folders.
        owner: See `private.lay_private_parts`.
    """

    def __init__(
        self, *, init: int, mounts: int, template: int, groups: list[str], owner: tuple[int, int] | None
    ) -> None:
        self._init = init
        self._mounts = mounts
        self._template = template
        self._groups = groups
        self._owner = owner
        self._has_swapped = False

    def do(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what `message["do"]` says; return what to tell.

        `seal`: add the empty layer `plan["layers"][-1]`; with `despite_processes`, also while something runs.
        `drop`: delete `layers`, which nobody uses any more.

        Raises:
            OSError: It failed, and the sandbox is what it was.
        """
        act = {"seal": self._seal, "drop": self._drop}[message["do"]]
        return act(message)

    def tidy_up(self) -> None:
        """Take the tree that was replaced away, if one was. Who replaced another since has both to take away."""
        if not self._has_swapped:
            return
        with self._inside():
            try:
                syscalls.umount(private.PREVIOUS)
            except OSError as error:
                if error.errno != errno.EINVAL:  # somebody has
                    raise

    # ------------------------------------------------------------ what can be done

    def _seal(self, message: dict[str, Any]) -> dict[str, Any]:
        running = self._running()
        if running and not message["despite_processes"]:
            return {"outcome": "busy", "processes": [_told(pid) for pid in running[:_MOST_TOLD]]}
        *_, topmost, new = message["plan"]["layers"]
        if not running:
            return self._seal_unless_empty(message["plan"], topmost)
        with frozen(self._groups, self._running):
            held = holders(self._running(), self._targets(message["plan"]))
            if not held:
                try:
                    return self._seal_unless_empty(message["plan"], topmost)
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        raise
                    held = ["somebody writes to a file that no process shows (it is on its way through a socket, say)"]
            return self._copy(topmost, new, message["most_bytes"], held)

    def _seal_unless_empty(self, plan: dict[str, Any], topmost: str) -> dict[str, Any]:
        with self._inside():
            if not _has_changed(f"{private.SCRATCH}/{topmost}"):
                return {"outcome": "unchanged"}
            self._swap(plan)
        return {"outcome": "sealed"}

    def _copy(self, topmost: str, new: str, most_bytes: int, held: list[str]) -> dict[str, Any]:
        with self._inside():
            source, target = f"{private.SCRATCH}/{topmost}", f"{private.SCRATCH}/{new}"
            try:
                copied = copy_tree(source, target, skip="work", most_bytes=most_bytes)
            except OSError as error:
                shutil.rmtree(target, ignore_errors=True)
                if error.errno != errno.EFBIG:
                    raise
                return {"outcome": "too-large", "held": held[:_MOST_TOLD]}
        return {"outcome": "copied", "bytes": copied, "held": held[:_MOST_TOLD]}

    def _drop(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._inside():
            self._delete(*message["layers"])
        return {}

    # ------------------------------------------------------------ the tree

    def _swap(self, plan: dict[str, Any]) -> None:
        """From inside: put the tree of a plan in the place of the sandbox's own, which nobody may write to any more."""
        tree = self._built(plan)
        try:
            with self._closed_to_writers(plan):
                syscalls.move_mount(tree, private.NEXT)
                syscalls.pivot_root(private.NEXT, private.NEXT + private.PREVIOUS)
                self._has_swapped = True
        finally:
            os.close(tree)
            if not self._has_swapped:
                self._delete(plan["layers"][-1])

    def _built(self, plan: dict[str, Any]) -> int:
        """From inside: return a detached mount of the tree of a plan, whose last layer is new."""
        scratch = syscalls.open_tree(private.SCRATCH, syscalls.OPEN_TREE_CLONE)
        carried = {path: syscalls.open_tree(path, _COPY) for path in _CARRIED}
        syscalls.setns(self._template, syscalls.CLONE_NEWNS)
        try:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            private.lay_private_parts(plan, owner=self._owner, masked=False, scratch=scratch, carried=carried)
            if self._owner is None:
                private.hide_host_proc()
            tree = syscalls.open_tree("/", _COPY)
        except OSError:
            syscalls.setns(self._mounts, syscalls.CLONE_NEWNS)
            self._delete(plan["layers"][-1])
            raise
        syscalls.setns(self._mounts, syscalls.CLONE_NEWNS)
        return tree

    @staticmethod
    def _delete(*layers: str) -> None:
        """From inside: delete layers."""
        for name in layers:
            shutil.rmtree(f"{private.SCRATCH}/{name}", ignore_errors=True)

    @contextmanager
    def _closed_to_writers(self, plan: dict[str, Any]) -> Generator[None, None, None]:
        """Make what is to be sealed read-only, for whoever still holds anything of it.

        Raises:
            OSError: `EBUSY`: the kernel knows of somebody who writes.
        """
        closed: list[int] = []
        try:
            for target in self._targets(plan):
                closed.append(syscalls.open_tree(target, 0))
                syscalls.mount_setattr(closed[-1], syscalls.MOUNT_ATTR_RDONLY, recursive=False)
            yield
        except OSError:
            for mount in closed:
                syscalls.mount_setattr(mount, 0, without=syscalls.MOUNT_ATTR_RDONLY, recursive=False)
            raise
        finally:
            for mount in closed:
                os.close(mount)

    @contextmanager
    def _inside(self) -> Generator[None, None, None]:
        """See the sandbox's file tree for a while, with the rights of the spawner."""
        home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(self._mounts, syscalls.CLONE_NEWNS)
            yield
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWNS)
            os.close(home)

    # ------------------------------------------------------------ what runs

    def _running(self) -> list[int]:
        """List what runs beside its init; a control group forgets nobody who forks while we look."""
        if not self._groups:
            found = processes.descendants(self._init)
        elif any(_is_alone(group) for group in self._groups):
            return []
        else:
            with open(self._groups[0] + "/cgroup.procs") as listing:
                found = [int(pid) for pid in listing.read().split()]
        return [pid for pid in found if pid != self._init and processes.is_alive(pid)]

    @staticmethod
    def _targets(plan: dict[str, Any]) -> set[str]:
        return {*plan["private"], *plan["overlays"]}


def _has_changed(layer: str) -> bool:
    """Whether anything is in a layer; the first one of a sandbox has the private folders."""
    return any(os.listdir(f"{layer}/{part}/upper") for part in os.listdir(layer))


def _is_alone(group: str) -> bool:
    """Whether a control group has one task: much cheaper than a list of its processes, where the kernel counts."""
    try:
        with open(group + "/pids.current") as count:
            return count.read() == "1\n"
    except FileNotFoundError:
        return False


def _told(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return f"{comm.read().strip()} ({pid})"
    except OSError:
        return str(pid)
