"""A server's launch spec as a backend's `Template`, and the digest that names it.

The digest is the key of everything that is learned about a server: its lists and its
prepared form. It covers all that can change what the server says: program, arguments,
environment, folder, mounts, limits, and stamps of what is installed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.backends.contract import Command, Limits, MountMode, Network, Template
from headstart.config.model import ServerSettings
from headstart.errors import ServerUnavailable
from headstart.runtime.launch import HostFacts, find_launch

__all__ = ["LaunchSpec", "launch_spec", "remote_digest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A stdio server, ready for a backend.

    Attributes:
        digest: Of everything that decides what the server says.
        package: Whose starts must not overlap (`npx`, `uvx`), or None.
        session_env: The part of the environment that belongs to one session.
        filled: The launcher's cache that learning fills, if there is one.
    """

    template: Template
    digest: str
    package: str | None
    session_env: dict[str, str]
    filled: Path | None = None

    @property
    def filling(self) -> Template:
        """The template for learning: what its launcher downloads stays for later starts."""
        mounts = [
            replace(mount, mode=MountMode.READ_WRITE) if mount.source == self.filled else mount
            for mount in self.template.mounts
        ]
        return replace(self.template, mounts=tuple(mounts))


def launch_spec(server: ServerSettings, host: HostFacts) -> LaunchSpec:
    """Build the template of a stdio server; reads the file system.

    Raises:
        ServerUnavailable: Its command or a declared mount does not exist, or cannot be read.
    """
    _check_cwd(server)
    try:
        launch = find_launch(server, host)
        _check_mounts(server)
    except OSError as exc:
        raise ServerUnavailable(
            f"{server.name}: what it is started from cannot be read: {exc}",
            server=server.name,
            hint="let this user read its program, or install it again",
        ) from exc
    env = {"PATH": launch.path, "LANG": "C.UTF-8"} | launch.env
    env |= {name: value for name, value in server.env.items() if name not in server.session_env}
    template = Template(
        name=server.name,
        command=Command(
            argv=(launch.program, *server.args), env=env, cwd=None if launch.cwd is None else str(launch.cwd)
        ),
        mounts=launch.mounts,
        network=Network(server.network),
        limits=_limits(server),
    )
    return LaunchSpec(
        template=template,
        digest=_digest(template, server, launch.stamps),
        package=launch.package,
        filled=launch.filled,
        session_env={name: server.env[name] for name in server.session_env if name in server.env},
    )


def remote_digest(server: ServerSettings) -> str:
    """Return the digest of a remote server: where it is and what it is told."""
    return _hash([server.url, sorted(server.headers.items())])


def _check_cwd(server: ServerSettings) -> None:
    if server.cwd is not None and not server.cwd.is_dir():
        raise ServerUnavailable(
            f"{server.name}: its cwd {server.cwd} {'is no folder' if server.cwd.exists() else 'does not exist'}",
            server=server.name,
            hint=f"create it, or correct mcpServers.{server.name}.cwd",
        )


def _check_mounts(server: ServerSettings) -> None:
    for mount in server.mounts:
        if not mount.path.exists():
            told = f" (written as {mount.written!r}, which is relative to the file's folder)" if mount.written else ""
            raise ServerUnavailable(
                f"{server.name}: mount {mount.path}{told} does not exist",
                server=server.name,
                hint=f"create it, or correct {server.option('mounts')}",
            )


def _limits(server: ServerSettings) -> Limits:
    defaults = Limits()
    return Limits(
        memory_bytes=server.memory_mb * 1_000_000 if server.memory_mb is not None else defaults.memory_bytes,
        cpu_cores=server.cpu_cores,
        pids=server.pids if server.pids is not None else defaults.pids,
        scratch_bytes=defaults.scratch_bytes,
    )


def _digest(template: Template, server: ServerSettings, stamps: tuple[str, ...]) -> str:
    command, limits = template.command, template.limits
    return _hash(
        [
            command.argv,
            sorted(command.env.items()),
            sorted(server.env.items()),
            command.cwd,
            [(_text(m.source), _text(m.target), m.mode.value) for m in template.mounts],
            template.network.value,
            [limits.memory_bytes, limits.cpu_cores, limits.pids, limits.scratch_bytes],
            stamps,
        ]
    )


def _text(path: Path) -> str:
    return str(path)


def _hash(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
