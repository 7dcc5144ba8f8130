"""Run pytest as an ordinary user, from root: `PYTEST-ARGUMENTS…`.

The interpreter and this repository may lie in folders that only root may enter. In a mount
namespace of our own, such folders are covered by empty ones that show just what is needed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headstart.backends.spawner.guest import syscalls

USER = 12_345


def main() -> None:
    needed = {Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[3]}
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for folder in sorted({parent for path in needed for parent in path.parents if not enterable(parent)}):
        show_only(folder, [path for path in needed if path.is_relative_to(folder)])
    tmp = Path("/tmp")  # pytest's own folders in it may be closed, too
    show_only(tmp, [path for path in needed if path.is_relative_to(tmp)], mode="1777")
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    env = {**os.environ, "HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[1:]], env)


def enterable(folder: Path) -> bool:
    return bool(folder.stat().st_mode & 0o001)


def show_only(folder: Path, paths: list[Path], *, mode: str = "755") -> None:
    mounts = [(path, syscalls.open_tree(str(path), syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)) for path in paths]
    syscalls.mount("none", str(folder), "tmpfs", 0, f"mode={mode}")
    for path, mount in mounts:
        path.mkdir(parents=True, exist_ok=True)
        syscalls.move_mount(mount, str(path))


main()
