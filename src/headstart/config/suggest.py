"""What a server's launch spec gives away about what it needs to see.

`headstart init` writes these suggestions down, visibly, for the user to change: a path
among the arguments is meant to be used, and a URL is meant to be reached.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from headstart.config.model import MountSetting, ServerSettings

__all__ = ["suggest_mounts", "suggest_network"]

_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/run")))
_URL = re.compile(r"\b(https?|postgres(ql)?|redis(s)?|mysql|mongodb(\+srv)?|amqps?|neo4j(\+s)?|bolt)://", re.IGNORECASE)


def suggest_mounts(server: ServerSettings) -> tuple[MountSetting, ...]:
    """Return the existing host paths that a launch spec names, writable where they are the user's.

    System folders and what the program itself is installed in are left out: a sandbox has
    these anyway.
    """
    found: dict[Path, MountSetting] = {}
    for path in _named_paths(server):
        if _is_known_inside(path) or any(_covers(other, path) for other in found):
            continue
        mode = "rw" if os.access(path, os.W_OK) else "ro"
        found[path] = MountSetting(path=path, mode=mode)
    return tuple(found.values())


def suggest_network(server: ServerSettings) -> str:
    """Return `host` if the launch spec names a URL that the server will want to reach, else `none`."""
    values = [*server.args, *server.env.values()]
    return "host" if any(_URL.search(value) for value in values) else "none"


def _named_paths(server: ServerSettings) -> Iterator[Path]:
    if server.cwd is not None and server.cwd.is_absolute():
        yield server.cwd
    for value in (*server.args, *server.env.values()):
        for piece in re.split(r"[=:,]", value):
            path = Path(piece).expanduser()
            if not path.is_absolute() or len(path.parts) < 3:  # "/", "/tmp", "/home": too wide to be meant
                continue
            if path.exists():
                yield path
            elif path.suffix and path.parent.is_dir() and len(path.parts) > 3:
                yield path.parent  # a file that the server will make


def _is_known_inside(path: Path) -> bool:
    resolved = path.resolve()
    if any(_covers(system, resolved) for system in _SYSTEM):
        return True
    return any(part in {"node_modules", "site-packages"} for part in resolved.parts) or _in_venv(resolved)


def _in_venv(path: Path) -> bool:
    return any((parent / "pyvenv.cfg").exists() for parent in (path, *path.parents))


def _covers(folder: Path, path: Path) -> bool:
    return path == folder or folder in path.parents
