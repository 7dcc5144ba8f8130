"""A run's folder: made, kept while its spawner lives, swept by the next one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.machine import as_root_of_namespaces

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
    script = (
        "import os, sys; from headstart.backends.spawner.guest import runs\n"
        f"run = runs.Run({str(tmp_path / 'base')!r}); run.make_cgroup({str(group)!r}); os.mkdir({str(group / '1')!r}); os.kill(os.getpid(), 9)"
    )
    killed = await anyio.run_process([sys.executable, "-c", script], check=False, env=os.environ)
    assert killed.returncode == -9
    assert len(list((tmp_path / "base").glob("run-*"))) == 1
    run = runs.Run(str(tmp_path / "base"))
    assert [folder.name for folder in (tmp_path / "base").glob("run-*")] == [run.name]
    assert not group.exists()
    run.remove()


def test_a_start_does_not_wait_for_ever_behind_one_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PAUSE_S", 0.0001)
    with (tmp_path / "sweep.lock").open("w") as stopped:
        fcntl.flock(stopped, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="another start there does not get on"):
            runs.Run(str(tmp_path))
    runs.Run(str(tmp_path)).remove()


def test_a_group_is_remembered_before_it_is_made(tmp_path: Path) -> None:
    run = runs.Run(str(tmp_path / "base"))
    with pytest.raises(FileNotFoundError):
        run.make_cgroup(str(tmp_path / "nowhere" / "group"))
    assert Path(run.path, "cgroups").read_text() == f"{tmp_path}/nowhere/group\n"
    run.remove()


def test_groups_whose_spawner_is_dead_are_swept_if_they_are_empty_and_no_others(tmp_path: Path) -> None:
    run = runs.Run(str(tmp_path / "base"))
    ours, sibling = tmp_path / "session-2", tmp_path / "session-1"
    for parent in (ours, sibling):
        parent.mkdir()
        run.make_cgroup(str(parent / "x-run-alive"))
        for name in ("x-run-alive/1", "x-run-stale/1", "x-run-busy/1", "run-stale", "x-other"):
            (parent / name).mkdir(parents=True)
        (parent / "x-run-busy" / "1" / "stands for a member").touch()
    runs.sweep_cgroups(str(ours), "x-")
    for parent in (ours, sibling):
        assert {entry.name for entry in parent.iterdir()} == {"x-run-alive", "x-run-busy", "run-stale", "x-other"}
        assert (parent / "x-run-alive" / "1").exists()
    run.remove()
    assert not (ours / "x-run-alive").exists()


@as_root_of_namespaces
def test_a_spawner_in_another_pid_namespace_keeps_its_groups_while_it_lives_and_no_longer(tmp_path: Path) -> None:
    group = tmp_path / "x-run-1-elsewhere"
    script = (
        "import os, sys; from headstart.backends.spawner.guest import runs\n"
        f"run = runs.Run({str(tmp_path / 'base')!r}); run.make_cgroup({str(group)!r})\n"
        "print(os.getpid(), flush=True); sys.stdin.read(); os.kill(os.getpid(), 9)"
    )
    elsewhere = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", script]
    with subprocess.Popen(elsewhere, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as spawner:
        assert spawner.stdout is not None
        assert spawner.stdin is not None
        assert spawner.stdout.readline() == "1\n"
        runs.sweep_cgroups(str(tmp_path), "x-")
        assert group.exists()
        spawner.stdin.close()
        spawner.wait(30)
        runs.sweep_cgroups(str(tmp_path), "x-")
        assert not group.exists()


def test_a_group_that_is_swept_while_it_is_made_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.Run(str(tmp_path / "base"))
    group = tmp_path / "x-run-new"
    make, made = os.mkdir, list[str]()

    def make_and_lose(path: str, mode: int) -> None:
        make(path, mode)
        made.append(path)
        if len(made) == 1:
            runs.sweep_cgroups(str(tmp_path), "x-")

    monkeypatch.setattr(os, "mkdir", make_and_lose)
    run.make_cgroup(str(group))
    monkeypatch.undo()
    assert made == [str(group)] * 2
    runs.sweep_cgroups(str(tmp_path), "x-")
    assert group.exists()
    run.remove()
