"""The backend without isolation."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio

from headstart.backends.contract import (
    Capabilities,
    Command,
    Identity,
    Leftovers,
    Limits,
    Network,
    Prepared,
    Template,
    Usage,
)
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.client import SpawnerClient, open_spawner
from headstart.backends.spawner.guest.processes import descendants
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.core.events import PrepareForm

__all__ = ["ProcessBackend", "open_process_backend"]

_KIND = "headstart.backends.process.guest.kind"
_BACKGROUND_NICENESS = 10
_NO_USAGE = Usage(memory_bytes=0, cpu_s=0.0, processes=0)


class ColdPrepared:
    """A template that starts by exec; nothing is held for it."""

    def __init__(self, template: Template) -> None:
        self._template = template

    @property
    def template(self) -> Template:
        return self._template

    @property
    def form(self) -> PrepareForm:
        return PrepareForm.COLD

    @property
    def preload_cpu_s(self) -> float:
        return 0.0

    async def usage(self) -> Usage:
        return _NO_USAGE

    async def aclose(self) -> None:
        """Nothing is held."""


class ProcessSandbox(SpawnedSandbox):
    """A session of processes under an init of ours."""

    def __init__(
        self, identity: Identity, channel: Channel, entry: Command, *, client: SpawnerClient, pid: int
    ) -> None:
        super().__init__(identity.sandbox, channel, entry, _own_environment(entry))
        self._client = client
        self._pid = pid

    async def raise_priority(self) -> None:
        """Undo `background`, where that was possible at all (as root)."""
        if os.geteuid() == 0:
            await anyio.to_thread.run_sync(_set_niceness, self._pid, 0)

    async def usage(self) -> Usage:
        return await anyio.to_thread.run_sync(tree_usage, self._pid)

    async def _remove(self) -> None:
        await self._client.close(self.id, self._channel)


class ProcessBackend:
    """Starts sandboxes that are isolated from nothing; made by `open_process_backend`."""

    def __init__(self, client: SpawnerClient) -> None:
        self._client = client
        self._run = Path(client.facts["run"])
        self._live: set[int] = set()

    @property
    def name(self) -> str:
        return "process"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation="none",
            network=frozenset({Network.HOST}),
            limits=False,
            weaker=(
                "a server can read and change whatever the service's user can: use the local backend",
                "memory is limited per process and roughly, CPU and process counts are not: use the local backend",
            ),
        )

    async def prepare(self, template: Template) -> Prepared:
        return ColdPrepared(template)

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> ProcessSandbox:
        """See `Backend.start`. If cancelled, nothing is left of the sandbox."""
        folder = self._run / identity.sandbox
        home, scratch = folder / "home", folder / "tmp"
        entry = _entry(prepared.template.command, identity, home=home, scratch=scratch)
        order: dict[str, Any] = {
            "directories": [str(folder), str(home), str(scratch)],
            "limits": _rlimits(prepared.template.limits),
            "niceness": _BACKGROUND_NICENESS if background and os.geteuid() == 0 else 0,
        }
        started = await self._client.start(identity.sandbox, "", order)
        return ProcessSandbox(identity, started.channel, entry, client=self._client, pid=started.pid)

    async def leftovers(self) -> Leftovers:
        """Count the spawner's descendants and the sandboxes' folders."""
        folders = [entry for entry in self._run.iterdir() if entry.is_dir()] if self._run.exists() else []
        return Leftovers(processes=len(descendants(self._client.pid)), directories=len(folders))


@asynccontextmanager
async def open_process_backend(state_dir: Path) -> AsyncGenerator[ProcessBackend]:
    """Run the process backend, with private folders below `state_dir`.

    On leaving, every sandbox has ended and its folders are gone.
    """
    async with open_spawner(_KIND, {"base": str(state_dir / "process")}) as client:
        yield ProcessBackend(client)


def _entry(command: Command, identity: Identity, *, home: Path, scratch: Path) -> Command:
    private = {"HOME": str(home), "TMPDIR": str(scratch)}
    return Command(argv=command.argv, env={**command.env, **identity.env, **private}, cwd=command.cwd or str(home))


def _own_environment(entry: Command) -> Mapping[str, str]:
    return {name: entry.env[name] for name in ("HOME", "TMPDIR", "PATH") if name in entry.env}


def _rlimits(limits: Limits) -> dict[str, int]:
    chosen = {"CORE": 0}
    if limits.memory_bytes is not None:
        chosen["DATA"] = limits.memory_bytes
    if limits.scratch_bytes is not None:
        chosen["FSIZE"] = limits.scratch_bytes
    return chosen


def _set_niceness(root: int, niceness: int) -> None:
    for pid in (root, *descendants(root)):
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, pid, niceness)
