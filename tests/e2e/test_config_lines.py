"""What is wrong with a file, a port or a folder is said in one line with its cure, and the exit status is 2."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator

import pytest

from .clients import RawClient
from .running import Place, Running, headstart, scripted, service

MISSING = "mcp-server-that-is-not-there"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """A service with a server that there is, and one that there is not."""
    place = Place(folder=tmp_path_factory.mktemp("config")).configure(
        {"git": {"command": MISSING}, "good": scripted("good")},
        '[service]\nbackend = "process"\njournal = "full"\n',
    )
    with service(place) as started:
        yield started


def refused(place: Place, command: str, *arguments: str, status: int = 2) -> list[str]:
    """Run a command that has to be refused; returns the lines on stderr."""
    done = headstart(
        command, "--config", str(place.config), "--state-dir", str(place.state), *arguments, cwd=place.folder
    )
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()


def with_mcp_text(place: Place, text: str) -> Place:
    place.configure({})
    place.mcp.write_text(text, encoding="utf-8")
    return place


def test_a_misspelt_key_is_told_with_file_line_and_the_right_spelling(place: Place) -> None:
    text = """{
  "mcpServers": {
    "playwright": {
      "command": "npx",
      "args": ["@playwright/mcp"],
      "headstart": {
        "instnace": "session"
      }
    }
  }
}
"""
    assert refused(with_mcp_text(place, text), "serve") == [
        "error: mcp.json:7: playwright.headstart.instnace: unknown key",
        'hint: did you mean "instance"?',
    ]


def test_the_same_server_twice_in_one_file_is_told(place: Place) -> None:
    text = '{"mcpServers": {\n  "git": {"command": "a"},\n  "git": {"command": "b"}\n}}\n'
    error, hint = refused(with_mcp_text(place, text), "env")
    assert error == "error: mcp.json:3: git: appears twice"
    assert hint == "hint: rename or remove one of the two"


def test_the_same_server_in_two_files_is_told(place: Place) -> None:
    place.configure({"git": scripted("good")})
    other = place.folder / "other.json"
    other.write_text(json.dumps({"mcpServers": {"git": scripted("good")}}), encoding="utf-8")
    error, hint = refused(place, "serve", "--mcp", str(other))
    assert "server 'git' is in two files" in error
    assert hint.startswith("hint: ")


def test_a_file_that_is_not_there_or_no_text_is_told(place: Place) -> None:
    place.configure({})
    place.mcp.write_bytes(b"\xff\xfe\x00")
    error, _ = refused(place, "env")
    assert error.startswith(f"error: {place.mcp}: cannot be read")
    place.mcp.unlink()
    error, hint = refused(place, "env")
    assert error == f"error: {place.mcp}: cannot be read: No such file or directory"
    assert hint == "hint: check the path and its permissions"


def test_a_file_that_may_not_be_read_is_told(place: Place) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read every file: this test needs an ordinary user")
    place.configure({})
    place.mcp.chmod(0)
    error, _ = refused(place, "env")
    assert error == f"error: {place.mcp}: cannot be read: Permission denied"


def test_an_upstream_with_v1_twice_is_told(place: Place) -> None:
    place.configure({}, '[upstreams]\ndefault = "http://127.0.0.1:8000/v1/v1"\n')
    error, hint = refused(place, "env")
    assert error.endswith("headstart.toml:3: upstreams.default: the path has /v1 twice")
    assert hint == "hint: end it in one /v1"


def test_a_port_in_use_is_told(place: Place) -> None:
    place.configure({}, '[upstreams]\ndefault = "http://127.0.0.1:9/v1"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error, hint = refused(place, "serve", "--port", str(port))
    assert error == f"error: headstart serve: port {port} on 127.0.0.1 is in use"
    assert "--port" in hint


def test_an_address_that_others_can_reach_needs_a_key(place: Place) -> None:
    place.configure({}, '[service]\nhost = "0.0.0.0"\n')
    error, hint = refused(place, "env")
    assert error.endswith("service.host: 0.0.0.0 can be reached from other machines and no key is set")
    assert "service.keys" in hint
    place.configure({})
    error, _ = refused(place, "serve", "--host", "0.0.0.0")
    assert error.endswith("0.0.0.0 can be reached from other machines and no key is set")


def test_a_second_service_on_one_state_is_refused_and_the_first_goes_on(running: Running) -> None:
    error, hint = refused(running.place, "serve", "--port", "0", status=3)
    assert error == f"error: {running.place.state}: a service is running on this state directory"
    assert "headstart stop" in hint
    assert running.status()["runtime"]["events_broken"] == 0


def test_init_beside_a_running_service_is_refused_before_it_writes_anything(running: Running, place: Place) -> None:
    place.configure({"good": scripted("good")})
    place.config.unlink()
    done = headstart("init", "--from", "mcp.json", "--state-dir", str(running.place.state), cwd=place.folder)
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"error: {running.place.state}: a service is running on this state directory",
        "hint: headstart stop ends it; --state-dir gives this command a state of its own",
    ]
    assert not place.config.exists()


def test_a_client_is_told_at_once_why_a_server_s_tools_are_not_there(running: Running) -> None:
    with RawClient(f"{running.url}/mcp") as client:
        told = client.instructions()
    assert f"Not available: git: command '{MISSING}' was not found" in told


def test_a_command_that_does_not_exist_is_told_by_serve(running: Running) -> None:
    assert f"git: command '{MISSING}' was not found" in running.log()
    assert "hint: install it, or give its full path as mcpServers.git.command" in running.log()
    assert "serves 1 of 2 servers (good)" in running.log()


def test_a_command_that_does_not_exist_is_told_by_init_and_the_others_are_learned(place: Place) -> None:
    servers = {"git": {"command": MISSING}, "good": scripted("good"), "plain": scripted("good", zygote="never")}
    place.configure(servers, '[service]\nbackend = "process"\n')
    before = place.config.read_bytes()
    done = headstart(
        "init",
        "--from",
        "mcp.json",
        "--backend",
        "process",
        "--state-dir",
        str(place.state),
        "--json",
        cwd=place.folder,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "headstart.toml is there already and stays as it is" in done.stderr
    assert place.config.read_bytes() == before
    told = json.loads(done.stdout)["servers"]
    assert MISSING in told["git"]["problem"]
    assert told["good"]["problem"] == ""
    assert told["good"]["tools"] == 5
    assert told["good"]["form"] == "zygote", told["good"]["reason"]
    assert (told["plain"]["form"], told["plain"]["reason"]) == ("cold", 'its config says zygote = "never"')


def test_init_reads_the_mcp_file_and_never_writes_it(place: Place) -> None:
    place.configure({"good": scripted("good")})
    place.config.unlink()
    before = (place.mcp.read_bytes(), place.mcp.stat().st_mtime_ns)
    arguments = ("init", "--from", "mcp.json", "--backend", "process", "--upstream", "http://127.0.0.1:9/v1")
    done = headstart(*arguments, "--state-dir", str(place.state), cwd=place.folder)
    assert done.returncode == 0, done.stderr
    assert (place.mcp.read_bytes(), place.mcp.stat().st_mtime_ns) == before
    written = place.config.read_text(encoding="utf-8")
    assert 'mcp = "mcp.json"' in written
    assert 'default = "http://127.0.0.1:9/v1"' in written


def test_no_state_is_readable_by_others(running: Running) -> None:
    with RawClient(f"{running.url}/mcp") as client:
        client.initialize()
        assert client.call("good__add", text="x") == ("1 notes", False)
        state = running.place.state
        assert state.stat().st_mode & 0o777 == 0o700
        files = [path for path in state.rglob("*") if path.is_file()]
        database = {"state.sqlite", "state.sqlite-wal", "state.sqlite-shm"}
        assert {"service.json", "lock", *database} <= {path.name for path in files}
        assert any(path.parent.name == "journal" and path.suffix == ".jsonl" for path in files), files
        for path in files:
            mode = path.stat().st_mode & 0o777
            assert mode == 0o600, f"{path} is {mode:o}"
        for folder in (path for path in state.iterdir() if path.is_dir()):
            assert folder.stat().st_mode & 0o077 == 0, folder
