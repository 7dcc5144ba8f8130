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
child = subprocess.Popen([*sys.argv[2:], sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
if sys.argv[1] == "tidy":
    child.stdin.close()
    child.wait()
"""


def run_parent(manner: str, *launcher: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, manner, *launcher], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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


def test_a_mount_namespace_that_outlives_the_service_is_counted(tmp_path: Path) -> None:
    apart = ("unshare", "--user", "--mount")
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("user namespaces are not available")
    process, child = run_parent("untidy", *apart)
    watched = watch(process.pid, state_dir=tmp_path)
    namespace = Path(f"/proc/{child}/ns/mnt").readlink()
    os.kill(child, signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=10)
    assert watched.remains().mounts == (f"namespace {namespace}",)
    os.kill(child, signal.SIGKILL)


def test_a_control_group_that_was_left_is_counted_with_the_one_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, child = run_parent("tidy")
    shown_in(tmp_path, monkeypatch, {process.pid: "/services/unit", child: "/services/run-1/7"})
    run = tmp_path / "cgroup" / "memory" / "services" / "run-1"
    watched = watch(process.pid, state_dir=tmp_path)
    process.communicate(timeout=10)
    assert watched.remains().cgroups == (str(run), str(run / "7"))
    (run / "7").rmdir()
    assert watched.remains().cgroups == (str(run),), "it never held a process"
    run.rmdir()
    assert watched.remains().cgroups == (), "what the service was in is not its own"


def test_a_process_that_was_just_ending_had_no_group_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, child = run_parent("tidy")
    shown_in(tmp_path, monkeypatch, {process.pid: "/unit", child: "/"})
    watched = watch(process.pid, state_dir=tmp_path)
    process.communicate(timeout=10)
    assert watched.cgroups == frozenset()


def shown_in(folder: Path, monkeypatch: pytest.MonkeyPatch, groups: dict[int, str]) -> None:
    """Have processes looked up in a /proc of ours, which says in which control groups they are."""
    for pid, group in groups.items():
        shown = folder / "proc" / str(pid)
        shown.mkdir(parents=True)
        (shown / "stat").write_text(Path(f"/proc/{pid}/stat").read_text())
        (shown / "cgroup").write_text(f"4:memory:{group}\n")
        (folder / "cgroup" / f"memory{group}").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "self").symlink_to("/proc/self")
    monkeypatch.setattr("headstart.cli.remains._PROC", folder / "proc")
    monkeypatch.setattr("headstart.cli.remains._CGROUPS", folder / "cgroup")


def test_a_reused_pid_is_somebody_else(tmp_path: Path) -> None:
    process, _ = run_parent("tidy")
    watched = watch(process.pid, state_dir=tmp_path)
    watched.started[process.pid] -= 1
    assert process.pid not in watched.remains().processes
    process.communicate(timeout=10)
