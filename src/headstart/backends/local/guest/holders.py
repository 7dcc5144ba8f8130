"""Who in a sandbox holds something of its file tree that a sealed layer must not leave in their hands."""

from __future__ import annotations

import os
import re
import stat

__all__ = ["holders"]


def holders(pids: list[int], targets: set[str]) -> list[str]:
    """List who holds what, for people: `python3 (41): /home/sandbox/log`.

    That is: files open for writing, folders open, shared writable mappings, and working folders.
    Who reads a file goes on reading what it was.

    Args:
        pids: Processes that stand still.
        targets: Where, in their file tree, the sandbox's own folders and overlays are mounted.
    """
    found: list[str] = []
    for pid in pids:
        try:
            mounts = _mounts_at(pid, targets)
            held = [*_open_things(pid, mounts), *_mappings(pid, targets), *_folder(pid, mounts)]
        except FileNotFoundError:
            continue  # it has ended
        except ProcessLookupError:
            continue
        found.extend(f"{_name(pid)} ({pid}): {path}" for path in dict.fromkeys(held))
    return found


def _mounts_at(pid: int, targets: set[str]) -> set[int]:
    found: set[int] = set()
    with open(f"/proc/{pid}/mountinfo") as lines:
        for line in lines:
            number, _, _, _, point, *_ = line.split(" ")
            if _unescaped(point) in targets:
                found.add(int(number))
    return found


def _open_things(pid: int, mounts: set[int]) -> list[str]:
    held: list[str] = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        link = f"/proc/{pid}/fd/{number}"
        facts = _facts_of(f"/proc/{pid}/fdinfo/{number}")
        if facts.get("mnt_id", -1) not in mounts:
            continue
        is_writable = facts.get("flags", 0) & os.O_ACCMODE != os.O_RDONLY
        if is_writable or stat.S_ISDIR(os.stat(link).st_mode):
            held.append(os.readlink(link))
    return held


def _facts_of(fdinfo: str) -> dict[str, int]:
    facts: dict[str, int] = {}
    with open(fdinfo) as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "flags":
                facts[name] = int(value, 8)
            elif name == "mnt_id":
                facts[name] = int(value)
    return facts


def _mappings(pid: int, targets: set[str]) -> list[str]:
    held: list[str] = []
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            fields = line.split(maxsplit=5)
            is_shared_for_writing = fields[1][1] == "w" and fields[1][3] == "s"
            if is_shared_for_writing and len(fields) > 5:
                path = fields[5].rstrip("\n")
                if any(path.startswith(target.rstrip("/") + "/") for target in targets):
                    held.append(path)
    return held


def _folder(pid: int, mounts: set[int]) -> list[str]:
    link = f"/proc/{pid}/cwd"
    descriptor = os.open(link, os.O_PATH | os.O_CLOEXEC)
    try:
        is_held = _facts_of(f"/proc/self/fdinfo/{descriptor}").get("mnt_id", -1) in mounts
    finally:
        os.close(descriptor)
    return [os.readlink(link)] if is_held else []


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as comm:
        return comm.read().strip()


def _unescaped(path: str) -> str:
    """Read a path as mountinfo writes it: blanks and the like as three octal digits."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), path)
