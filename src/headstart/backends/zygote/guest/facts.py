"""What a process can tell about itself: its interpreter, its environment, its open descriptors."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Mapping

HARMLESS_FILES = ("/dev/null", "/dev/urandom", "/dev/random")


def inherited_socket(descriptor: int) -> socket.socket:
    """Return the control socket that this process was born with, for it alone."""
    sock = socket.socket(fileno=descriptor)
    sock.settimeout(None)
    sock.set_inheritable(False)
    return sock


def interpreter(environ: Mapping[str, str]) -> dict[str, object]:
    """Facts by which two processes of one program can be compared.

    Environment values are digested: two processes are told apart without showing secrets.
    """
    return {
        "version": list(sys.version_info[:3]),
        "implementation": sys.implementation.name,
        "executable": sys.executable,
        "prefix": sys.prefix,
        "path": list(sys.path),
        "home": os.path.expanduser("~"),
        "cwd": os.getcwd(),
        "environ": {name: _digest(value) for name, value in environ.items()},
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
    }


def set_at_startup() -> dict[str, str]:
    """Return what the interpreter itself has put into its environment (`LC_CTYPE`, where it had no locale)."""
    with open("/proc/self/environ", "rb") as file:
        given = {os.fsdecode(entry.partition(b"=")[0]) for entry in file.read().split(b"\0")}
    return {name: value for name, value in os.environ.items() if name not in given}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def open_files() -> dict[int, str]:
    """Map every open descriptor to what it is (`/path`, `socket:[…]`, `pipe:[…]`, `anon_inode:…`)."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
        except FileNotFoundError:
            continue  # the listing's own descriptor, closed by now
    return found


def child_processes(pid: int | None = None) -> list[int]:
    """List the children of a process (default: this one), also ended ones that nobody has waited for."""
    process = os.getpid() if pid is None else pid
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]
