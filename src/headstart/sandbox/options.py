"""What a sandbox is made from, as its user says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from headstart.backends.contract import Command, Limits, Mount, MountMode, Network, Template
from headstart.errors import ConfigError

__all__ = ["HOST", "SandboxOptions", "check_text", "check_words", "variables"]

HOST = "host"
"""The template that is always there: the host's system folders, and nothing else."""

_Number = TypeVar("_Number", int, float)

_MB = 1_000_000
_TOO_MANY = 1_000_000_000
_LEAST_MEMORY = 16 * _MB
_ENV = MappingProxyType({"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """How a sandbox is to be.

    Attributes:
        template: What it is started from: `"host"`, the host's system folders and an empty home, or the name of
            one that was built (`headstart template build`).
        mounts: Host paths to show at the same path inside, and how: `"ro"`, `"rw"` (writes reach the
            host) or `"overlay"` (writable; what is written goes with the sandbox).
        network: `"none"`, or `"host"`: what the host reaches, except cloud metadata.
        memory_mb / cpu_cores / pids: The most it may use; None is as much as the machine has.
        disk_mb: The most it may write outside of `rw` mounts. What is written is kept in memory and
            counts there as well, so it is never more than three quarters of that.
        env: Added to the environment of every command.
    """

    template: str = HOST
    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    network: str = "none"
    memory_mb: float | None = 2_000
    cpu_cores: float | None = None
    pids: int | None = 512
    disk_mb: float | None = 1_000
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def complete(self) -> SandboxOptions:
        """Return the same options, which mean the same in every process: with full paths.

        Raises:
            ConfigError: An option cannot be used; the message says which and why.
        """
        mounts = {str(mount.source): mount.mode.value for mount in self.launch().mounts}
        return replace(self, mounts=mounts, env=variables(self.env))

    def launch(self, *, root: Path | None = None, base: Path | None = None) -> Template:
        """Return what the backend starts it from, given the files of its template.

        Raises:
            ConfigError: An option cannot be used; the message says which and why.
        """
        memory, disk = _bytes("memory_mb", self.memory_mb), _bytes("disk_mb", self.disk_mb)
        if memory is not None and memory < _LEAST_MEMORY:
            hint = f"say {_LEAST_MEMORY // _MB} or more: its first process and a shell need some"
            raise ConfigError(f"{self.memory_mb:g} MB are too little", where="memory_mb", hint=hint)
        return Template(
            name="sandbox" if self.template == HOST else self.template,
            command=Command(argv=("true",), env=_ENV),
            mounts=_mounts(self.mounts),
            network=_network(self.network),
            limits=Limits(
                memory_bytes=memory,
                cpu_cores=_positive("cpu_cores", self.cpu_cores, float),
                pids=_positive("pids", self.pids, int),
                scratch_bytes=disk if memory is None else min(disk or memory, memory * 3 // 4),
            ),
            root=root,
            base=base,
        )

    def environment(self, login: Mapping[str, str] = _ENV) -> dict[str, str]:
        """Return what every command finds in its environment, besides HOME and TMPDIR: more than a login shell has."""
        return {**login, **variables(self.env)}


def _mounts(mounts: Mapping[str, str]) -> tuple[Mount, ...]:
    if not isinstance(mounts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] users write it
        raise ConfigError(f"{mounts!r} is no mapping", where="mounts", hint='say {"/path": "ro"}')
    return tuple(_mount(path, mode) for path, mode in mounts.items())


def _mount(path: str, mode: str) -> Mount:
    hint = "say one of " + ", ".join(repr(each.value) for each in MountMode)
    if not path:
        raise ConfigError("a path is empty", where="mounts", hint='say "." for the folder that you are in')
    try:
        source = Path(path).expanduser().absolute()
    except RuntimeError:
        raise ConfigError("there is no such user", where="mounts", key=path, hint="give a full path") from None
    try:
        mount = Mount(source=source, target=source, mode=MountMode(mode))
    except ValueError:
        raise ConfigError(f"{mode!r} is no way to mount", where="mounts", key=path, hint=hint) from None
    if mount.mode is MountMode.OVERLAY and source.is_file():
        raise ConfigError("only a folder can be an overlay", where="mounts", key=path, hint="mount the folder it is in")
    return mount


def _network(name: str) -> Network:
    try:
        return Network(name)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Network)
        raise ConfigError(f"there is no network {name!r}", where="network", hint=f"say {known}") from None


def _bytes(name: str, megabytes: float | None) -> int | None:
    checked = _positive(name, megabytes, float)
    return None if checked is None else int(checked * _MB)


def _positive(name: str, value: float | None, kind: type[_Number]) -> _Number | None:
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)  # pyright: ignore[reportUnnecessaryIsInstance] users write it
    if not is_number or not 0 < value < _TOO_MANY or kind(value) != value:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{value!r} is not possible", where=name, hint=f"say {what} above 0, or None for no limit")
    return kind(value)


def check_words(argv: Sequence[str], cwd: str | None) -> None:
    """Refuse what can be no command.

    Raises:
        ConfigError: There is no program, or a word is no text.
    """
    if not argv:
        raise ConfigError(
            "there is no program", where="command", hint="give a line for bash, or a program and arguments"
        )
    for word in (*argv, cwd or ""):
        if not isinstance(word, str) or "\0" in word:  # pyright: ignore[reportUnnecessaryIsInstance] users write it
            raise ConfigError(f"{word!r} is no text", where="command", hint="give text, without NUL characters")


def check_text(code: str, *, where: str, hint: str) -> None:
    """Refuse code that is none.

    Raises:
        ConfigError: It is no text.
    """
    if not isinstance(code, str):  # pyright: ignore[reportUnnecessaryIsInstance] users write it
        raise ConfigError(f"{type(code).__name__} is no text", where=where, hint=hint)


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables as they were given.

    Raises:
        ConfigError: One cannot be a variable.
    """
    for name, value in given.items():
        text = isinstance(name, str) and isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance] users write it
        if not text or not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"{name!r}: {value!r} is no variable", where="env", hint="give names and values as text")
    return dict(given)
