"""A run's folder: made, kept while its spawner lives, swept by the next one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from headstart.backends.spawner.guest import runs


def test_a_run_removes_its_folder_whatever_is_in_it(tmp_path: Path) -> None:
    run = runs.Run(str(tmp_path))
    closed = Path(run.path, "home", "closed")
    closed.mkdir(parents=True)
    (closed / "file").write_text("x")
    closed.chmod(0)
    run.remove()
    assert [entry.name for entry in tmp_path.iterdir()] == ["sweep.lock"]


def test_a_live_run_is_not_swept(tmp_path: Path) -> None:
    first = runs.Run(str(tmp_path))
    second = runs.Run(str(tmp_path))
    assert Path(first.path).exists()
    first.remove()
    second.remove()


@pytest.mark.anyio
async def test_the_folder_and_groups_of_a_run_that_was_killed_are_swept(tmp_path: Path) -> None:
    group = tmp_path / "group"
    (group / "1").mkdir(parents=True)
    script = (
        "import os, sys; from headstart.backends.spawner.guest import runs\n"
        f"run = runs.Run({str(tmp_path / 'base')!r}); run.note_cgroup({str(group)!r}); os.kill(os.getpid(), 9)"
    )
    killed = await anyio.run_process([sys.executable, "-c", script], check=False, env=os.environ)
    assert killed.returncode == -9
    assert len(list((tmp_path / "base").glob("run-*"))) == 1
    run = runs.Run(str(tmp_path / "base"))
    assert [folder.name for folder in (tmp_path / "base").glob("run-*")] == [run.name]
    assert not group.exists()
    run.remove()


def test_empty_groups_of_dead_spawners_are_swept_and_no_others(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    here = runs.pid_namespace()
    stale, alive = f"x-run-{here}-{dead.pid}-1", f"x-run-{here}-{os.getpid()}-1"
    others = f"x-run-{here + 1}-{dead.pid}-1"  # in another PID namespace: who knows
    for name in (f"{stale}/2", f"{alive}/2", f"{others}/2", f"run-{here}-{dead.pid}-1", "x-run-other"):
        (tmp_path / name).mkdir(parents=True)
    busy = tmp_path / f"x-run-{here}-{dead.pid}-2" / "3"
    busy.mkdir(parents=True)
    (busy / "stands for a member").touch()
    runs.sweep_cgroups(str(tmp_path), "x-")
    assert {entry.name for entry in tmp_path.iterdir()} == {
        alive, others, f"run-{here}-{dead.pid}-1", "x-run-other", busy.parent.name,
    }  # fmt: skip
