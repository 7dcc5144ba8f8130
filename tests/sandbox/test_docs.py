"""The how-to's first example does what it says, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "run-code-in-a-sandbox.md"


def test_the_first_example_runs(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    script = tmp_path / "example.py"
    script.write_text(first, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"XDG_STATE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "hello\n 0\n"
