"""What `headstart init` reads out of a launch spec."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config.model import ServerSettings
from headstart.config.suggest import suggest_mounts, suggest_network
from headstart.ids import ResourceId


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setattr("headstart.config.suggest._SYSTEM", (Path("/usr"), Path("/etc")))
    return folder


def server(*args: str, **env: str) -> ServerSettings:
    return ServerSettings(name=ResourceId("x"), command="x", args=args, env=env)


def test_a_folder_among_the_arguments_is_meant_to_be_seen_and_written(home: Path) -> None:
    (home / "project").mkdir()
    (mount,) = suggest_mounts(server("--root", str(home / "project")))
    assert (mount.path, mount.mode) == (home / "project", "rw")


def test_a_path_behind_an_equals_sign_counts(home: Path) -> None:
    assert [m.path for m in suggest_mounts(server(f"--root={home}"))] == [home]


def test_a_file_that_is_not_there_yet_means_its_folder(home: Path) -> None:
    assert [m.path for m in suggest_mounts(server("--db", str(home / "new.db")))] == [home]


def test_the_program_s_own_installation_and_the_system_are_left_out(home: Path) -> None:
    (home / "venv").mkdir()
    (home / "venv" / "pyvenv.cfg").touch()
    (home / "node_modules").mkdir()
    assert suggest_mounts(server(str(home / "venv"), str(home / "node_modules"), "/usr/bin", "/", "relative")) == ()


def test_a_folder_inside_another_is_named_once(home: Path) -> None:
    (home / "a").mkdir()
    assert [m.path for m in suggest_mounts(server(str(home), str(home / "a")))] == [home]


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
