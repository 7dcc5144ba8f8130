"""Inside a sandbox: do what stdin says to files, and tell what is there then.

Everything is one line of JSON. What is not possible is left out and told; it must be so in every sandbox alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o644)  # a FIFO has no reader


def write(path: Path, text: str) -> None:
    with open(path, "w", opener=at_once) as file:
        file.write(text)


def append(path: Path, text: str) -> None:
    with open(path, "a", opener=at_once) as file:
        file.write(text)


def sparse(path: Path, size: str) -> None:
    with open(path, "r+b", opener=at_once) as file:
        file.truncate(int(size))
        file.seek(int(size) - 1)
        file.write(b"x")


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def again(path: Path) -> None:
    remove(path)
    path.mkdir()


def link(path: Path, other: str) -> None:
    os.link(path, other, follow_symlinks=False)


def symlink(path: Path, other: str) -> None:
    Path(other).symlink_to(path)


def chmod(path: Path, mode: str) -> None:
    path.chmod(int(mode, 8))


def xattr(path: Path, value: str) -> None:
    os.setxattr(path, "user.note", value.encode())


def touch(path: Path, when: str) -> None:
    os.utime(path, (int(when), int(when)))


ACTS: dict[str, Callable[..., object]] = {
    "write": write,
    "append": append,
    "sparse": sparse,
    "mkdir": Path.mkdir,
    "remove": remove,
    "again": again,
    "rename": Path.rename,
    "link": link,
    "symlink": symlink,
    "chmod": chmod,
    "xattr": xattr,
    "fifo": os.mkfifo,
    "touch": touch,
}


def shown(path: Path) -> tuple[list[Any], int]:
    facts = path.lstat()
    told: list[Any] = [stat.S_IFMT(facts.st_mode), stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid]
    if stat.S_ISLNK(facts.st_mode):
        return [*told, str(path.readlink())], facts.st_mtime_ns
    told.append(sorted((name, os.getxattr(path, name).hex()) for name in os.listxattr(path)))
    if stat.S_ISREG(facts.st_mode):
        told += [facts.st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
    return told, facts.st_mtime_ns


def tree(roots: list[str]) -> dict[str, tuple[list[Any], int]]:
    seen = dict[str, tuple[list[Any], int]]()
    for root in roots:
        for folder, folders, files in os.walk(root):
            for path in (Path(folder), *(Path(folder, name) for name in (*folders, *files))):
                try:
                    seen[str(path)] = shown(path)
                except PermissionError:
                    seen[str(path)] = ["closed"], 0
    return seen


def main() -> None:
    told = json.loads(sys.stdin.readline())
    failed: list[tuple[int, str]] = []
    for number, (name, path, *more) in enumerate(told["acts"]):
        try:
            ACTS[name](Path(path), *more)
        except (OSError, shutil.Error) as error:
            failed.append((number, str(error)))
    sys.stdout.write(json.dumps({"failed": failed, "tree": tree(told["roots"])}) + "\n")


main()
