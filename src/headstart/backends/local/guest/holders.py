"""Who in a sandbox holds something of its file tree that a swap of the tree would leave in their hands.

Names are bytes that anybody in there may choose: they are read as such, and told so that they
can be printed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from headstart.backends.local.guest.mountinfo import mount_points
from headstart.backends.spawner.guest.processes import inner_pid

__all__ = ["holders", "name_of", "printable"]


def holders(pids: list[int], targets: set[str]) -> list[str]:
    """List who holds what, for people: `python3 (41): /home/sandbox/log`.

    That is: files open for writing, folders, FIFOs and locked files open, shared writable mappings,
    sockets that are bound in the tree, and working folders other than `/`. Who reads a file goes
    on reading what it was.

    Args:
        pids: Processes that stand still.
        targets: Where, in their file tree, the sandbox's own folders and overlays are mounted.
    """
    found: list[str] = []
    for pid in pids:
        try:
            mounts = {number for number, point in mount_points(f"/proc/{pid}") if point in targets}
            held = [*_mappings(pid, targets), *_bound_sockets(pid, targets)]
            for task in os.listdir(f"/proc/{pid}/task"):  # threads may have files and folders of their own
                held += [*_open_things(f"/proc/{pid}/task/{task}", mounts), *_folder(f"/proc/{pid}/task/{task}")]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        found.extend(f"{name_of(pid)}: {printable(path)}" for path in dict.fromkeys(held))
    return found


def name_of(pid: int) -> str:
    """Return `name (pid)`, for people in the sandbox: the pid is what it has there."""
    try:
        [name] = _lines(f"/proc/{pid}/comm")
        return f"{printable(name)} ({inner_pid(pid)})"
    except (OSError, ValueError):
        return "something that has ended"


def printable(text: str) -> str:
    """Return it with everything replaced that is no letter or sign."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _lines(path: str) -> Iterator[str]:
    with open(path, "rb") as file:
        content = file.read()
    return iter(os.fsdecode(content).rstrip("\n").split("\n"))


def _open_things(task: str, mounts: set[int]) -> list[str]:
    held: list[str] = []
    for number in os.listdir(f"{task}/fd"):
        link = f"{task}/fd/{number}"
        facts = _facts_of(f"{task}/fdinfo/{number}")
        if facts.get("mnt_id", -1) not in mounts:
            continue
        mode = os.stat(link).st_mode
        is_writable = facts.get("flags", 0) & os.O_ACCMODE != os.O_RDONLY
        if is_writable or facts.get("lock") or stat.S_ISDIR(mode) or stat.S_ISFIFO(mode):
            held.append(os.readlink(link))
    return held


def _facts_of(fdinfo: str) -> dict[str, int]:
    facts: dict[str, int] = {}
    for line in _lines(fdinfo):
        name, _, value = line.partition(":")
        if name == "flags":
            facts[name] = int(value, 8)
        elif name == "mnt_id":
            facts[name] = int(value)
        elif name == "lock":
            facts[name] = 1
    return facts


def _mappings(pid: int, targets: set[str]) -> list[str]:
    held: list[str] = []
    for line in _lines(f"/proc/{pid}/maps"):
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s" and _is_in(fields[5], targets):
            held.append(fields[5])
    return held


def _bound_sockets(pid: int, targets: set[str]) -> list[str]:
    """Sockets of its network namespace; a client finds them by their place in the tree."""
    fields = [line.split(None, 7) for line in _lines(f"/proc/{pid}/net/unix")]
    return [each[7] for each in fields if len(each) == 8 and _is_in(each[7], targets)]


def _folder(task: str) -> list[str]:
    """Return its working folder, unless that is the root, which it gets the new one of."""
    path = os.readlink(f"{task}/cwd")
    return [] if path == "/" else [path]


def _is_in(path: str, targets: set[str]) -> bool:
    return any(path.startswith(target.rstrip("/") + "/") for target in targets)
