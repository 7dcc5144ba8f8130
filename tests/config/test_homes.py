"""Which folders hold too much to be shown, and what of them is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from headstart.config.homes import code_beside, is_crowded


@pytest.mark.parametrize("mark", [".ssh", ".gnupg", ".bashrc", ".profile"])
def test_a_folder_with_what_only_homes_have_is_one(mark: str, tmp_path: Path) -> None:
    assert not is_crowded(tmp_path)
    (tmp_path / mark).touch()
    assert is_crowded(tmp_path)


def test_a_home_and_all_that_holds_it_are_crowded_and_what_is_in_it_is_not(tmp_path: Path) -> None:
    home = tmp_path / "homes" / "ada"
    (home / "project").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(home)
    crowded = [folder for folder in (home, home.parent, home / "project", link) if is_crowded(folder, home)]
    assert crowded == [home, home.parent, link]


@pytest.mark.parametrize("folder", ["/", "/home", "/home/somebody", "/Users/somebody", "/tmp", "/var/tmp"])
def test_homes_and_scratch_folders_are_known_by_where_they_are(folder: str) -> None:
    assert is_crowded(Path(folder), Path("/nonexistent"))


def test_links_in_a_circle_are_no_home(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    assert not is_crowded(tmp_path / "one")


FOLDER = (
    ".hidden.py", ".netrc", "data.json", "helpers.py", "notes.txt", "package.json", "server.py", "server.js", "util.mjs",
    "package/__init__.py", "photos/one.jpg", "node_modules/x/index.js",
)  # fmt: skip


@pytest.mark.parametrize(
    ("program", "shown"),
    [
        ("server.py", {"server.py", "helpers.py", "package"}),
        ("server.js", {"server.js", "util.mjs", "package.json", "node_modules"}),
        ("server", {"server"}),
        (".hidden.py", {".hidden.py", "server.py", "helpers.py", "package"}),
    ],
)
def test_beside_a_program_the_code_of_its_kind_shows(program: str, shown: set[str], tmp_path: Path) -> None:
    for name in (*FOLDER, program):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert {path.name for path in code_beside(tmp_path / program)} == shown


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_somebody_else_has_put_beside_a_program_does_not_show(tmp_path: Path) -> None:
    for name in ("server.py", "own.py", "theirs.py"):
        (tmp_path / name).touch()
    os.chown(tmp_path / "theirs.py", 12_345, -1)
    assert {path.name for path in code_beside(tmp_path / "server.py")} == {"server.py", "own.py"}


@pytest.fixture
def for_somebody() -> Generator[Path]:
    """A folder that everybody may read, while this process is not root."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        own = os.geteuid()
        try:
            yield Path(name)
        finally:
            os.seteuid(own)


@pytest.mark.parametrize("suffix", [".py", ".js"])
def test_what_cannot_be_looked_into_beside_a_program_hides_nothing_else(suffix: str, for_somebody: Path) -> None:
    for name in ("server", "own"):
        (for_somebody / f"{name}{suffix}").touch()
    (for_somebody / "closed").mkdir(mode=0)
    (for_somebody / f"behind{suffix}").symlink_to(for_somebody / "closed" / "x")
    (for_somebody / "node_modules").symlink_to("gone")
    if os.geteuid() == 0:
        os.seteuid(12_345)
    assert {path.stem for path in code_beside(for_somebody / f"server{suffix}")} == {"server", "own"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
def test_somebody_elses_link_to_the_owners_code_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "server.py").touch()
    (tmp_path / "theirs.py").symlink_to(__file__)
    os.lchown(tmp_path / "theirs.py", 12_345, -1)
    assert list(code_beside(tmp_path / "server.py")) == [tmp_path / "server.py"]
