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
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from headstart.backends.local.guest import private
from headstart.backends.local.guest.copying import copy_folder, copy_tree, delete_tree, remove_empty_way
from headstart.backends.local.guest.holders import holders, name_of
from headstart.backends.local.guest.merging import merge
from headstart.backends.spawner.guest import processes, syscalls
from headstart.backends.spawner.guest.freezing import frozen, thaw

__all__ = ["LOW_PRIORITY", "Errand"]

LOW_PRIORITY = 10
"""What merging layers adds to its niceness: whoever has something to do is to go on with it."""

_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_CARRIED = ("/proc", "/dev/pts", *private.OWN_FILES)
_MOST_TOLD = 8
_LOOKS = 8
"""Who forks faster than we look is not seen at each look, but soon again; who ends by himself is not."""


class Errand:
    """What a helper does to one sandbox; it lives in the spawner's namespaces until it begins.

    Args:
        init: Pid of the sandbox's init, as the spawner sees it.
        mounts: A descriptor of the sandbox's mount namespace.
        template: A descriptor of its template's.
        groups: Its control groups' folders.
        owner: See `private.lay_private_parts`.
        tracer: Pid of who has shadows of programs in it; 0 if nobody does.
    """

    def __init__(
        self, *, init: int, mounts: int, template: int, groups: list[str], owner: tuple[int, int] | None, tracer: int
    ) -> None:
        self._init = init
        self._mounts = mounts
        self._template = template
        self._groups = groups
        self._owner = owner
        self._tracer = tracer
        self._apart: list[int] = []
        self._beside: list[int] = []
        self._has_swapped = False
        self._held: dict[int, list[str]] = {}

    def do(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what `message["do"]` says; return what to tell.

        `apart` are those in it that are children of nobody in it; of these, `beside` stand still, and hold nothing. So do
        `resting`, as they are called in there, unless they are found to hold something.

        `seal`: add the empty layer `plan["layers"][-1]`; with `despite_processes`, also while something runs,
            and, if that could write to what is sealed, copy it to the layer `copy` instead.
        `mend`: after a helper has died over `seal`: let everything go on, and tell whether the layer was `sealed`.
        `drop`: delete `layers`, which nobody uses any more.
        `merge`: see `merging.merge`; with low priority.
        `save`: copy private `folders` (path → name), without the mounts in them, to the folder `to` of the host.

        Raises:
            OSError: It failed, and the sandbox is what it was.
        """
        self._apart, self._beside = message.get("apart", []), message.get("beside", [])
        act = {
            "seal": self._seal,
            "mend": self._mend,
            "drop": self._drop,
            "merge": self._merge,
            "save": self._save,
        }[message["do"]]
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
        plan = message["plan"]
        self._beside += self._at_rest(message.get("resting", []), self._targets(plan))
        if not self._is_busy():
            try:
                return {"outcome": self._seal_unless_empty(plan), "processes": [], "room": self._room()}
            except OSError as error:
                if error.errno != errno.EBUSY:  # else somebody whom we have not seen writes
                    raise
        names = [self._told(pid) for pid in self._running()[:_MOST_TOLD]] or ["something that comes and goes"]
        if not message["despite_processes"]:
            return {"outcome": "busy", "processes": names}
        with frozen(self._init, self._groups, self._apart):
            told = self._seal_despite_processes(message)
        return {**told, "processes": names, "room": self._room()}

    def _seal_despite_processes(self, message: dict[str, Any]) -> dict[str, Any]:
        plan = message["plan"]
        held = holders(self._running(), self._targets(plan))
        if not held:
            try:
                return {"outcome": self._seal_unless_empty(plan)}
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                held = ["somebody writes to a file that no process shows (it is on its way through a socket, say)"]
        return self._copy(message, held[:_MOST_TOLD])

    def _seal_unless_empty(self, plan: dict[str, Any]) -> str:
        *below, topmost, _ = plan["layers"]
        with self._inside():
            if not _has_changed(topmost, below[-1] if below else None):
                return "unchanged"
            self._swap(plan)
        return "sealed"

    def _room(self) -> dict[str, list[int]]:
        with self._inside():
            room = os.statvfs(private.SCRATCH)
        size = room.f_frsize
        return {
            "bytes": [(room.f_blocks - room.f_bfree) * size, room.f_blocks * size],
            "files": [room.f_files - room.f_ffree, room.f_files],
        }

    def _copy(self, message: dict[str, Any], held: list[str]) -> dict[str, Any]:
        for group in self._groups:
            if not os.path.exists(group + "/cgroup.freeze"):  # there, we would stand still, too
                with open(group + "/cgroup.procs", "w") as members:
                    members.write("0")  # what is copied is the sandbox's to pay for
        *_, topmost, _ = message["plan"]["layers"]
        with self._inside():
            source, target = f"{private.SCRATCH}/{topmost}", f"{private.SCRATCH}/{message['copy']}"
            try:
                copied = copy_tree(source, target, skip="work", most_bytes=message["most_bytes"])
                os.chmod(target, private.WHOLE)
            except OSError as error:
                delete_tree(target)
                if error.errno != errno.EFBIG:
                    raise
                return {"outcome": "too-large", "held": held}
        return {"outcome": "copied", "bytes": copied, "held": held}

    def _mend(self, message: dict[str, Any]) -> dict[str, Any]:
        plan = message["plan"]
        new = plan["layers"][-1]
        thaw(self._init, self._groups, self._apart)
        with open(f"/proc/{self._init}/mountinfo", "rb") as mounts:
            was_added = f"upperdir={new}/w/upper,".encode() in mounts.read()
        if not was_added:
            with self._inside():
                self._open_to_writers([syscalls.open_tree(target, 0) for target in self._targets(plan)])
                self._delete(new)
        with self._inside():
            self._delete(message["copy"])
        return {"outcome": "sealed" if was_added else "failed", "processes": []}

    def _drop(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._inside():
            self._delete(*message["layers"])
        return {}

    def _merge(self, message: dict[str, Any]) -> dict[str, Any]:
        os.nice(LOW_PRIORITY)
        with self._inside():
            scratch = syscalls.open_tree(private.SCRATCH, syscalls.OPEN_TREE_CLONE)
        return merge(
            f"/proc/self/fd/{scratch}",
            message,
            self._floors(message["plan"]),
            of_root=self._owner is not None,
            is_wanted=lambda: processes.is_alive(self._init),
        )

    def _floors(self, plan: dict[str, Any]) -> dict[str, str]:
        """Return what is below all layers, by the part of a layer that lies on it, without what is mounted in it."""
        paths = {f"o{n}": f"{private.PLAIN}/{n}" if plan["plain"] else path for n, path in enumerate(plan["overlays"])}
        paths.update({"w": private.BASE} if plan["based"] else {})
        with self._inside(self._template):
            floors = {part: syscalls.open_tree(path, syscalls.OPEN_TREE_CLONE) for part, path in paths.items()}
        return {part: f"/proc/self/fd/{floor}" for part, floor in floors.items()}

    def _save(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._is_busy():
            return {"outcome": "busy", "processes": [name_of(pid) for pid in self._running()[:_MOST_TOLD]]}
        to = os.open(message["to"], os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with self._inside():
            folders = {
                name: syscalls.open_tree(path, syscalls.OPEN_TREE_CLONE) for path, name in message["folders"].items()
            }
        left = message["most_bytes"]
        for name, folder in folders.items():
            try:
                left -= copy_folder(f"/proc/self/fd/{folder}/.", f"/proc/self/fd/{to}/{name}", most_bytes=left)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                return {"outcome": "too-large"}
        for target in reversed(message["plan"]["covered"]):
            for path, name in message["folders"].items():
                if target.startswith(path + "/"):
                    remove_empty_way(f"/proc/self/fd/{to}/{name}", target[len(path) + 1 :].split("/"))
        return {"outcome": "saved"}

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
            if self._owner is None:
                private.hide_host_proc()
            private.lay_private_parts(plan, owner=self._owner, masked=False, scratch=scratch, carried=carried)
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
            delete_tree(f"{private.SCRATCH}/{name}")

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
            self._open_to_writers(closed)
            raise
        finally:
            for mount in closed:
                os.close(mount)

    @staticmethod
    def _open_to_writers(mounts: list[int]) -> None:
        for mount in mounts:
            syscalls.mount_setattr(mount, 0, without=syscalls.MOUNT_ATTR_RDONLY, recursive=False)

    @contextmanager
    def _inside(self, mounts: int | None = None) -> Generator[None, None, None]:
        """See the sandbox's file tree, or another one, for a while, with the rights of the spawner."""
        home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            syscalls.setns(self._mounts if mounts is None else mounts, syscalls.CLONE_NEWNS)
            yield
        finally:
            syscalls.setns(home, syscalls.CLONE_NEWNS)
            os.close(home)

    # ------------------------------------------------------------ what runs

    def _is_busy(self) -> bool:
        """Whether anything runs beside its init, also what forks faster than we look."""
        if self._groups:
            return bool(self._running())
        beside = {processes.inner_pid(pid) for pid in self._beside}
        with self._inside():  # /proc shows there what is in the sandbox, whoever its parent is
            return all(any(_somebody_is_there(beside) for _ in range(_LOOKS)) for _ in range(_LOOKS))

    def _running(self) -> list[int]:
        """List what runs beside its init, as far as we can see who is whose child; a control group forgets nobody."""
        if any(_is_alone(group) for group in self._groups):
            return []
        inside = processes.pid_namespace(self._init)
        members = processes.members(self._init, self._groups, self._apart)
        return [pid for pid in members if processes.is_alive(pid) and not self._is_beside(pid, inside)]

    def _at_rest(self, resting: list[int], targets: set[str]) -> list[int]:
        if not resting:
            return []
        members = [pid for pid in processes.members(self._init, self._groups) if processes.inner_pid(pid) in resting]
        self._held = {pid: held for pid in members if (held := holders([pid], targets))}
        return [pid for pid in members if pid not in self._held]

    def _told(self, pid: int) -> str:
        """Return who it is, and what it holds if it is only for that that it counts."""
        return ", ".join(self._held.get(pid, [name_of(pid)]))

    def _is_beside(self, pid: int, inside: str) -> bool:
        """Whether it is kept apart; or is known to go on in another sandbox, and is in our groups for a moment more."""
        is_kept = pid in self._beside or (self._tracer != 0 and processes.tracer_of(pid) == self._tracer)
        return is_kept or bool(inside and processes.pid_namespace(pid) not in ("", inside))  # "": we may not look

    @staticmethod
    def _targets(plan: dict[str, Any]) -> set[str]:
        return {*plan["private"], *plan["overlays"]}


def _has_changed(layer: str, below: str | None) -> bool:
    """From inside: whether anything was written to a layer; the first one has the private folders in it."""
    for part in os.listdir(f"{private.SCRATCH}/{layer}"):
        upper = f"{private.SCRATCH}/{layer}/{part}/upper"
        if os.listdir(upper):
            return True
        is_seen = part != "w"  # the folder that has the private ones is not
        if below is not None and is_seen and _top(upper) != _top(f"{private.SCRATCH}/{below}/{part}/upper"):
            return True
    return False


def _top(folder: str) -> tuple[object, ...]:
    """Return what can be changed of a folder without changing what is in it."""
    facts = os.stat(folder)
    own = {name: os.getxattr(folder, name) for name in os.listxattr(folder) if ".overlay." not in name}
    return facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, own


def _somebody_is_there(beside: set[int]) -> bool:
    """From inside: whether /proc shows anybody else beside the init who runs, or has gone before we could look at him."""
    others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - beside - {1}
    return any(processes.is_alive(pid) or not os.path.exists(f"/proc/{pid}") for pid in others)


def _is_alone(group: str) -> bool:
    """Whether a control group has one task: much cheaper than a list of its processes, where the kernel counts."""
    try:
        with open(group + "/pids.current") as count:
            return count.read() == "1\n"
    except FileNotFoundError:
        return False
