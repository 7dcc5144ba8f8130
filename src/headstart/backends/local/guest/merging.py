"""Merging layers into one that shows the same: what was overwritten, removed or moved in them leaves nothing behind.

The layers may be in use meanwhile, so nothing in them changes. The new one is a folder beside them
with folders of its own, and in these every file has one more name (a hard link): nothing is copied, and what a file
takes is given back when the last layer goes that has it.

A name in the new layer is what overlayfs would find for it in the old ones, from the topmost down: the
first file ends the search; folders are laid on each other until one is opaque, or a file or a mark of
something removed is below it. A folder that was moved tells where it was (`redirect`), seen from below its layer: the
search goes on there. What is left of all this in the new layer depends on what lies below it, and only on that:

- a removed thing leaves a mark only where something of that name is below;
- a folder is opaque only where a thing of that name is below and must not show;
- a folder tells where it was only where that, below, is somewhere else.

So what is below is looked at, too, down to the template's own folders (the *floor*). Nothing of it is changed or linked.

How much is merged is chosen by what it costs, which is the number of names: see `choose`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headstart.backends.local.guest import private
from headstart.backends.local.guest.copying import copy_folder, delete_tree
from headstart.backends.spawner.guest import syscalls

__all__ = ["MOST_NAMES", "Weight", "choose", "merge", "weigh"]

MOST_NAMES = 20_000
"""In layers that are merged in one go; that takes some tenths of a second."""

_ALWAYS = 64
"""So few names are merged whatever lies on them."""

_BYTES_PER_NAME = 16_384
"""So many bytes above are as good a reason to merge as one name: what they have overwritten may come back."""

_MOST_LINKED_BYTES = 1 << 40
_LOOK_UP_EVERY = 64

Weight = Sequence[int]
"""Of a layer: how many names are in it, how many bytes its files take, and how many of the names are folders'."""

Source = tuple[int, str]
"""A folder of a layer: the layer's place in the search, and the path from its top, "" or "/a/b"."""


class NotWanted(Exception):
    """Whoever wanted it is gone."""


# ---------------------------------------------------------------- what to merge


def weigh(layer: str) -> Weight:
    """Count what is in a layer, as far as `MOST_NAMES` and one more."""
    names = taken = folders = 0
    waiting = [f"{layer}/{part}/upper" for part in os.listdir(layer)]
    seen: set[int] = set()
    while waiting and names <= MOST_NAMES:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                names += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    folders += 1
                    continue
                facts = entry.stat(follow_symlinks=False)
                if facts.st_ino not in seen:
                    taken += facts.st_blocks * 512
                if facts.st_nlink > 1:
                    seen.add(facts.st_ino)
    return names, taken, folders


def choose(weights: Sequence[Weight], *, most: int = MOST_NAMES) -> tuple[int, int]:
    """Choose the layers whose merging pays; return the place of the first one and that after the last one.

    A layer takes part if it has at most twice the names that are in those above it, where bytes count as names, too.
    So layers get larger downwards by factors, and a name is merged again only when as much has been written
    since as lies beside it. The longest such row is chosen; of equals, the topmost. There may be none: then both are 0.

    Args:
        weights: The layers', the lowest first.
        most: How many names may be merged.

    >>> choose([(5000, 0, 0), (50, 0, 0), (9, 0, 0), (9, 0, 0), (9, 0, 0)])
    (1, 5)
    >>> choose([(5000, 0, 0), (1, 100_000_000, 0)])
    (0, 2)
    >>> choose([(50_000, 0, 0), (9, 0, 0), (50_000, 0, 0)])
    (0, 0)
    """
    best = (0, 0)
    for last in range(len(weights) - 1, 0, -1):
        names, worth = 0, 0.0
        first = last + 1
        for place in range(last, -1, -1):
            lighter = weights[place][0] <= max(2 * worth, _ALWAYS) or place == last
            if not lighter or names + weights[place][0] > most:
                break
            first = place
            names += weights[place][0]
            worth += weights[place][0] + weights[place][1] / _BYTES_PER_NAME
        if last - first > 0 and last + 1 - first > best[1] - best[0]:
            best = (first, last + 1)
    return best


# ---------------------------------------------------------------- merging


def merge(
    scratch: str, message: Mapping[str, Any], floors: Mapping[str, str], *, of_root: bool, is_wanted: Callable[[], bool]
) -> dict[str, Any]:
    """Merge what pays to be merged of a row of layers.

    Args:
        scratch: The folder that has the layers.
        message: `layers` (that may be merged, the lowest first), those `below` them, `into` (the name of the new one),
            and the `weights` that are known of them.
        floors: What lies below all layers, for those parts of them for which something does.
        of_root: Whose marks count: those that overlayfs makes for root, or for an ordinary user.
        is_wanted: Asked now and then.

    Returns:
        `merged`: those that the new one stands for, maybe none: then there is no new one; `weights`: what is known now.

    Raises:
        OSError: It is not possible, and nothing is left of it: not enough room, paths that are too long.
    """
    layers: list[str] = message["layers"]
    known: dict[str, Weight] = message["weights"]
    weights = {name: known[name] if name in known else weigh(f"{scratch}/{name}") for name in layers}
    first, end = choose([weights[name] for name in layers], most=_most_names(scratch))
    merged, into = layers[first:end], f"{scratch}/{message['into']}"
    if merged:
        _see_room(scratch, folders=sum(weights[name][2] for name in merged))
        merging = _Merging(of_root=of_root, is_wanted=is_wanted)
        try:
            _merge_parts(scratch, [*message["below"], *layers[:first]], merged, into, floors, merging)
        except NotWanted:
            return {"merged": [], "weights": weights}
        except OSError:
            delete_tree(into)
            raise
        weights[message["into"]] = (merging.names, merging.taken_bytes, merging.folders)
    return {"merged": merged, "weights": weights}


def _merge_parts(
    scratch: str, below: list[str], merged: list[str], into: str, floors: Mapping[str, str], merging: _Merging
) -> None:
    os.mkdir(into, 0o700)
    for part in os.listdir(f"{scratch}/{merged[-1]}"):
        os.mkdir(f"{into}/{part}")
        tops = [f"{scratch}/{name}/{part}/upper" for name in reversed([*below, *merged])]
        if part in floors:
            tops.append(floors[part])
        merging.merge(tops, len(merged), f"{into}/{part}/upper")
    os.chmod(into, private.WHOLE)


def _most_names(scratch: str) -> int:
    """Return how many names may be made: on a tmpfs each counts as a file does, and half of what is free is for what runs."""
    room = os.statvfs(scratch)
    is_counted = _is_tmpfs(scratch) and room.f_files
    return min(MOST_NAMES, room.f_ffree // 2) if is_counted else MOST_NAMES


def _see_room(scratch: str, *, folders: int) -> None:
    """Raise unless there is twice the room that new folders take where they are files and blocks of their own."""
    room = os.statvfs(scratch)
    if not _is_tmpfs(scratch) and min(room.f_ffree or 2 * folders, room.f_bavail) < 2 * folders:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_tmpfs(folder: str) -> bool:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return syscalls.filesystem_of(descriptor) == syscalls.TMPFS_MAGIC
    finally:
        os.close(descriptor)


class _Found:
    """What a name means.

    Attributes:
        sources: The folders that are laid on each other there, the topmost first; else the one file; or nothing.
        path: Where the folder goes on below the merged layers, as it is seen there.
        is_folder: Which of the two.
    """

    def __init__(self, sources: list[Source], path: str, *, is_folder: bool) -> None:
        self.sources = sources
        self.path = path
        self.is_folder = is_folder


class _Merging:
    """Merges the same part of some layers; see the module.

    Args:
        of_root: See `merge`.
        is_wanted: See `merge`.
    """

    def __init__(self, *, of_root: bool, is_wanted: Callable[[], bool]) -> None:
        self._mark = "trusted.overlay." if of_root else "user.overlay."
        self._follows = of_root
        self._is_wanted = is_wanted
        self._tops: list[str] = []
        self._count = 0
        self._made: list[tuple[str, Source, dict[str, bytes]]] = []
        self.names = self.folders = self.taken_bytes = 0

    def merge(self, tops: list[str], count: int, out: str) -> None:
        """Make the folder `out` from the first `count` of these, which lie on the others, the topmost first."""
        self._tops, self._count, self._made = tops, count, []
        there: list[Source] = [(place, "") for place, top in enumerate(tops) if place >= count or os.path.isdir(top)]
        os.mkdir(out)
        self._made.append((out, there[0], {}))
        waiting = [(_Found(there, "", is_folder=True), out)]
        while waiting:
            folder, made = waiting.pop()
            waiting += self._merge_folder(folder, made)
        for made, source, marks in self._made:  # at last: what is put into a folder changes when it was changed
            self._dress(made, source, marks)

    def _merge_folder(self, folder: _Found, out: str) -> list[tuple[_Found, str]]:
        inner: list[tuple[_Found, str]] = []
        names = dict.fromkeys(name for source in self._merged(folder) for name in os.listdir(self._at(source)))
        for name in names:
            self._count_name()
            found = self._look_up(folder, name)
            if found.is_folder:
                os.mkdir(f"{out}/{name}")
                self.folders += 1
                self._made.append((f"{out}/{name}", found.sources[0], self._marks(folder, name, found)))
                inner.append((found, f"{out}/{name}"))
            elif found.sources:
                self._link(found.sources[0], f"{out}/{name}")
            elif self._below(folder, name).sources:
                os.mknod(f"{out}/{name}", stat.S_IFCHR, 0)
        return inner

    def _count_name(self) -> None:
        self.names += 1
        if self.names % _LOOK_UP_EVERY == 0 and not self._is_wanted():
            raise NotWanted

    def _merged(self, folder: _Found) -> list[Source]:
        return [source for source in folder.sources if source[0] < self._count]

    def _below(self, folder: _Found, name: str) -> _Found:
        """Return what a name means if nothing is in the merged layers."""
        sources = [source for source in folder.sources if source[0] >= self._count]
        return self._look_up(_Found(sources, folder.path, is_folder=True), name)

    def _marks(self, folder: _Found, name: str, found: _Found) -> dict[str, bytes]:
        """Return how overlayfs is told what of the things below shows in a new folder."""
        goes_on = any(place >= self._count for place, _ in found.sources)
        if not goes_on:
            return {"opaque": b"y"} if self._below(folder, name).sources else {}
        parent, _, was = found.path.rpartition("/")
        if parent == folder.path and any(place >= self._count for place, _ in folder.sources):
            return {} if was == name else {"redirect": os.fsencode(was)}
        return {"redirect": os.fsencode(found.path)}

    # ------------------------------------------------------------ searching, as overlayfs does

    def _look_up(self, folder: _Found, name: str) -> _Found:
        found: list[Source] = []
        path, was = f"{folder.path}/{name}", name
        for place, way in folder.sources:
            source = (place, f"{way}/{was}")
            facts = self._facts(source)
            if facts is None:
                continue
            if not stat.S_ISDIR(facts.st_mode):
                if found or (stat.S_ISCHR(facts.st_mode) and not facts.st_rdev):
                    break
                return _Found([source], path, is_folder=False)
            found.append(source)
            if self._attribute(source, "opaque") == b"y":
                break
            moved = os.fsdecode(self._attribute(source, "redirect")) if self._follows else ""
            if moved.startswith("/"):
                rest = self._walk(moved, above=place)
                return _Found(
                    found + rest.sources * rest.is_folder, rest.path if place < self._count else path, is_folder=True
                )
            if moved:
                was = moved
                path = f"{folder.path}/{was}" if place < self._count else path
        return _Found(found, path, is_folder=bool(found))

    def _walk(self, path: str, *, above: int) -> _Found:
        """Find a folder in the layers below one, from their tops."""
        tops: list[Source] = [(place, "") for place in range(above + 1, len(self._tops))]
        found = _Found(tops, "", is_folder=True)
        for name in path.strip("/").split("/"):
            found = self._look_up(found, name)
            if not found.is_folder:
                return _Found([], path, is_folder=False)
        return found

    def _at(self, source: Source) -> str:
        place, way = source
        return self._tops[place] + way

    def _facts(self, source: Source) -> os.stat_result | None:
        try:
            return os.lstat(self._at(source))
        except FileNotFoundError:
            return None

    def _attribute(self, source: Source, name: str) -> bytes:
        try:
            return os.getxattr(self._at(source), self._mark + name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
            return b""

    # ------------------------------------------------------------ making

    def _link(self, source: Source, target: str) -> None:
        if self._follows and self._has_its_content_elsewhere(source):
            raise OSError(errno.EOPNOTSUPP, "a file's content is in another layer than the file")
        try:
            os.link(self._at(source), target, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            copy_folder(self._at(source), target, most_bytes=_MOST_LINKED_BYTES)
        facts = os.lstat(target)
        self.taken_bytes += facts.st_blocks * 512

    def _has_its_content_elsewhere(self, source: Source) -> bool:
        """Whether only its owner, mode or times were changed, and this kernel was told to copy no more for that."""
        try:
            os.getxattr(self._at(source), self._mark + "metacopy", follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
            return False
        return True

    def _dress(self, made: str, source: Source, marks: Mapping[str, bytes]) -> None:
        """Give a new folder what the topmost one has that it was made from, but for overlayfs's marks: those are its own."""
        old = self._at(source)
        facts = os.lstat(old)
        os.chown(made, facts.st_uid, facts.st_gid)
        os.chmod(made, stat.S_IMODE(facts.st_mode))
        for name in os.listxattr(old):
            is_mark = name.startswith(self._mark) and not name.startswith(self._mark + "overlay.")
            if not is_mark:
                os.setxattr(made, name, os.getxattr(old, name))
        for name, value in marks.items():
            os.setxattr(made, self._mark + name, value)
        os.utime(made, ns=(facts.st_atime_ns, facts.st_mtime_ns))
