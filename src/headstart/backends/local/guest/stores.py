"""Stores: lineages' files on disk, each seen in a mount namespace that holds nothing else.

That namespace is kept by a descriptor of the spawner's, and so are the locks: however the spawner
ends, both go with it, and with the last sandbox. Sandboxes get a copy of the mount; the helpers
that do something to a store enter the namespace. A store's folder is

    lock        whoever has it open holds this
    image       the disk image with the files, or
    files/      the files, where images cannot be made

and `layers/` in its files has the layers. What is to be deleted gets another name first, so that
no half of a layer is ever taken for a layer.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, NoReturn

from headstart.backends.local.guest import images, private
from headstart.backends.local.guest.copying import delete_tree
from headstart.backends.local.guest.measuring import measure
from headstart.backends.spawner.guest import syscalls

__all__ = ["StoreErrand", "Stores", "layers_in", "why_not_plain"]

_STORE = "/store"
_LAYERS = _STORE + "/layers"
_DOOMED = ".doomed-"
_FINE = "fine"


def why_not_plain(folder: str, *, privileged: bool) -> str | None:
    """Try whether plain stores can be below a folder; return why not, or None if they can."""
    trial = folder + "/trial"
    os.mkdir(trial)
    told, telling = os.pipe2(os.O_CLOEXEC)
    spawner = os.getpid()
    pid = syscalls.clone(syscalls.CLONE_NEWNS)
    if pid == 0:
        _try_plain(spawner, trial, telling, (0, 0) if privileged else None)
    os.close(telling)
    with open(told, "rb") as line:
        why = line.read().decode()
    os.waitpid(pid, 0)
    delete_tree(trial)
    return None if why == _FINE else why or "trying it ended early"


def _try_plain(spawner: int, trial: str, telling: int, owner: tuple[int, int] | None) -> NoReturn:
    try:
        syscalls.be_a_helper_of(spawner, [telling])
        try:
            syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
            for name in ("lower", "merged"):
                os.mkdir(f"{trial}/{name}")
            private.overlay([trial + "/lower"], trial + "/merged", trial + "/layer", owner, on_disk=True)
            why = _FINE
        except OSError as error:
            why = str(error.strerror or error)
        os.write(telling, why.encode())
    finally:
        os._exit(0)


class _Open:
    def __init__(self, mounts: int, lock: int) -> None:
        self.mounts = mounts
        self.lock = lock


class Stores:
    """The stores that this process has open.

    Args:
        staging: An empty folder, to mount over in a namespace of its own.
    """

    def __init__(self, staging: str) -> None:
        self._staging = staging
        self._open: dict[str, _Open] = {}
        self._openers: set[int] = set()

    def open(self, message: dict[str, Any]) -> int:
        """Have a helper open a store; return where it will tell its answer, one line of JSON.

        Args:
            message: `store` (its key), `folder`, `image` (None, or what to make one with if there
                is none: `content_bytes`, `inodes`, and whether it `may_be_made`), `layers` (those that
                somebody stands on, or might; others are deleted) and `unsure` (those of them that may be there in
                part, and are deleted then).
        """
        if message["store"] in self._open:
            raise OSError(errno.EBUSY, "it is open already")
        lock = os.open(message["folder"] + "/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        told, telling = os.pipe2(os.O_CLOEXEC)
        go, going = os.pipe2(os.O_CLOEXEC)
        spawner = os.getpid()
        pid = syscalls.clone(syscalls.CLONE_NEWNS)
        if pid == 0:
            self._be_opener(spawner, message, go=go, lock=lock, telling=telling)
        self._openers.add(pid)
        mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        self._open[message["store"]] = _Open(mounts, lock)
        for descriptor in (going, go, telling):  # the first one lets it begin
            os.close(descriptor)
        return told

    def _be_opener(self, spawner: int, message: dict[str, Any], *, go: int, lock: int, telling: int) -> NoReturn:
        try:
            syscalls.be_a_helper_of(spawner, [go, lock, telling])
            os.read(go, 1)
            opening = _Opening(message)
            try:
                images.lock_soon(lock)
                told = opening.open(self._staging)
            except OSError as error:
                told = {"error": str(error.strerror or error), "errno": error.errno}
            os.write(telling, json.dumps(told).encode() + b"\n")
            os.close(telling)
            opening.tidy_up()
        finally:
            os._exit(0)

    def mounts_of(self, store: str) -> int:
        """Return a descriptor of the mount namespace that has a store's files.

        Raises:
            OSError: It is not open.
        """
        return self._known(store).mounts

    def let_go(self, store: str) -> tuple[int, int]:
        """Hand over the descriptors of a store's namespace and lock: it is not open any more."""
        known = self._known(store)
        del self._open[store]
        return known.mounts, known.lock

    def _known(self, store: str) -> _Open:
        if store not in self._open:
            raise OSError(errno.ENOENT, "the store is not open")
        return self._open[store]

    def owns(self, pid: int) -> bool:
        return pid in self._openers

    def ended(self, pid: int) -> None:
        """A child was reaped: it may have been a helper."""
        self._openers.discard(pid)


def layers_in(mounts: int) -> int:
    """Enter a store's mount namespace, and return a detached mount of the folder that has its layers."""
    syscalls.setns(mounts, syscalls.CLONE_NEWNS)
    return syscalls.open_tree(_LAYERS, syscalls.OPEN_TREE_CLONE)


class _Opening:
    """Opens a store in the mount namespace that this process is in, which is the store's from then on."""

    def __init__(self, message: dict[str, Any]) -> None:
        self._folder: str = message["folder"]
        self._image: dict[str, Any] | None = message["image"]
        self._wanted = set(message["layers"])
        self._unsure = set(message["unsure"])

    def open(self, staging: str) -> dict[str, Any]:
        """Mount it and look what is there; return the `layers` that are there whole."""
        if self._image is not None:
            self._see_to_image(self._image)
        else:
            os.makedirs(self._folder + "/files", mode=0o700, exist_ok=True)
        self._mount(os.path.realpath(staging))
        os.makedirs(_LAYERS, mode=0o700, exist_ok=True)
        there = [name for name in os.listdir(_LAYERS) if not name.startswith(_DOOMED)]
        whole = [name for name in there if name in self._wanted and _is_whole(f"{_LAYERS}/{name}")]
        _doom([name for name in there if name not in self._wanted or (name in self._unsure and name not in whole)])
        return {"layers": whole}

    def _see_to_image(self, image: dict[str, Any]) -> None:
        if not os.path.exists(self._folder + "/image"):
            if not image["may_be_made"]:
                raise OSError(errno.ENOENT, "its image is missing")
            images.make(self._folder + "/image", content_bytes=image["content_bytes"], inodes=image["inodes"])

    def _mount(self, staging: str) -> None:
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("headstart", staging, "tmpfs", flags, "mode=700,size=64k")
        os.mkdir(staging + _STORE)
        if self._image is not None:
            images.mount(self._folder + "/image", staging + _STORE)
        else:
            files = syscalls.open_tree(self._folder + "/files", syscalls.OPEN_TREE_CLONE)
            syscalls.mount_setattr(files, syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV)
            syscalls.move_mount(files, staging + _STORE)
            os.close(files)
        os.chdir(staging)
        syscalls.pivot_root(".", ".")
        syscalls.umount(".")
        os.chdir("/")

    @staticmethod
    def tidy_up() -> None:
        """Delete what is to be deleted."""
        if os.path.isdir(_LAYERS):
            _delete_doomed()


def _is_whole(layer: str) -> bool:
    facts = os.lstat(layer)
    return stat.S_ISDIR(facts.st_mode) and stat.S_IMODE(facts.st_mode) == private.WHOLE


def _doom(layers: list[str]) -> None:
    for name in layers:
        os.rename(f"{_LAYERS}/{name}", f"{_LAYERS}/{_DOOMED}{name}-{os.urandom(4).hex()}")


def _delete_doomed() -> None:
    for name in os.listdir(_LAYERS):
        if name.startswith(_DOOMED):
            delete_tree(f"{_LAYERS}/{name}")


class StoreErrand:
    """What a helper does to a store; it lives in the spawner's namespaces until it begins.

    Args:
        mounts: A descriptor of the store's mount namespace, unless a folder is deleted; to `close`, the last one.
        lock: To `close`: the last descriptor of its lock.
    """

    def __init__(self, mounts: int = -1, lock: int = -1) -> None:
        self._mounts = mounts
        self._lock = lock
        self._has_doomed = False

    def do(self, message: dict[str, Any]) -> dict[str, Any]:
        """Do what `message["do"]` says; return what to tell.

        `drop`: delete `layers`, which nobody uses any more.
        `measure`: tell what the layers take, `taken_bytes` and `files`.
        `flush`: return when all that was written is on the disk.
        `close`: let go of the store in `folder`; nothing runs on it any more.
        `delete`: delete a `folder` that is no store any more.
        """
        act = {
            "drop": self._drop,
            "measure": self._measure,
            "flush": self._flush,
            "close": self._close,
            "delete": self._delete,
        }[message["do"]]
        return act(message)

    def tidy_up(self) -> None:
        """Delete what is to be deleted, when the answer has been given."""
        if self._has_doomed:
            _delete_doomed()

    def _drop(self, message: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        _doom([name for name in message["layers"] if os.path.exists(f"{_LAYERS}/{name}")])
        self._has_doomed = True
        return {}

    def _measure(self, _message: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        taken_bytes, files = measure(_LAYERS)
        return {"taken_bytes": taken_bytes, "files": files}

    def _flush(self, _message: dict[str, Any]) -> dict[str, Any]:
        self._enter()
        store = os.open(_STORE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        syscalls.syncfs(store)
        os.close(store)
        return {}

    def _close(self, message: dict[str, Any]) -> dict[str, Any]:
        image = message["folder"] + "/image"
        held = os.open(image, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(image) else None
        self._enter()
        syscalls.umount(_STORE)
        if held is not None:
            images.lock_soon(held)
        return {}

    @staticmethod
    def _delete(message: dict[str, Any]) -> dict[str, Any]:
        delete_tree(message["folder"])
        return {}

    def _enter(self) -> None:
        syscalls.setns(self._mounts, syscalls.CLONE_NEWNS)
