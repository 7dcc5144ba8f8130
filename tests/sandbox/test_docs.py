"""The how-to's first example does what it says, as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
RUN_THEM = "import anyio\nimport headstart\n\nasync def main() -> None:\n{}\nanyio.run(main)\n"


def test_the_first_example_runs(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    assert said(example("run-code-in-a-sandbox.md", 0), tmp_path) == "hello\n 0\n"


def test_a_template_is_built_from_python(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    script = RUN_THEM.format(textwrap.indent(example("templates.md", 1), "    "))
    assert said(script, tmp_path) == "hello\n\n"


def example(page: str, number: int) -> str:
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)[number]


def said(program: str, tmp_path: Path) -> str:
    script = tmp_path / "example.py"
    script.write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"XDG_STATE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout
