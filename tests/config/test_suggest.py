"""What `headstart init` reads out of a launch spec."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from headstart.config.model import MountSetting, ServerSettings
from headstart.config.suggest import suggest_mounts, suggest_network
from headstart.ids import ResourceId


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setattr("headstart.config.suggest._SYSTEM", (Path("/usr"), Path("/etc")))
    return folder


def server(*args: str, **env: str) -> ServerSettings:
    return ServerSettings(name=ResourceId("x"), command="x", args=args, env=env)


def mounts(*args: str) -> list[MountSetting]:
    return [one.mount for one in suggest_mounts(server(*args)) if one.mount is not None]


def test_a_folder_among_the_arguments_is_meant_to_be_seen_and_written(home: Path) -> None:
    (home / "project").mkdir()
    (mount,) = mounts("--root", str(home / "project"))
    assert (mount.path, mount.mode) == (home / "project", "rw")


def test_a_path_behind_an_equals_sign_counts(home: Path) -> None:
    assert [m.path for m in mounts(f"--root={home}")] == [home]


def test_a_file_that_is_not_there_yet_means_its_folder(home: Path) -> None:
    assert [m.path for m in mounts("--db", str(home / "new.db"))] == [home]


def test_the_program_s_own_installation_and_the_system_are_left_out(home: Path) -> None:
    (home / "venv").mkdir()
    (home / "venv" / "pyvenv.cfg").touch()
    (home / "node_modules").mkdir()
    assert suggest_mounts(server(str(home / "venv"), str(home / "node_modules"), "/usr/bin", "/", "relative")) == ()


def test_a_folder_inside_another_is_named_once(home: Path) -> None:
    (home / "a").mkdir()
    assert [m.path for m in mounts(str(home), str(home / "a"))] == [home]


def test_a_database_means_its_folder_because_its_journal_is_made_beside_it(home: Path) -> None:
    (home / "data").mkdir()
    with closing(sqlite3.connect(home / "data" / "notes")) as connection:  # known by its content, not its name
        connection.execute("CREATE TABLE t (x)")
    (suggestion,) = suggest_mounts(server("--db", str(home / "data" / "notes")))
    assert suggestion.mount == MountSetting(path=home / "data", mode="rw")
    assert suggestion.because == "for notes: its journal is made beside it"


def relative(folder: Path, *args: str) -> ServerSettings:
    return ServerSettings(name=ResourceId("x"), command="x", args=args, folder=folder)


def test_a_relative_path_is_mounted_as_an_absolute_one_is(home: Path) -> None:
    (home / "project" / "db").mkdir(parents=True)
    (suggestion,) = suggest_mounts(relative(home / "project", "--db-path", "db/data.db"))
    assert suggestion.mount == MountSetting(path=home / "project" / "db", mode="rw")


def test_a_relative_path_that_leads_out_of_its_folder_is_told(home: Path) -> None:
    (home / "project").mkdir()
    (home / "data").mkdir()
    (suggestion,) = suggest_mounts(relative(home / "project", "../data"))
    assert suggestion.mount is None
    assert suggestion.because.endswith(f"write it as {home}/data")


def test_a_file_that_is_no_database_is_shown_alone(home: Path) -> None:
    (home / "notes.txt").touch()
    assert [m.path for m in mounts("--file", str(home / "notes.txt"))] == [home / "notes.txt"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_database_in_a_home_shows_nothing_of_the_home_and_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    monkeypatch.setenv("HOME", str(home))
    if exists:
        (home / "notes.db").touch()
    (suggestion,) = suggest_mounts(server("--db", str(home / "notes.db")))
    assert suggestion.mount is None
    assert suggestion.because.endswith("move it to a folder of its own, and mount that")


def test_somebody_else_s_home_and_what_holds_ssh_keys_are_no_folders_to_show(home: Path) -> None:
    (home / "other" / ".ssh").mkdir(parents=True)
    assert mounts("--db", str(home / "other" / "notes.db")) == []


def test_what_lies_beside_a_script_in_a_home_does_not_show_and_that_is_told(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    (home / "server.py").touch()
    (suggestion,) = suggest_mounts(server(str(home / "server.py")))
    assert suggestion.mount is None
    assert suggestion.because.endswith(
        "sees only the code beside that: move it to a folder of its own if it needs more"
    )


def test_a_home_as_cwd_is_not_shown_and_that_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ServerSettings(name=ResourceId("x"), command="x", cwd=home)
    (suggestion,) = suggest_mounts(given)
    assert suggestion.mount == MountSetting(path=home, mode="rw"), "an ordinary folder"
    monkeypatch.setenv("HOME", str(home))
    (suggestion,) = suggest_mounts(given)
    assert suggestion.mount is None
    assert suggestion.because.endswith("give it a folder of its own, or mount what it needs")


def test_a_program_that_is_named_is_run_and_not_written(home: Path) -> None:
    program = home / "python"
    program.touch(mode=0o755)
    (suggested,) = suggest_mounts(server(UV_PYTHON=str(program)))
    assert suggested.mount == MountSetting(path=program, mode="ro")


def test_a_server_s_own_script_is_not_its_to_change(home: Path) -> None:
    (home / "server.py").touch()
    assert mounts(str(home / "server.py"), "--verbose") == []


@pytest.mark.parametrize(
    ("given", "network"),
    [
        (server("redis://127.0.0.1:6379"), "host"),
        (server(API="https://api.example.test"), "host"),
        (server("x"), "none"),
    ],
)
def test_a_url_means_that_the_network_is_needed(given: ServerSettings, network: str) -> None:
    assert suggest_network(given) == network
