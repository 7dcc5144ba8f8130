"""What a server's launch spec gives away about what it needs to see.

`headstart init` writes these suggestions down, visibly, for the user to change: a path
among the arguments is meant to be used, and a URL is meant to be reached.

A database gets its folder, not only itself: SQLite makes its journal (`-journal`, `-wal`,
`-shm`) beside it, and a single mounted file has no place beside it. Rejected: mounting the
journal's files one by one (SQLite deletes them, and what is mounted cannot be deleted). A
folder that holds more than a server should ever see, a home above all, is never suggested.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headstart.config.homes import SHARED, is_crowded
from headstart.config.model import MountSetting, ServerSettings
from headstart.config.named import DATABASES, named_paths, named_script, relative_paths

__all__ = ["Suggestion", "suggest_mounts", "suggest_network"]

_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/run")))
_URL = re.compile(r"\b(https?|postgres(ql)?|redis(s)?|mysql|mongodb(\+srv)?|amqps?|neo4j(\+s)?|bolt)://", re.IGNORECASE)
_SQLITE_MAGIC = b"SQLite format 3\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """One path that a launch spec names.

    Attributes:
        mount: What to show of the host for it; None if that would be too much.
        because: Why, for a comment; "" if it is what the spec names and nothing else.
    """

    mount: MountSetting | None
    because: str = ""


def suggest_mounts(server: ServerSettings) -> tuple[Suggestion, ...]:
    """Return the host paths that a launch spec needs, writable where they are the user's and no programs.

    System folders, what the program itself is installed in, and its script are left out: a
    sandbox has these anyway, and no server need change its own code.
    """
    found: dict[Path, Suggestion] = {}
    for path in _useful_paths(server):
        suggestion = _suggestion(path, server)
        if suggestion.mount is None:
            found.setdefault(path, suggestion)
        elif not any(_covers(other, suggestion.mount.path) for other, one in found.items() if one.mount):
            found[suggestion.mount.path] = suggestion
    return (*found.values(), *_hidden(server))


def suggest_network(server: ServerSettings) -> str:
    """Return `host` if the launch spec names a URL that the server will want to reach, else `none`."""
    values = [*server.args, *server.env.values()]
    return "host" if any(_URL.search(value) for value in values) else "none"


def _useful_paths(server: ServerSettings) -> Iterator[Path]:
    if server.cwd is not None and server.cwd.is_absolute() and not is_crowded(server.cwd):
        yield server.cwd
    for path in named_paths(server):
        if len(path.parts) < 3:  # "/", "/tmp", "/home": too wide to be meant
            continue
        will_be_made = bool(path.suffix) and path.parent.is_dir()
        if (path.exists() or will_be_made) and not _is_known_inside(path):
            yield path


def _hidden(server: ServerSettings) -> Iterator[Suggestion]:
    """Tell what of a home a server might look for and will not find."""
    script = named_script(server)
    if script is not None and is_crowded(script.parent):
        told = f"of {script.parent}, where its script lies, a sandbox sees only the code beside that"
        yield Suggestion(mount=None, because=f"{told}: move it to a folder of its own if it needs more")
    elif server.cwd is not None and is_crowded(server.cwd) and server.cwd not in SHARED:
        told = f"its cwd {server.cwd} holds too much for a server to see"
        yield Suggestion(mount=None, because=f"{told}: give it a folder of its own, or mount what it needs")


def _suggestion(path: Path, server: ServerSettings) -> Suggestion:
    if server.cwd is None and path in relative_paths(server) and not path.is_relative_to(server.folder or "/"):
        told = f"a relative path leads out of {server.folder}, which a sandbox does not follow: write it as {path}"
        return Suggestion(mount=None, because=told)
    if path.is_dir() or (path.exists() and not _is_database(path)):
        return Suggestion(mount=_mount(path))
    folder, is_database = path.parent, _is_database(path)
    if not _too_wide(folder):
        why = "its journal is made beside it" if is_database else "it is made there"
        return Suggestion(mount=_mount(folder), because=f"for {path.name}: {why}")
    told = f"{path} needs its folder writable, and {folder} holds too much for a server to see"
    return Suggestion(mount=None, because=f"{told}: move it to a folder of its own, and mount that")


def _mount(path: Path) -> MountSetting:
    is_program = path.is_file() and os.access(path, os.X_OK)  # which is run, and not meant to be changed
    return MountSetting(path=path, mode="rw" if os.access(path, os.W_OK) and not is_program else "ro")


def _is_database(path: Path) -> bool:
    if path.suffix.lower() in DATABASES:
        return True
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE_MAGIC)) == _SQLITE_MAGIC
    except OSError:
        return False


def _too_wide(folder: Path) -> bool:
    """Whether a folder is a home, holds one, or stands directly below the root."""
    return len(folder.resolve().parts) < 3 or is_crowded(folder)


def _is_known_inside(path: Path) -> bool:
    resolved = path.resolve()
    if any(_covers(system, resolved) for system in _SYSTEM):
        return True
    return any(part in {"node_modules", "site-packages"} for part in resolved.parts) or _in_venv(resolved)


def _in_venv(path: Path) -> bool:
    return any((parent / "pyvenv.cfg").exists() for parent in (path, *path.parents))


def _covers(folder: Path, path: Path) -> bool:
    return path == folder or folder in path.parents
