"""Where groups may be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headstart.backends.local.cgroups import find_places

SHOW = "from headstart.backends.local.cgroups import find_places; print(len(find_places()))"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_a_hierarchy_that_is_mounted_twice_is_one_place(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or not find_places():
        pytest.skip("this machine has no unshare(1), or no control groups that we may use")
    script = 'mount --rbind /sys/fs/cgroup "$1" && exec "$2" -c "$3"'
    shown = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, SHOW],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert int(shown.stdout) == len(find_places())
