"""What a sandbox is made from, as its user says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from headstart.backends.contract import Command, Limits, Mount, MountMode, Network, Template
from headstart.errors import ConfigError

__all__ = ["SandboxOptions"]

_Number = TypeVar("_Number", int, float)

_MB = 1_000_000
_ENV = MappingProxyType({"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """How a sandbox is to be.

    Attributes:
        mounts: Host paths to show at the same path inside, and how: `"ro"`, `"rw"` (writes reach the
            host) or `"overlay"` (writable; what is written goes with the sandbox).
        network: `"none"`, or `"host"`: what the host reaches, except cloud metadata.
        memory_mb / cpu_cores / pids / disk_mb: The most it may use; None is as much as the machine
            has. Of the disk, that is what is written outside of `rw` mounts.
        env: Added to the environment of every command.
    """

    mounts: Mapping[str, str] = field(default_factory=dict[str, str])
    network: str = "none"
    memory_mb: int | None = 2_000
    cpu_cores: float | None = None
    pids: int | None = 512
    disk_mb: int | None = 1_000
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    def template(self) -> Template:
        """Return what the backend starts it from.

        Raises:
            ConfigError: An option cannot be used; the message says which and why.
        """
        return Template(
            name="sandbox",
            command=Command(argv=("true",), env=_ENV),
            mounts=tuple(_mount(path, mode) for path, mode in self.mounts.items()),
            network=_network(self.network),
            limits=Limits(
                memory_bytes=_bytes("memory_mb", self.memory_mb),
                cpu_cores=_positive("cpu_cores", self.cpu_cores),
                pids=_positive("pids", self.pids),
                scratch_bytes=_bytes("disk_mb", self.disk_mb),
            ),
        )

    def environment(self) -> dict[str, str]:
        """Return what every command finds in its environment, besides HOME and TMPDIR."""
        return {**_ENV, **self.env}


def _mount(path: str, mode: str) -> Mount:
    source = Path(path).expanduser().absolute()
    try:
        return Mount(source=source, target=source, mode=MountMode(mode))
    except ValueError:
        known = ", ".join(repr(each.value) for each in MountMode)
        raise ConfigError(
            f"{mode!r} is no way to mount", where="mounts", key=path, hint=f"say one of {known}"
        ) from None


def _network(name: str) -> Network:
    try:
        return Network(name)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Network)
        raise ConfigError(f"there is no network {name!r}", where="network", hint=f"say {known}") from None


def _bytes(name: str, megabytes: int | None) -> int | None:
    checked = _positive(name, megabytes)
    return None if checked is None else checked * _MB


def _positive(name: str, value: _Number | None) -> _Number | None:
    if value is not None and value <= 0:
        raise ConfigError(f"{value} is not possible", where=name, hint="say more than 0, or None for no limit")
    return value
