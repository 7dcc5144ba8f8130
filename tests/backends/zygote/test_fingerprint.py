"""A fingerprint changes when a file does."""

from __future__ import annotations

import os
from pathlib import Path

from headstart.backends.zygote import fingerprint


def test_it_changes_with_size_time_and_existence_and_with_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("a")
    os.utime(file, ns=(1, 1))
    first = fingerprint([str(file)])
    assert fingerprint([str(file), str(file)]) == first
    os.utime(file, ns=(1, 2))
    touched = fingerprint([str(file)])
    file.write_text("ab")
    os.utime(file, ns=(1, 2))
    grown = fingerprint([str(file)])
    file.unlink()
    assert len({first, touched, grown, fingerprint([str(file)])}) == 4


def test_an_interpreter_exchanged_behind_its_link_shows(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "newer").write_text("newer")
    link = tmp_path / "python"
    link.symlink_to("old")
    before = fingerprint([str(link)])
    link.unlink()
    link.symlink_to("newer")
    assert fingerprint([str(link)]) != before
