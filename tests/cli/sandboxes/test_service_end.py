"""How the service ends, and what is there in the next one; and what the page says to type."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.sandboxes.typing_at import on_terminal, serving
from tests.e2e.running import wait_until
from tests.machine import may_make_namespaces, where_files_outlive

from headstart.backends.spawner.guest.processes import descendants, is_alive

pytestmark = pytest.mark.skipif(
    not may_make_namespaces(), reason="the local backend cannot run here: this user may make no namespaces"
)


def test_when_the_service_is_stopped_whoever_uses_it_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        name = service.create()
        with (
            on_terminal(service, "shell", name) as terminal,
            service.running("run", "--in", name, "echo up; sleep 1000") as running,
            service.running("events") as watching,
        ):
            terminal.type(b"echo up$((1+1))\n")
            terminal.until(b"up2\r\n")
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            below = descendants(service.process.pid)
            stopped = subprocess.run(
                [sys.executable, "-m", "headstart", "stop"],
                env=service.env,
                capture_output=True,
                check=False,
                timeout=60,
            )
            assert (stopped.returncode, b"left: 0 processes" in stopped.stdout) == (0, True), stopped
            assert running.wait(30) == 125
            assert running.stderr is not None
            assert running.stderr.read().splitlines() == [
                b"error: the service is gone, and what was asked of it may have been done or not",
                b"hint: headstart serve starts one",
            ]
            assert watching.wait(30) == 1
            assert watching.stderr is not None
            assert watching.stderr.read().startswith(b"error: the service is gone")
            assert terminal.ends() == 1
            assert b"error: the service is gone" in terminal.shown
            assert b"Traceback" not in terminal.shown
        assert service.process.wait(20) == 0
        assert not any(is_alive(pid) for pid in below)
        assert not (tmp_path / "state" / "sandboxes.sock").exists()
        assert "Traceback" not in service.log.read_text()


def test_a_service_that_was_killed_is_followed_by_one_that_serves(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.create()
        below = descendants(service.process.pid)
        service.process.kill()
        service.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in below), what="its sandboxes are gone")
        assert service.do("list").told[::2] == (
            1,
            [
                f"error: no headstart service hosts sandboxes in {tmp_path / 'state'}",
                "hint: start one: headstart serve",
            ],
        )
    (tmp_path / "home").rmdir()
    (tmp_path / "state" / "service.json").unlink(missing_ok=True)
    with serving(tmp_path) as again:
        assert again.do("run", "--in", again.create(), "echo on").out == b"on\n"


@where_files_outlive
def test_a_sandbox_outlives_a_service_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        assert first.do("create", "--name", "mine").status == 0
        assert first.do("run", "--in", "mine", "echo 1 > f").status == 0
        assert first.do("checkpoint", "mine").status == 0
        assert first.do("run", "--in", "mine", "echo 2 > f").status == 0
        first.process.kill()
        first.process.wait()
    (tmp_path / "home").rmdir()
    (tmp_path / "state" / "service.json").unlink()  # so that we see when the next one is there
    with serving(tmp_path) as second:
        assert second.do("run", "--in", "mine", "cat f").told == (0, "2\n", [])
        assert second.do("rollback", "mine").status == 0
        assert second.do("run", "--in", "mine", "cat f").told == (0, "1\n", [])
        assert second.do("kill", "mine").status == 0


PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "keep-sandboxes-in-the-service.md"


def test_what_the_page_says_to_type_works(tmp_path: Path) -> None:
    block = re.findall(r"\n\n((?:    headstart .*\n)+)", PAGE.read_text(encoding="utf-8"))[0]
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    typed = [line for line in lines if not line.startswith(("headstart serve", "headstart sandbox shell"))]
    assert len(typed) == len(lines) - 2
    project = tmp_path / "project"
    project.mkdir()
    (project / "test.sh").write_text("echo all is well > report.txt\n")
    with serving(tmp_path) as running:
        for line in typed:
            done = running.do(*shlex.split(line)[2:])
            assert done.status == 0, (line, done)
        assert (tmp_path / "report.txt").read_text() == "all is well\n"
        assert running.do("list").json == {"sandboxes": []}


def test_the_programs_on_the_page_run(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with serving(tmp_path) as running:
        script = [sys.executable, "-c", program]
        done = subprocess.run(script, env=running.env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert running.do("list").json == {"sandboxes": []}
