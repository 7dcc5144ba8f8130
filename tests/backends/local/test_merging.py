"""What is made of layers that are merged, mark by mark."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from headstart.backends.local.guest import private
from headstart.backends.local.guest.merging import MOST_NAMES, merge, weigh

from .driving import ROOT

MARK = "trusted.overlay." if ROOT else "user.overlay."


class Layers:
    """Layers with one part, `w`, by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: list[str] = []

    def add(self, *files: str) -> Path:
        """Add one on top, with files in it, or folders (`a/`); return its top."""
        name = str(len(self.names))
        top = self.folder / name / "w" / "upper"
        top.mkdir(parents=True)
        self.names.append(name)
        for path in files:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).mkdir(exist_ok=True) if path.endswith("/") else (top / path).write_text(f"{path} of {name}")
        return top

    def merge(self, count: int, *, floor: Path | None = None, is_wanted: bool = True) -> dict[str, Any]:
        """Merge so many of those on top."""
        at = len(self.names) - count
        message: dict[str, Any] = {"layers": self.names[at:], "below": self.names[:at], "into": "new", "weights": {}}
        floors = {} if floor is None else {"w": str(floor)}
        return merge(str(self.folder), message, floors, of_root=ROOT, is_wanted=lambda: is_wanted)

    @property
    def merged(self) -> Path:
        return self.folder / "new" / "w" / "upper"


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    probe = tmp_path / "probe"
    probe.mkdir()
    try:
        mark(probe, "opaque", "y")
        remove(probe / "removed")
    except OSError as error:
        pytest.skip(f"no marks can be made here: {error}")
    made = Layers(tmp_path / "layers")
    made.folder.mkdir()
    return made


def mark(path: Path, name: str, value: str) -> None:
    os.setxattr(path, MARK + name, value.encode())


def marks(path: Path) -> dict[str, str]:
    return {
        name.removeprefix(MARK): os.getxattr(path, name).decode()
        for name in os.listxattr(path)
        if name.startswith(MARK)
    }


def remove(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, 0)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def is_removed(path: Path) -> bool:
    facts = path.lstat()
    return stat.S_ISCHR(facts.st_mode) and facts.st_rdev == 0


def test_the_topmost_file_is_there_and_is_not_a_copy(layers: Layers) -> None:
    layers.add("a", "b")
    top = layers.add("a", "d/c")
    told = layers.merge(2)
    assert told["merged"] == ["0", "1"]
    assert names(layers.merged) == ["a", "b", "d", "d/c"]
    assert (layers.merged / "a").samefile(top / "a")
    assert stat.S_IMODE((layers.folder / "new").stat().st_mode) == private.WHOLE
    assert tuple(told["weights"]["new"]) == tuple(weigh(str(layers.folder / "new")))


def test_a_removed_file_leaves_a_mark_only_where_something_is_below(layers: Layers) -> None:
    layers.add("below")
    layers.add("between")
    top = layers.add()
    for name in ("below", "between"):
        remove(top / name)
    layers.merge(2)
    assert names(layers.merged) == ["below"]
    assert is_removed(layers.merged / "below")


def test_what_is_removed_below_the_row_is_not_below_any_more(layers: Layers) -> None:
    layers.add("a")
    remove(layers.add() / "a")
    layers.add("a")
    remove(layers.add() / "a")
    layers.merge(2)
    assert names(layers.merged) == []


def test_what_the_template_has_is_below_all_layers(layers: Layers, tmp_path: Path) -> None:
    floor = tmp_path / "floor"
    (floor / "d").mkdir(parents=True)
    (floor / "d" / "a").touch()
    layers.add("d/b")
    top = layers.add("d/")
    for name in ("a", "b", "c"):
        remove(top / "d" / name)
    layers.merge(2, floor=floor)
    assert names(layers.merged) == ["d", "d/a"]
    assert marks(layers.merged / "d") == {}


def test_a_folder_is_opaque_only_where_something_is_below(layers: Layers) -> None:
    layers.add("old/a", "file")
    layers.add("new/a")
    top = layers.add("old/b", "new/b", "file/b")
    for name in ("old", "new", "file"):
        mark(top / name, "opaque", "y")
    layers.merge(2)
    assert names(layers.merged) == ["file", "file/b", "new", "new/b", "old", "old/b"]
    assert [marks(layers.merged / name) for name in ("old", "file", "new")] == [{"opaque": "y"}] * 2 + [{}]


def test_a_folder_over_something_removed_hides_what_is_below_that(layers: Layers) -> None:
    layers.add("d/a")
    remove(layers.add() / "d")
    layers.add("d/b")
    layers.merge(2)
    assert names(layers.merged) == ["d", "d/b"]
    assert marks(layers.merged / "d") == {"opaque": "y"}


@pytest.mark.skipif(not ROOT, reason="an ordinary user's folders from below are not moved")
def test_a_folder_that_was_moved_in_the_row_brings_what_the_row_has_in_it(layers: Layers) -> None:
    layers.add("a/below")
    layers.add("a/between")
    top = layers.add("b/above")
    remove(top / "a")
    mark(top / "b", "redirect", "a")
    layers.merge(2)
    assert names(layers.merged) == ["a", "b", "b/above", "b/between"]
    assert is_removed(layers.merged / "a")
    assert marks(layers.merged / "b") == {"redirect": "a"}


@pytest.mark.skipif(not ROOT, reason="an ordinary user's folders from below are not moved")
def test_where_a_folder_was_before_all_moves_in_the_row_is_told(layers: Layers) -> None:
    layers.add("p/a/x/below")
    middle = layers.add("p/b/")
    remove(middle / "p" / "a")
    mark(middle / "p" / "b", "redirect", "a")
    top = layers.add("q/c/", "p/b/")
    remove(top / "p" / "b" / "x")
    mark(top / "q" / "c", "redirect", "/p/b/x")
    layers.merge(2)
    assert marks(layers.merged / "p" / "b") == {"redirect": "a"}
    assert marks(layers.merged / "q" / "c") == {"redirect": "/p/a/x"}
    assert is_removed(layers.merged / "p" / "b" / "x")


@pytest.mark.skipif(not ROOT, reason="an ordinary user's folders from below are not moved")
def test_a_folder_that_was_moved_and_is_from_the_row_alone_tells_nothing(layers: Layers) -> None:
    layers.add("else")
    layers.add("a/file")
    top = layers.add("b/")
    remove(top / "a")
    mark(top / "b", "redirect", "a")
    layers.merge(2)
    assert names(layers.merged) == ["b", "b/file"]
    assert marks(layers.merged / "b") == {}


def test_folders_keep_what_the_topmost_has_and_files_stay_linked(layers: Layers) -> None:
    layers.add("d/a")
    top = layers.add("d/b")
    os.link(top / "d" / "b", top / "d" / "c")
    (top / "d").chmod(0o1751)
    os.setxattr(top / "d", "user.note", b"1")
    os.utime(top / "d", ns=(1, 1_000_000_001))
    os.utime(top, ns=(2, 2_000_000_002))
    layers.merge(2)
    facts = (layers.merged / "d").stat()
    assert (stat.S_IMODE(facts.st_mode), facts.st_mtime_ns) == (0o1751, 1_000_000_001)
    assert layers.merged.stat().st_mtime_ns == 2_000_000_002
    assert os.getxattr(layers.merged / "d", "user.note") == b"1"
    assert (layers.merged / "d" / "b").samefile(layers.merged / "d" / "c")


@pytest.mark.skipif(not ROOT, reason="needs root")
def test_a_file_whose_content_is_elsewhere_is_refused_and_nothing_is_left(layers: Layers) -> None:
    layers.add("a")
    mark(layers.add("a") / "a", "metacopy", "")
    with pytest.raises(OSError, match="another layer") as refusal:
        layers.merge(2)
    assert refusal.value.errno == errno.EOPNOTSUPP
    assert sorted(path.name for path in layers.folder.iterdir()) == ["0", "1"]


def test_paths_that_are_too_long_are_refused_and_nothing_is_left(layers: Layers) -> None:
    for _ in range(2):
        here = os.open(layers.add(), os.O_RDONLY)
        for _ in range(25):
            os.mkdir("d" * 200, dir_fd=here)
            here = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
    with pytest.raises(OSError, match="too long"):
        layers.merge(2)
    assert sorted(path.name for path in layers.folder.iterdir()) == ["0", "1"]


def test_who_is_gone_wants_nothing_merged(layers: Layers) -> None:
    for _ in range(2):
        layers.add(*(f"file{number}" for number in range(40)), *(f"other{number}" for number in range(40)))
    assert layers.merge(2, is_wanted=False)["merged"] == []


def test_layers_with_too_many_names_are_not_counted_to_the_end(layers: Layers) -> None:
    top = layers.add()
    for number in range(MOST_NAMES + 2):
        (top / str(number)).touch()
    layers.add("a")
    told = layers.merge(2)
    assert told["merged"] == []
    assert told["weights"]["0"][0] > MOST_NAMES
