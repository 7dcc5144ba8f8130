"""A template's file tree: built once, in a mount namespace that holds nothing else.

The root is a small tmpfs with what every sandbox shares: mount points, links, a synthetic
/etc. The host's system folders and the declared mounts are bound onto it. Then the
old root goes, and the namespace, kept alive by a descriptor alone, contains only what a
sandbox may see. Starting a sandbox copies that namespace (about twenty mounts, not the
host's hundreds), which costs microseconds, and adds the private parts (`private`).

A template may have a root of its own, which somebody else has filled. It shows below our tmpfs, as
the lower part of an overlay that nobody writes to: where both have something, ours shows, so that
no mount point, and no folder on the way to one, is ever a link, a file or a device of the root's.

The tree itself is read-only. A sandbox runs as an ordinary uid, so it could not write there
on a normal machine either; what is writable is private. Which folders can be laid under an
overlay is tried here, once, so that no start fails for it.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable
from typing import Any

from headstart.backends.local.guest import userns
from headstart.backends.local.guest.mountinfo import mount_points
from headstart.backends.local.guest.private import (
    BASE,
    CLOSED,
    EMPTY,
    HOST_PROC,
    NEXT,
    OWN,
    PLAIN,
    PREVIOUS,
    SCRATCH,
    STATE,
    escaped,
    overlay,
)
from headstart.backends.spawner.guest import syscalls

__all__ = ["build_and_enter"]

_TREE_BYTES = 64 << 20
_COPY = syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE
_SAFE = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "/dev/ptmx": "pts/ptmx",
    "/dev/fd": "/proc/self/fd",
    "/dev/stdin": "/proc/self/fd/0",
    "/dev/stdout": "/proc/self/fd/1",
    "/dev/stderr": "/proc/self/fd/2",
}
_OURS = {
    **dict.fromkeys((BASE, OWN, SCRATCH, STATE, NEXT, PREVIOUS, HOST_PROC, PLAIN), 0o755),
    EMPTY: 0o555,
    CLOSED: 0,
}
_OURS_ALONE = ("/dev", "/.headstart")
"""Of a root, nothing shows there."""

_FOLDERS = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777, "/dev/pts": 0o755, "/proc": 0o555, "/run": 0o755}


def build_and_enter(staging: str, plan: dict[str, Any], *, idmap: bool) -> dict[str, Any]:
    """Build the tree on the folder `staging` and make it this process's root.

    The process must be in a mount namespace of its own.

    Returns:
        `notes` about what is weaker than asked for, and the `parts` of a plan for
        `private.lay_private_parts` that are known now: all but the limits.

    Args:
        staging: An existing, empty folder.
        plan: `folders` (path → mode), `files` (path → text), `copies` (host paths), `links`
            (path → target), `binds` (list of `source`, `target`, `mode`, `owned`), `hidden` (folders
            to cover), `home`, `private` (folder → mode; each sandbox covers them), `overlays` (targets
            of binds, outer ones first), `plain` (whether each of these shows at `PLAIN`, too),
            `root` (a folder that shows below all this, or None), `base` (a folder to show at `BASE`, or None).
        idmap: Whether mounts can be id-mapped (root only).
    """
    notes: list[str] = []
    staging = os.path.realpath(staging)  # as mountinfo writes it
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    maps = _IdMaps() if idmap else None
    # Before there is anything of ours to be seen: a declared mount may contain the staging folder.
    mounts = [_copy_of(bind, maps, notes) for bind in plan["binds"]]
    root = None if plan["root"] is None else _copy_of_root(plan["root"], maps, notes)
    base = None if plan["base"] is None else _copy_alone(plan["base"])
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("headstart", staging, "tmpfs", flags, f"mode=755,size={_TREE_BYTES}")
    previous_mask = os.umask(0o022)
    _furnish(staging, plan)
    _add_devices(staging)
    places = [(mount, staging + bind["target"]) for bind, mount in zip(plan["binds"], mounts)]  # noqa: B905  Python 3.8
    ours: list[int] = []
    if root is not None:
        for mount, target in places:
            _make_place(mount, target)
        ours = _show_below(root, staging, privileged=idmap)
    for mount, target in places:
        _place(mount, target)
    if base is not None:
        _place(base, staging + BASE)
    _hide(staging, plan["hidden"])
    overlays = [target for target in plan["overlays"] if _can_overlay(staging, target, plan, notes)]
    if plan["plain"]:
        _show_plain(staging, overlays)
    covered = _covered(staging, plan["private"], overlays)
    if not idmap:  # a new /proc may only be mounted where an unmasked one is seen already
        _attach("/proc", staging + HOST_PROC, _SAFE)
    os.umask(previous_mask)
    for mount in ours:
        syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_RDONLY, recursive=False)
        os.close(mount)
    syscalls.mount("none", staging, None, flags | syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY)
    os.chdir(staging)
    syscalls.pivot_root(".", ".")
    syscalls.umount(".")
    os.chdir("/")
    parts = {
        "private": plan["private"],
        "overlays": overlays,
        "plain": plan["plain"],
        "covered": covered,
        "based": base is not None,
    }
    return {"notes": notes, "parts": parts}


def _add_devices(root: str) -> None:
    for device in _DEVICES:
        _make_file(f"{root}/dev/{device}")
        syscalls.mount(f"/dev/{device}", f"{root}/dev/{device}", None, syscalls.MS_BIND)


def _hide(root: str, paths: Iterable[str]) -> None:
    for path in paths:
        if os.path.isdir(root + path):
            _attach(root + EMPTY, root + path, _SAFE | syscalls.MOUNT_ATTR_RDONLY)


def _show_below(root: int, staging: str, *, privileged: bool) -> list[int]:
    """Show a root below what is on the folder `staging`; return the mounts in which all is ours, still writable.

    Raises:
        OSError: No overlay can be laid on it.
    """
    copies = [syscalls.open_tree(staging + path, _COPY) for path in _OURS_ALONE]
    below = staging + EMPTY
    syscalls.move_mount(root, below)
    os.close(root)
    # what a root says about itself in overlayfs's own attributes is not listened to, as far as it could lead elsewhere
    options = f"lowerdir={escaped(staging)}:{escaped(below)}," + (
        "redirect_dir=nofollow" if privileged else "userxattr"
    )
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_RDONLY
    try:
        syscalls.mount("overlay", staging, "overlay", flags, options)
    except OSError as error:
        told = "the template's root cannot be shown: no overlay can be laid on it (Linux before 5.11? another overlay?)"
        raise OSError(error.errno, f"{told}: {error.strerror}") from error
    for path, mount in zip(_OURS_ALONE, copies):  # noqa: B905  Python 3.8
        syscalls.move_mount(mount, staging + path)
    return copies


def _can_overlay(root: str, target: str, plan: dict[str, Any], notes: list[str]) -> bool:
    """Try it; also what a fork of a zygote needs for it."""
    trial = f"{root}/.headstart/trial"
    os.mkdir(trial)
    try:
        if plan["plain"]:
            os.close(syscalls.open_tree(root + target, syscalls.OPEN_TREE_CLONE))
        overlay([root + target], root + EMPTY, trial + "/layers", owner=None)
        syscalls.umount(root + EMPTY)
    except OSError as error:
        cure = "move it to another file system, or use a newer kernel"
        notes.append(f"{target} shows read-only; no overlay can be laid on it ({error.strerror}): {cure}")
        return False
    finally:
        shutil.rmtree(trial)
    return True


def _show_plain(root: str, overlays: list[str]) -> None:
    """Show them a second time, without the mounts below them: a fork could not take these apart."""
    for number, target in enumerate(overlays):
        _make_folder(f"{root}{PLAIN}/{number}", 0o755)
        mount = syscalls.open_tree(root + target, syscalls.OPEN_TREE_CLONE)
        syscalls.move_mount(mount, f"{root}{PLAIN}/{number}")
        os.close(mount)


def _covered(root: str, private: Iterable[str], overlays: list[str]) -> list[str]:
    """List the mounts of the tree that would vanish below a private folder or an overlay, outer ones first."""
    points = [point for _, point in mount_points("/proc/self")]
    targets = {point[len(root) :] for point in points if point.startswith(root + "/")}
    covered = [
        target
        for target in targets
        if any(_is_below(target, folder) or target == folder for folder in private)
        or any(_is_below(target, folder) for folder in overlays)
    ]
    return sorted(covered, key=lambda target: target.count("/"))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _furnish(root: str, plan: dict[str, Any]) -> None:
    for path, mode in {**_FOLDERS, **_OURS, plan["home"]: 0o755}.items():
        _make_folder(root + path, mode)
    if plan["plain"]:  # a fork of a zygote has no more rights than the zygote, and must get in there
        _make_folder(root + CLOSED, 0o755)
    for path, mode in plan["folders"].items():
        _make_folder(root + path, mode)
    for path, target in {**plan["links"], **_DEVICE_LINKS}.items():
        _make_folder(os.path.dirname(root + path), 0o755)
        os.symlink(target, root + path)
    for path in plan["copies"]:
        _copy(path, root + path)
    for path, text in plan["files"].items():
        _make_file(root + path)
        with open(root + path, "w") as file:
            file.write(text)


def _make_folder(path: str, mode: int) -> None:
    os.makedirs(path, mode=0o755, exist_ok=True)
    os.chmod(path, mode)


def _make_file(path: str) -> None:
    _make_folder(os.path.dirname(path), 0o755)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _copy(source: str, target: str) -> None:
    """Copy a world-readable file of /etc."""
    _make_folder(os.path.dirname(target), 0o755)
    if os.stat(source).st_mode & 0o004:
        shutil.copyfile(source, target)


def _attach(source: str, target: str, attributes: int) -> None:
    mount = syscalls.open_tree(source, _COPY)
    try:
        syscalls.mount_setattr(mount, attributes)
        syscalls.move_mount(mount, target)
    finally:
        os.close(mount)


class _IdMaps:
    """Id maps as user namespaces, one for each owner."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int], int] = {}

    def for_owner(self, path: str, *, owned: bool) -> int:
        """Return a map that gives the sandbox what the owner of `path` has, or, not `owned`, a plain shift."""
        facts = os.stat(path)
        key = (facts.st_uid, facts.st_gid) if owned else (userns.SANDBOX_ID, userns.SANDBOX_ID)
        if key not in self._made:
            self._made[key] = userns.make(userns.map_owner(key[0]), userns.map_owner(key[1]))
        return self._made[key]

    def for_nobodys(self) -> int:
        """Return a map in which nothing is the sandbox's."""
        key = (-1, -1)
        if key not in self._made:
            self._made[key] = userns.make(userns.map_all_but_the_sandboxs(), userns.map_all_but_the_sandboxs())
        return self._made[key]


def _copy_of(bind: dict[str, Any], maps: _IdMaps | None, notes: list[str]) -> int:
    """Return a detached mount of what a bind is to show."""
    mount = syscalls.open_tree(bind["source"], _COPY)
    syscalls.mount_setattr(mount, _SAFE if bind["mode"] == "rw" else _SAFE | syscalls.MOUNT_ATTR_RDONLY)
    if maps is not None:
        _map_ids(mount, bind, maps, notes)
    return mount


def _copy_of_root(root: str, maps: _IdMaps | None, notes: list[str]) -> int:
    """Return a detached mount of a template's root, without what is mounted in it."""
    mount = _copy_alone(root)
    if maps is not None:
        try:
            syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_IDMAP, userns=maps.for_nobodys())
        except OSError as error:
            told = f"{root}: ids cannot be mapped ({error.strerror}); everything in it is shown as nobody's"
            notes.append(f"{told}: move it to another file system")
    return mount


def _copy_alone(folder: str) -> int:
    """Return a detached, read-only mount of a folder, without what is mounted in it."""
    try:
        mount = syscalls.open_tree(folder, syscalls.OPEN_TREE_CLONE)
    except OSError as error:
        if error.errno == errno.EINVAL:
            told = "something is mounted in it, which an ordinary user cannot leave out; take it away"
            raise OSError(error.errno, f"{folder}: {told}") from error
        raise
    syscalls.mount_setattr(mount, _SAFE | syscalls.MOUNT_ATTR_RDONLY)
    return mount


def _make_place(mount: int, target: str) -> None:
    if stat.S_ISDIR(os.fstat(mount).st_mode):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.lexists(target):
        _make_file(target)


def _place(mount: int, target: str) -> None:
    _make_place(mount, target)
    syscalls.move_mount(mount, target)
    os.close(mount)


def _map_ids(mount: int, bind: dict[str, Any], maps: _IdMaps, notes: list[str]) -> None:
    namespace = maps.for_owner(bind["source"], owned=bind["owned"])
    try:
        syscalls.mount_setattr(mount, syscalls.MOUNT_ATTR_IDMAP, userns=namespace)
    except OSError as error:  # not every file system can; then only what is world-readable shows
        if bind["owned"]:  # of the system's folders, nothing else shows anyway
            less = {
                "overlay": "only what everybody may read shows there, only its top folder is writable",
                "rw": "only what everybody may read shows there, only what everybody may write is writable",
            }.get(bind["mode"], "only what everybody may read shows there")
            cure = "move it to another file system"
            notes.append("{}: ids cannot be mapped ({}); {}: {}".format(bind["source"], error.strerror, less, cure))
