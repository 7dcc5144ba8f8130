"""What `headstart init` writes, and what it leaves alone."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from headstart.cli.first_config import write_config
from headstart.cli.learning import report
from headstart.cli.terminal import show
from headstart.config.model import ServerSettings
from headstart.ids import ResourceId


def test_a_config_that_is_there_stays_and_the_options_that_are_not_used_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "headstart.toml"
    config.write_text("# mine\n")
    write_config(tmp_path / "mcp.json", (), upstream="http://127.0.0.1:9/v1", backend="auto")
    assert config.read_text() == "# mine\n"
    told = capsys.readouterr().err.splitlines()
    assert told[0] == (
        "headstart.toml is there already and stays as it is; not used: --upstream (move it away to begin anew)"
    )
    assert told[-1] == f'mcp = "{tmp_path}/mcp.json"'


def notes(folder: Path, name: str = "notes") -> ServerSettings:
    (folder / "db").mkdir(exist_ok=True)
    return ServerSettings(name=ResourceId(name), command="notes", args=("db/notes.db",), folder=folder)


def test_what_a_config_that_is_there_lacks_for_a_new_server_is_printed_ready_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headstart.config.suggest._SYSTEM", ())
    source, config = Path("mcp.json"), tmp_path / "headstart.toml"
    write_config(source, (), upstream=None, backend="auto")
    before = config.read_text()
    capsys.readouterr()
    write_config(source, (notes(tmp_path),), upstream=None, backend="auto")
    first, second, *lines = capsys.readouterr().err.splitlines()
    assert config.read_text() == before
    assert first == "headstart.toml is there already and stays as it is"
    assert second.startswith("missing in headstart.toml")
    pasted = tomllib.loads(before + "\n".join(lines))
    assert pasted["servers"]["notes"]["mounts"] == [{"path": str(tmp_path / "db"), "mode": "rw"}]


def test_what_was_chosen_in_a_config_that_is_there_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headstart.toml").write_text('mcp = ["mcp.json"]\n[servers.notes]\nmounts = []\n')
    write_config(Path("mcp.json"), (notes(tmp_path),), upstream=None, backend="auto")
    assert capsys.readouterr().err == "headstart.toml is there already and stays as it is\n"


def test_a_remark_about_a_home_is_told_and_is_nothing_to_paste(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "server.py").touch()
    (tmp_path / "headstart.toml").write_text('mcp = ["mcp.json"]\n')
    server = ServerSettings(name=ResourceId("own"), command="python3", args=("server.py",), folder=tmp_path)
    write_config(Path("mcp.json"), (server,), upstream=None, backend="auto")
    told = capsys.readouterr().err
    assert f"own: of {tmp_path}, where its script lies, a sandbox sees only the code beside that" in told.replace(
        "\n", " "
    )
    assert "missing in headstart.toml" not in told


def test_what_is_mounted_is_written_with_its_reason_and_what_is_not_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    for folder in (home, data):
        folder.mkdir()
        (folder / "notes.db").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("headstart.config.suggest._SYSTEM", ())
    arguments = (str(data / "notes.db"), str(home / "notes.db"))
    server = ServerSettings(name=ResourceId("notes"), command="notes", args=arguments)
    write_config(tmp_path / "mcp.json", (server,), upstream=None, backend="auto")
    text = (tmp_path / "headstart.toml").read_text()
    assert tomllib.loads(text)["servers"]["notes"]["mounts"] == [{"path": str(data), "mode": "rw"}]
    assert "# for notes.db: its journal is made beside it" in text
    assert f"# {home}/notes.db needs its folder writable" in text
    assert f"notes: {home}/notes.db needs its folder writable" in capsys.readouterr().err


def test_a_failure_is_told_once_below_a_table_that_it_does_not_widen(capsys: pytest.CaptureFixture[str]) -> None:
    good: dict[str, Any] = {"name": "good", "tools": 5, "form": "zygote", "reason": "forks", "problem": "", "hint": ""}
    problem = f"it exited with code 3; its last words were {'no ' * 40}key"
    broken = {**good, "name": "broken", "problem": problem, "hint": "run it by hand"}
    show(*report([good, broken]))
    text = capsys.readouterr().out
    table, _, below = text.partition("\n\n")
    assert max(map(len, table.splitlines())) < 60
    assert "broken" in table
    assert "last words" not in table
    assert text.count("last words") == 1
    assert "hint: run it by hand" in below
