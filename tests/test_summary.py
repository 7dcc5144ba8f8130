"""A run of the tests that could isolate nothing says so at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("kind", ["local", "local, forked"])
def test_that_isolates(kind):
    pytest.skip(f"the {kind} backend cannot run here: clone: not (permitted)")

def test_that_needs_something_else():
    pytest.skip("needs root")
"""


def summary_of(tests: str, folder: Path) -> list[str]:
    (folder / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", "/dev/null", "--rootdir", str(folder)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "-q", str(folder)],
        capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "ISOLATION" in line]


def test_a_run_without_isolation_ends_in_one_loud_line(tmp_path: Path) -> None:
    (line,) = summary_of(TESTS, tmp_path)
    told = "2 tests were skipped, others ran in the process backend, because clone: not (permitted)"
    assert line == f"NO ISOLATION: {told}"


def test_a_run_that_skipped_nothing_for_that_does_not(tmp_path: Path) -> None:
    assert summary_of(TESTS.replace("local", "remote"), tmp_path) == []
