"""Run pytest on temporary folders that lie on an overlay, as in a container: `root|ordinary PYTEST-ARGUMENTS…`; from root.

The kernel stacks two overlays at most, and cannot map the ids of one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headstart.backends.spawner.guest import syscalls

BASE = Path("/var/tmp")


def main() -> None:
    user, *arguments = sys.argv[1:]
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("none", str(BASE), "tmpfs", 0, "mode=755")
    for name in ("lower", "upper", "work"):
        (BASE / name).mkdir()
    (BASE / "upper").chmod(0o1777)
    layers = f"lowerdir={BASE}/lower,upperdir={BASE}/upper,workdir={BASE}/work"
    syscalls.mount("overlay", str(BASE), "overlay", 0, layers)
    helper = [str(Path(__file__).with_name("as_ordinary_user.py"))] if user == "ordinary" else ["-m", "pytest"]
    os.execv(sys.executable, [sys.executable, *helper, f"--basetemp={BASE}/tests", *arguments])


main()
