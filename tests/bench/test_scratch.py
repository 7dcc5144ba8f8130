"""What a bench that was killed leaves, and who clears it away."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from headstart.bench.isolation import open_best_backend
from headstart.bench.scratch import open_scratch, scratch_dir

BENCH = """
import sys
import anyio
from headstart.bench.isolation import open_best_backend
from headstart.bench.scratch import open_scratch

async def bench():
    with open_scratch() as folder:
        async with open_best_backend(lambda _: None):
            (folder / "journal").write_text("x")
            print(folder, flush=True)
            sys.stdin.read()

anyio.run(bench)
"""


def run_folders() -> set[Path]:
    """Of benches themselves, and of the backends that they have opened."""
    return {*scratch_dir().glob("run-*"), *scratch_dir().glob("*/run-*")}


def test_the_next_bench_sweeps_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = (sys.executable, "-c", BENCH)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        told = Path(killed.stdout.readline().strip())
        assert told.parent == scratch_dir()
        with open_scratch() as folder:
            assert {told, folder} <= run_folders(), "one that lives is left alone"
        killed.kill()
    assert told.exists(), "nobody has cleared it away yet"
    deadline_s = time.monotonic() + 20
    while run_folders():  # the killed one's backend takes a moment to end
        assert time.monotonic() < deadline_s, run_folders()
        anyio.run(open_and_close)
        assert not told.exists()
    assert list(temporary.iterdir()) == []


async def open_and_close() -> None:
    with open_scratch():
        async with open_best_backend(lambda _: None):
            pass


@pytest.mark.anyio
async def test_a_bench_that_ends_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_scratch() as folder:
        (folder / "state").mkdir()
        async with open_best_backend(lambda _: None):
            assert len(run_folders()) == 2
    assert run_folders() == set()
