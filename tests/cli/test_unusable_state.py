"""State that cannot be used is told in one line, with its path and a cure, by whichever command meets it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headstart.cli.state import only_one
from headstart.errors import ConfigError

Damage = Callable[[Path], Path]


def folder_for(name: str) -> Damage:
    def make(state: Path) -> Path:
        (state / name).mkdir(parents=True)
        return state / name

    return make


def file_for(name: str) -> Damage:
    def make(state: Path) -> Path:
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_text("in the way")
        return state / name

    return make


def link_to(target: str) -> Damage:
    def make(state: Path) -> Path:
        state.mkdir()
        (state / "state.sqlite").symlink_to(state.parent / target)
        return state / "state.sqlite"

    return make


def circle(state: Path) -> Path:
    state.symlink_to(state)
    return state


NO_FILE = folder_for("state.sqlite")
SERVICE = folder_for("service.json")


def headstart(place: Path, *arguments: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headstart", *arguments, "--state-dir", str(place / "state")]
    if shell:
        command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=place, input="")


def configured(place: Path) -> Path:
    place.mkdir()
    (place / "theirs").write_text("not ours")
    (place / "mcp.json").write_text(json.dumps({"mcpServers": {"none": {"command": "true"}}}))
    (place / "headstart.toml").write_text(
        'mcp = "mcp.json"\n[service]\nbackend = "process"\nport = 0\n[upstreams]\ndefault = "http://127.0.0.1:9/v1"\n'
    )
    return place


def expect_one_line(done: subprocess.CompletedProcess[str], path: Path) -> None:
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ")
    assert str(path) in error
    assert hint.startswith("hint: ")
    assert done.returncode in {1, 2}
    assert done.stdout == ""


@pytest.mark.parametrize(
    "damage",
    [
        NO_FILE,
        link_to("nowhere"),
        link_to("theirs"),
        file_for("journal"),
        SERVICE,
        folder_for("lock"),
        file_for(""),
        circle,
    ],
    ids=["a folder", "a dangling link", "a link", "journal", "service file", "lock", "a file", "a circle"],
)
def test_a_service_does_not_begin_on_it(damage: Damage, tmp_path: Path) -> None:
    place = configured(tmp_path / "place")
    path = damage(place / "state")
    expect_one_line(headstart(place, "serve"), path)
    assert (place / "theirs").read_text() == "not ours"
    assert not (place / "nowhere").exists()


@pytest.mark.parametrize(
    ("command", "damage"),
    [
        (("status",), SERVICE),
        (("stop",), SERVICE),
        (("env",), SERVICE),
        (("mcp",), SERVICE),
        (("mcp",), folder_for("serve.log")),
        (("trace",), SERVICE),
        (("trace",), NO_FILE),
        (("trace",), file_for("state.sqlite")),
        (("trace",), file_for("")),
        (("forget",), SERVICE),
        (("forget",), NO_FILE),
        (("forget",), link_to("theirs")),
    ],
)
def test_a_command_that_meets_it_tells_it(command: tuple[str, ...], damage: Damage, tmp_path: Path) -> None:
    place = configured(tmp_path / "place")
    path = damage(place / "state")
    expect_one_line(headstart(place, *command), path)
    assert (place / "theirs").read_text() == "not ours"


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(ConfigError, match="No locks available") as caught, only_one(tmp_path):
        pytest.fail("it was held")
    assert str(tmp_path) in str(caught.value)
    assert "--state-dir" in (caught.value.hint or "")


def test_init_tells_it(tmp_path: Path) -> None:
    place = configured(tmp_path / "place")
    (place / "headstart.toml").unlink()
    path = file_for("journal")(place / "state")
    done = headstart(place, "init", "--from", "mcp.json", "--backend", "process")
    assert "Traceback" not in done.stderr
    assert f"error: {path}: is not a folder\nhint: move it out of the way" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("command", [("serve",), ("init", "--from", "mcp.json")], ids=["serve", "init"])
def test_too_few_open_files_are_told_before_anything_fails_of_it(command: tuple[str, ...], tmp_path: Path) -> None:
    place = configured(tmp_path / "place")
    done = headstart(place, *command, shell="ulimit -n 64")
    assert done.stderr.splitlines()[-2:] == [
        "error: ulimit -n: only 64 files may be open at once, and every sandbox takes several",
        "hint: ulimit -n 4096, or LimitNOFILE=4096 in a unit of systemd",
    ]
    assert done.returncode == 2
