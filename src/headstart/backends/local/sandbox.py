"""A sandbox of the local backend: namespaces under an init of ours, its files in layers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from headstart.backends.contract import Capture, Checkpoint, Command, Identity, RunningSandbox, Template, Usage
from headstart.backends.local.cgroups import Groups
from headstart.backends.local.lineage import MOST_LAYERS, LineageLayers
from headstart.backends.local.tree import Tree
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.client import SpawnerClient, Started
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.errors import BackendError, NotCapturable
from headstart.ids import CheckpointId

__all__ = ["LayeredFiles", "LocalSandbox", "entry_command"]

_MOST_COPIED_BYTES = 512 << 20

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LayeredFiles:
    """What the files of a sandbox are made of.

    Attributes:
        layers: The lowest first; it writes into the last one.
    """

    tree: Tree
    lineage: LineageLayers
    layers: tuple[str, ...]

    def begun_with(self, layers: tuple[str, ...]) -> LayeredFiles:
        """Return the files of a fork that begins with these layers."""
        return LayeredFiles(tree=self.tree, lineage=self.lineage, layers=(*layers, self.lineage.new_layer()))


class LocalSandbox(SpawnedSandbox):
    """A set of namespaces under an init of ours.

    Args:
        fork: Starts a sandbox that begins with these layers of this one.
    """

    def __init__(
        self,
        identity: Identity,
        started: Started,
        *,
        client: SpawnerClient,
        groups: Groups,
        files: LayeredFiles,
        fork: Callable[[LocalSandbox, tuple[str, ...], Identity], Awaitable[LocalSandbox]],
    ) -> None:
        template = files.tree.template
        entry = entry_command(template, identity)
        super().__init__(identity.sandbox, started.channel, entry, polite=template.reaches_out)
        self._client = client
        self._groups = groups
        self._group = str(started.facts["group"])
        self._layered = files
        self._fork = fork
        files.tree.hold()
        files.lineage.members.append(self.drop)
        started.channel.ask_about_kills(self._count_kills)

    async def raise_priority(self) -> None:
        self._groups.raise_priority(self._group)

    async def usage(self) -> Usage:
        """What the control group is charged, else PSS."""
        memory, cpu = self._groups.memory_bytes(self._group), self._groups.cpu_s(self._group)
        count = self._groups.process_count(self._group)
        if memory is None or cpu is None or count is None:
            return await anyio.to_thread.run_sync(tree_usage, self.pid)
        return Usage(memory_bytes=memory, cpu_s=cpu, processes=max(0, count - 1))

    async def checkpoint(self, *, files_only: bool = False) -> Checkpoint:
        """See `RunningSandbox.checkpoint`."""
        return await self._on_its_own(lambda: self._checkpoint(files_only=files_only))

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        """See `RunningSandbox.fork`."""
        self._gate.check()
        return await self._fork(self, self._layers_of(at), identity)

    async def forget(self, checkpoint: Checkpoint) -> None:
        """See `RunningSandbox.forget`."""
        self.drop(self._layered.lineage.forget(checkpoint.id))

    @property
    def layered(self) -> LayeredFiles:
        """What its files are made of."""
        return self._layered

    def _layers_of(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        try:
            return self._layered.lineage.checkpoints[checkpoint.id]
        except KeyError:
            raise BackendError(
                f"{checkpoint.id} is no checkpoint of {self.id}", hint="it is another sandbox's, or was forgotten"
            ) from None

    async def _checkpoint(self, *, files_only: bool) -> Checkpoint:
        files = self._layered
        if len(files.layers) >= MOST_LAYERS:
            raise NotCapturable(f"{self.id} stands on {MOST_LAYERS} layers already", hint="go on in a new sandbox")
        new = files.lineage.new_layer()
        told = await self._seal({"layers": [*files.layers, new]}, despite_processes=files_only)
        match told:
            case {"outcome": "sealed"}:
                sealed = files.layers
                files.layers = (*sealed, new)
                files.lineage.hold((new,))
            case {"outcome": "copied"}:
                sealed = (*files.layers[:-1], new)
            case {"outcome": "unchanged"}:
                sealed = files.layers[:-1]
            case {"outcome": "busy", "processes": running}:
                raise NotCapturable(
                    f"{self.id} runs {_listed(running)}, which no checkpoint holds",
                    hint="wait until it has ended, or ask for the files only",
                    held=running,
                )
            case {"outcome": "too-large", "held": held}:
                raise NotCapturable(
                    f"{self.id} has changed more than {_MOST_COPIED_BYTES >> 20} MB of files, and {_listed(held)}"
                    " may write to them meanwhile",
                    hint="wait until it has ended",
                    held=held,
                )
            case _:
                raise BackendError(f"{self.id}: the helper that made a checkpoint was killed", hint="try again")
        checkpoint = Checkpoint(
            id=CheckpointId(f"{self.id}.{new}"), capture=Capture(told["outcome"]), left_out=tuple(told["processes"])
        )
        files.lineage.keep(checkpoint.id, sealed)
        return checkpoint

    async def _seal(self, plan: Mapping[str, Any], *, despite_processes: bool) -> Mapping[str, Any]:
        told = await self._errand("seal", plan=plan, despite_processes=despite_processes, most_bytes=_MOST_COPIED_BYTES)
        return await self._errand("mend", plan=plan) if told["outcome"] == "broken" else told

    def drop(self, layers: Sequence[str]) -> None:
        """Have layers deleted that nobody uses, in a while."""

        async def drop() -> None:
            try:
                await self._errand("drop", layers=layers)
            except BackendError as error:
                _log.debug("%s: layers are left until it ends: %s", self.id, error)

        if layers and not self._channel.lost.is_set():
            self._channel.start_soon(drop)

    async def _errand(self, do: str, **details: Any) -> Mapping[str, Any]:
        return await self._client.errand(self.id, self._layered.tree.key, do, **details)

    def _group_folders(self) -> list[str]:
        return self._groups.folders(self._group)

    def _count_kills(self) -> int:
        return self._groups.kills_for_memory(self._group)

    async def _remove(self) -> None:
        files = self._layered
        files.lineage.members.remove(self.drop)  # who closes deletes nothing any more
        await self._client.close(self.id, self._channel)
        files.lineage.have_dropped(files.lineage.let_go(files.layers))
        await files.tree.let_go()


def entry_command(template: Template, identity: Identity) -> Command:
    """Return a template's command, complete: with the environment and folder that it has in one sandbox."""
    command = template.command
    own: Mapping[str, str] = {"HOME": template.private_home}
    return Command(
        argv=command.argv, env={**command.env, **identity.env, **own}, cwd=command.cwd or template.private_home
    )


def _listed(things: Sequence[str]) -> str:
    return ", ".join(things)
