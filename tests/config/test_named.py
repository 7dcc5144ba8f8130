"""Which words of a launch spec are paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config.model import ServerSettings
from headstart.config.named import named_paths, named_script, relative_paths
from headstart.ids import ResourceId


def server(folder: Path, *args: str, **env: str) -> ServerSettings:
    return ServerSettings(name=ResourceId("x"), command="x", args=args, env=env, folder=folder)


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("db/data.db", "db/data.db"),
        ("./db/data.db", "db/data.db"),
        ("--db-path=db/data.db", "db/data.db"),
        ("new.sqlite", "new.sqlite"),
        ("there", "there"),
        (".", ""),
    ],
)
def test_a_relative_path_is_relative_to_the_folder_of_the_file(tmp_path: Path, word: str, path: str) -> None:
    (tmp_path / "there").mkdir()
    assert list(named_paths(server(tmp_path, word))) == [tmp_path / path]


def test_words_and_flags_are_no_paths(tmp_path: Path) -> None:
    assert list(named_paths(server(tmp_path, "run", "--db-path", "gpt-4.1", "", "-y", "--like=~draft", PIN="~7"))) == []
    assert named_script(server(tmp_path, "~draft.py")) is None


def test_a_bare_word_in_the_environment_is_no_path_even_if_something_is_called_so(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    assert list(named_paths(server(tmp_path, NODE_ENV="test"))) == []
    assert list(named_paths(server(tmp_path, DATA="./test"))) == [tmp_path / "test"]


def test_the_script_is_the_program_and_no_data_but_relative_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    assert list(named_paths(server(tmp_path, "main.py"))) == []
    assert list(relative_paths(server(tmp_path, "main.py"))) == [tmp_path / "main.py"]


def test_a_working_folder_stands_before_the_folder_of_the_file(tmp_path: Path) -> None:
    moved = ServerSettings(name=ResourceId("x"), args=("a/b",), folder=tmp_path, cwd=tmp_path / "work")
    assert list(named_paths(moved)) == [tmp_path / "work" / "a" / "b"]
