"""What a folder takes, whatever its owner does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headstart.backends.local.guest.copying import delete_tree
from headstart.backends.local.guest.measuring import measure


def test_every_file_counts_once_under_whatever_names(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "big").write_bytes(os.urandom(1_000_000))
    alone, _ = measure(str(tmp_path))
    os.link(tmp_path / "d" / "big", tmp_path / "again")
    (tmp_path / "link").symlink_to("/usr")
    taken, files = measure(str(tmp_path))
    assert 1_000_000 <= alone <= taken < 1_100_000
    assert files == 4


def test_a_hole_takes_nothing(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    assert measure(str(tmp_path))[0] < 100_000


def test_what_lies_deep_is_found(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=here)
        below = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    with os.fdopen(os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=here), "wb") as file:
        file.write(os.urandom(1_000_000))
    os.close(here)
    taken, files = measure(str(tmp_path))
    delete_tree(str(tmp_path / "deep"))  # others cannot
    assert taken >= 1_000_000
    assert files == 3001


def test_what_is_too_deep_in_too_many_places_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headstart.backends.local.guest.measuring._LONGEST", 2)
    monkeypatch.setattr("headstart.backends.local.guest.measuring._MOST_FOLDERS_OPEN", 5)
    (tmp_path / "/".join(["d"] * 20)).mkdir(parents=True)
    with pytest.raises(OSError, match="too deeply"):
        measure(str(tmp_path))
