"""What is left of a service is counted from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.cli.remains import watch

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"],
    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
if sys.argv[1] == "tidy":
    child.stdin.close()
    child.wait()
"""


def run_parent(manner: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, manner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_tree_that_ended_leaves_nothing(tmp_path: Path) -> None:
    process, child = run_parent("tidy")
    watched = watch(process.pid, state_dir=tmp_path)
    assert set(watched.remains().processes) == {process.pid, child}
    process.communicate(timeout=10)
    assert watched.remains().clean
    assert str(watched.remains()) == "0 processes, 0 mounts, 0 cgroups"


def test_a_child_that_outlives_the_service_is_counted(tmp_path: Path) -> None:
    process, child = run_parent("untidy")
    watched = watch(process.pid, state_dir=tmp_path)
    os.kill(child, signal.SIGSTOP)  # so that it cannot end with its parent's pipe
    process.kill()
    process.communicate(timeout=10)
    assert watched.remains().processes == (child,)
    os.kill(child, signal.SIGKILL)


def test_a_process_that_was_just_ending_had_no_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, child = run_parent("tidy")
    for pid, group in ((process.pid, "/unit"), (child, "/")):
        shown = tmp_path / "proc" / str(pid)
        shown.mkdir(parents=True)
        (shown / "stat").write_text(Path(f"/proc/{pid}/stat").read_text())
        (shown / "cgroup").write_text(f"4:memory:{group}\n")
    (tmp_path / "cgroup" / "memory" / "unit").mkdir(parents=True)
    monkeypatch.setattr("headstart.cli.remains._PROC", tmp_path / "proc")
    monkeypatch.setattr("headstart.cli.remains._CGROUPS", tmp_path / "cgroup")
    watched = watch(process.pid, state_dir=tmp_path)
    process.communicate(timeout=10)
    assert watched.cgroups == frozenset()


def test_a_reused_pid_is_somebody_else(tmp_path: Path) -> None:
    process, _ = run_parent("tidy")
    watched = watch(process.pid, state_dir=tmp_path)
    watched.started[process.pid] -= 1
    assert process.pid not in watched.remains().processes
    process.communicate(timeout=10)
