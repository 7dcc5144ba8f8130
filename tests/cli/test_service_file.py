"""Commands find the running service by a file that only its user can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headstart.cli.service_file import NotRunning, ServiceFile, find_service, host_for_url, keep_service_file


def test_what_is_written_is_found_and_private(tmp_path: Path) -> None:
    service = ServiceFile(pid=os.getpid(), url="http://127.0.0.1:1", token="s3cret")
    with keep_service_file(tmp_path, service):
        assert find_service(tmp_path) == service
        assert stat.S_IMODE((tmp_path / "service.json").stat().st_mode) == 0o600
    assert "s3cret" not in repr(service)
    assert list(tmp_path.iterdir()) == []


def test_a_file_left_by_a_service_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with keep_service_file(tmp_path, ServiceFile(pid=os.getpid(), url="http://127.0.0.1:1", token="x")):
            os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(NotRunning, match=f"pid {child}"):
        find_service(tmp_path)


def test_a_process_that_got_the_pid_of_a_service_that_is_gone_is_not_taken_for_it(tmp_path: Path) -> None:
    with keep_service_file(tmp_path, ServiceFile(pid=os.getpid(), url="http://127.0.0.1:1", token="x")):
        left = (tmp_path / "service.json").read_bytes()
    (tmp_path / "service.json").write_bytes(left)
    with pytest.raises(NotRunning, match=f"pid {os.getpid()}\\) is gone"):
        find_service(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}', "[]"])
def test_a_missing_or_torn_file_means_that_nothing_runs(tmp_path: Path, text: str) -> None:
    with pytest.raises(NotRunning) as caught:
        find_service(tmp_path)
    assert caught.value.hint == "start one: headstart serve"
    (tmp_path / "service.json").write_text(text)
    with pytest.raises(NotRunning):
        find_service(tmp_path)


@pytest.mark.parametrize(
    ("listens_on", "reached_at"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "[::1]"),
        ("fd00::7", "[fd00::7]"),
        ("10.0.0.7", "10.0.0.7"),
    ],
)
def test_the_commands_name_an_address_that_the_service_answers_to(listens_on: str, reached_at: str) -> None:
    assert host_for_url(listens_on) == reached_at
