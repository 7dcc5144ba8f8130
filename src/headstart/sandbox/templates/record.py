"""What is known of a template that was built: one JSON file each."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from headstart.errors import ConfigError
from headstart.sandbox.options import HOST

__all__ = [
    "ArchiveRoot",
    "FolderRoot",
    "HostRoot",
    "Layer",
    "Root",
    "TemplateRecord",
    "check_name",
    "stamp_of",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_STAMPED_LEVELS = 3


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HostRoot(_Part):
    """The host's system folders."""

    kind: Literal["host"] = "host"


class FolderRoot(_Part):
    """A folder of the host, as it is when a sandbox is started."""

    kind: Literal["folder"] = "folder"
    path: Path


class ArchiveRoot(_Part):
    """What was unpacked from an archive.

    Attributes:
        path: Where the archive was.
        digest: Its SHA-256, by which what was unpacked is found.
        left_out: How many of its members were devices, FIFOs and the like.
        stamp: See `stamp_of`.
    """

    kind: Literal["archive"] = "archive"
    path: Path
    digest: str = Field(pattern=r"[0-9a-f]{64}")
    size_bytes: int
    files: int
    left_out: int
    stamp: str


Root = Annotated[HostRoot | FolderRoot | ArchiveRoot, Field(discriminator="kind")]


class Layer(_Part):
    """What the set-up commands have written into the home, /tmp and /var/tmp."""

    id: str = Field(pattern=r"[0-9a-z]+(_[0-9a-z]+)?")
    size_bytes: int
    files: int
    stamp: str


class TemplateRecord(_Part):
    """A template that was built and was ready.

    Attributes:
        mounts: What was mounted, and how, while it was built.
        network: What could be reached while it was built.
        env: What was asked for; it goes over `login_env`.
        login_env: What a login shell has in its environment; the default one, if that could not be found out.
        shell: The shell that there is.
        built_s: When, seconds since 1970.
    """

    version: Literal[1] = 1
    name: str
    root: Root
    setup: tuple[str, ...] = ()
    ready: str | None = None
    mounts: dict[str, str] = {}
    network: str = "none"
    env: dict[str, str] = {}
    login_env: dict[str, str] = {}
    shell: Literal["bash", "sh"] = "bash"
    layer: Layer | None = None
    built_s: float

    @property
    def environment(self) -> dict[str, str]:
        """What commands find in their environment."""
        return {**self.login_env, **self.env}


def check_name(name: str) -> None:
    """Refuse what can be no template's name.

    Raises:
        ConfigError: It is none, or is `host`, which is always there.

    >>> check_name("python-3.12")
    """
    if name == HOST:
        raise ConfigError(f"{HOST!r} is always there and never built", where="template", hint="choose another name")
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a template",
            where="template",
            hint="a name has small letters, digits, '.', '_' and '-', begins with a letter or digit, at most 63",
        )


def stamp_of(folder: Path) -> str:
    """Return a text that tells what is in a folder, as far as names of its uppermost three levels do.

    Cheap enough to be looked at before each use; what was changed further down goes unnoticed.

    Raises:
        OSError: The folder is not there, or cannot be read.
    """
    digest = hashlib.sha256()
    waiting = [(str(folder), "", _STAMPED_LEVELS)]
    while waiting:
        here, name, levels = waiting.pop()
        try:
            with os.scandir(here) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False), entry.path) for entry in entries)
        except PermissionError:
            if not name:
                raise
            found = []  # who owns it has closed it, to himself as well
        told = [f"{entry}/" if is_folder else entry for entry, is_folder, _ in found]
        digest.update("\0".join([name, *told, "\n"]).encode(errors="surrogateescape"))
        if levels > 1:
            waiting += [(path, f"{name}/{entry}", levels - 1) for entry, is_folder, path in found if is_folder]
    return digest.hexdigest()[:16]
