"""`headstart sandbox run`, as a user types it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces, where_memory_is_limited

from headstart.backends.spawner.guest.processes import descendants, is_alive

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)

HEADSTART = (sys.executable, "-m", "headstart", "sandbox")


def start(tmp_path: Path, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    pipe = subprocess.PIPE
    return subprocess.Popen([*HEADSTART, *words], env=env, stdin=stdin, stdout=pipe, stderr=pipe)


def run(tmp_path: Path, *words: str, given: bytes | None = None) -> tuple[int, str, str]:
    with start(tmp_path, *words, stdin=subprocess.DEVNULL if given is None else subprocess.PIPE) as process:
        out, err = process.communicate(given, timeout=60)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "echo out; echo err >&2; exit 3"), (3, "out\n", "err\n")),
        (("run", "printf", "%s", "a b"), (0, "a b", "")),
        (("run", "--env", "WHO=me", "echo $WHO; pwd"), (0, "me\n/home/sandbox\n", "")),
        (("run", "--cwd", "/usr", "--", "pwd"), (0, "/usr\n", "")),
        (("run", "printf", "%s", "--help"), (0, "--help", "")),
        (("run", "kill -9 $$"), (137, "", "")),
    ],
    ids=["line", "program", "variable", "folder", "the command's own options", "killed"],
)
def test_a_command_says_and_ends_as_it_does_outside(
    words: Sequence[str], told: tuple[int, str, str], tmp_path: Path
) -> None:
    assert run(tmp_path, *words) == told


@where_memory_is_limited
def test_a_command_that_is_killed_for_memory_says_so_and_what_gives_it_more(tmp_path: Path) -> None:
    words = ("run", "--memory", "60", "--", "tail", "/dev/zero")
    told = "out of memory: it was killed at the limit of its sandbox (it may use 60 MB; --memory gives it more)\n"
    assert run(tmp_path, *words) == (137, "", told)


def test_it_is_given_what_we_are_given_and_is_not_waited_for_beyond_its_end(tmp_path: Path) -> None:
    assert run(tmp_path, "run", "cat", given=b"from outside\n") == (0, "from outside\n", "")
    with start(tmp_path, "run", "head -n 1", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\n")
        process.stdin.flush()  # and it stays open
        assert process.wait(60) == 0


def test_a_folder_can_be_worked_in_without_being_changed(tmp_path: Path, mappable_base: Path) -> None:
    folder = mappable_base / "project"
    folder.mkdir(exist_ok=True)
    (folder / "given").write_text("old")
    mount = f"{folder}:overlay"
    assert run(tmp_path, "run", "--mount", mount, "--cwd", str(folder), "cat given; echo new > given; cat given") == (
        0,
        "oldnew\n",
        "",
    )
    assert (folder / "given").read_text() == "old"


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (
            ("run", "--timeout", "0.2", "sleep", "60"),
            124,
            "error: 'sleep 60' had not ended after 0.2 s, and was killed\n",
        ),
        (
            ("run", "nonesuch", "x"),
            125,
            "error: cannot run 'nonesuch': No such file or directory\nhint: a sandbox sees",
        ),
        (
            ("run", "--mount", "/nonesuch", "true"),
            125,
            "error: sandbox: /nonesuch is to be mounted, but does not exist\n",
        ),
        (
            ("run", "--network", "all", "true"),
            125,
            "error: network: there is no network 'all'\nhint: say 'none' or 'host'",
        ),
        (("run", "--env", "X", "true"), 125, "error: --env: 'X' is no variable\nhint: write NAME=VALUE\n"),
        (("run",), 2, "error: headstart sandbox run: missing argument 'command'\n"),
    ],
    ids=["too long", "no program", "no mount", "no network", "no variable", "no command"],
)
def test_what_cannot_be_is_told_apart_from_a_command_that_fails(
    words: Sequence[str], status: int, told: str, tmp_path: Path
) -> None:
    found, out, err = run(tmp_path, *words)
    assert (found, out) == (status, "")
    assert err.startswith(told)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_when_it_is_ended_nothing_goes_on(number: signal.Signals, tmp_path: Path) -> None:
    with start(tmp_path, "run", "echo up; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        below = descendants(process.pid)
        assert len(below) >= 3
        process.send_signal(number)
        assert process.wait(30) in {130, -number}
    wait_until(lambda: not any(is_alive(pid) for pid in below), what="all that it had started is gone")
