"""The backend without isolation."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
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
from headstart.backends.forked import ForkedSandbox, Nest, open_nest
from headstart.backends.process.guest import confine
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.channel import Channel
from headstart.backends.spawner.client import SpawnerClient, open_spawner
from headstart.backends.spawner.guest.processes import descendants, is_below
from headstart.backends.spawner.guest.runs import remove_tree
from headstart.backends.spawner.prepared import ColdPrepared
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.backends.storeless import NoStores
from headstart.errors import BackendError
from headstart.ids import SandboxId

__all__ = ["ProcessBackend", "open_process_backend"]

_KIND = "headstart.backends.process.guest.kind"
_BACKGROUND_NICENESS = 10


class ProcessSandbox(SpawnedSandbox):
    """A session of processes under an init of ours."""

    def __init__(
        self,
        identity: Identity,
        channel: Channel,
        entry: Command,
        *,
        client: SpawnerClient,
        raise_priority: Callable[[], None],
    ) -> None:
        super().__init__(identity.sandbox, channel, entry)
        self._client = client
        self._do_raise_priority = raise_priority

    async def raise_priority(self) -> None:
        """Undo `background`, where that is possible at all (see `_niceness_to_give`)."""
        await anyio.to_thread.run_sync(self._do_raise_priority)

    async def usage(self) -> Usage:
        return await anyio.to_thread.run_sync(tree_usage, self.pid)

    async def _remove(self) -> None:
        await self._client.close(self.id, self._channel)


class ProcessBackend:
    """Starts sandboxes that are isolated from nothing; made by `open_process_backend`."""

    def __init__(self, client: SpawnerClient, *, background_niceness: int) -> None:
        """`background_niceness` is what sandboxes are given that nobody waits for."""
        self._client = client
        self._background_niceness = background_niceness
        self._run = Path(client.facts["run"])
        self._zygotes = itertools.count(1)

    @property
    def name(self) -> str:
        return "process"

    @property
    def stores(self) -> NoStores:
        """See `FileStores`; there are none."""
        return NoStores("files of sandboxes that are not isolated go with them", cure='use the backend "local"')

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation="none",
            zygotes=True,
            pausing=True,
            descriptors=True,
            network=frozenset({Network.HOST}),
            limits=False,
            weaker=(
                "a server can read and change whatever the service's user can: use the local backend",
                "memory is limited per process and roughly, CPU and process counts are not: use the local backend",
            ),
        )

    async def prepare(self, template: Template) -> Prepared:
        """See `Backend.prepare`. If cancelled, nothing is left of it."""
        if template.root is not None or template.base is not None:
            raise BackendError(
                f"{template.name} has files of its own, which this backend cannot show", hint='use the backend "local"'
            )
        cold = ColdPrepared(template)
        if template.preload is None:
            return cold
        identity = Identity(sandbox=SandboxId(f"zygote-{next(self._zygotes)}"))
        sandbox = await self._start_cold(cold, identity, background=False)
        return await open_nest(template, sandbox, self._client, confine=Path(confine.__file__))

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> SpawnedSandbox:
        """See `Backend.start`. If cancelled, nothing is left of the sandbox."""
        match prepared:
            case ColdPrepared():
                return await self._start_cold(prepared, identity, background=background)
            case Nest():
                return await self._fork(prepared, identity, background=background)
            case _:
                raise BackendError(f"{prepared.template.name} was prepared by another backend")

    async def _start_cold(self, cold: ColdPrepared, identity: Identity, *, background: bool) -> ProcessSandbox:
        folders = _Folders(self._run / identity.sandbox)
        entry = folders.entry(cold.template.command, identity)
        plan = folders.plan(cold.template, self._niceness(background=background))
        channel = (await self._client.start(identity.sandbox, "", plan)).channel
        return ProcessSandbox(
            identity,
            channel,
            entry,
            client=self._client,
            raise_priority=lambda: self._give_back_priority(channel.pid),
        )

    async def _fork(self, nest: Nest, identity: Identity, *, background: bool) -> ForkedSandbox:
        folders = _Folders(self._run / identity.sandbox)
        entry = folders.entry(nest.template.command, identity)
        plan = folders.plan(nest.template, self._niceness(background=background))
        fork = await nest.fork(entry, plan=plan)
        return ForkedSandbox(
            identity.sandbox,
            fork,
            entry,
            nest=nest,
            raise_priority=lambda: self._give_back_priority(fork.channel.pid),
            clean_up=folders.remove,
        )

    def _niceness(self, *, background: bool) -> int:
        return self._background_niceness if background else 0

    def _give_back_priority(self, root: int) -> None:
        if self._background_niceness == 0 or not is_below(root, self._client.pid):
            return  # none was given; or it has ended, and its number may be a stranger's
        services_own = os.getpriority(os.PRIO_PROCESS, 0)
        for pid in (root, *descendants(root)):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, pid, services_own)

    async def leftovers(self) -> Leftovers:
        """Count the spawner's descendants and the sandboxes' folders."""
        if self._client.is_gone:
            return Leftovers(directories=int(self._run.exists()))
        counted = await self._client.count()
        folders = [entry for entry in self._run.iterdir() if entry.is_dir()]
        return Leftovers(processes=counted["processes"], directories=len(folders))


class _Folders:
    """One sandbox's private folders."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._home, self._scratch = root / "home", root / "tmp"

    def entry(self, command: Command, identity: Identity) -> Command:
        private = {"HOME": str(self._home), "TMPDIR": str(self._scratch)}
        env = {**command.env, **identity.env, **private}
        return Command(argv=command.argv, env=env, cwd=command.cwd or str(self._home))

    def plan(self, template: Template, niceness: int) -> dict[str, Any]:
        return {
            "directories": [str(self._root), str(self._home), str(self._scratch)],
            "rlimits": _rlimits(template.limits),
            "niceness": niceness,
        }

    def remove(self) -> None:
        remove_tree(str(self._root))


@asynccontextmanager
async def open_process_backend(state_dir: Path) -> AsyncGenerator[ProcessBackend]:
    """Run the process backend, with private folders below `state_dir`.

    On leaving, every sandbox has ended and its folders are gone.
    """
    async with open_spawner(_KIND, {"base": str(state_dir / "process")}) as client:
        yield ProcessBackend(client, background_niceness=_niceness_to_give())


def _rlimits(limits: Limits) -> dict[str, int]:
    chosen = {"CORE": 0}
    if limits.memory_bytes is not None:
        chosen["DATA"] = limits.memory_bytes
    if limits.scratch_bytes is not None:
        chosen["FSIZE"] = limits.scratch_bytes
    return chosen


def _niceness_to_give() -> int:
    """Return how nice background sandboxes are: not at all where that could not be taken back.

    Who may do that cannot be told from the user: root in a container often may not. So it is
    tried, on a thread that ends with whatever niceness it has got: Linux counts by thread.
    """
    with ThreadPoolExecutor(max_workers=1) as trial:
        return _BACKGROUND_NICENESS if trial.submit(_can_take_niceness_back).result() else 0


def _can_take_niceness_back() -> bool:
    thread, before = threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, thread, before + 1)
    try:
        os.setpriority(os.PRIO_PROCESS, thread, before)
    except PermissionError:
        return False
    return True
