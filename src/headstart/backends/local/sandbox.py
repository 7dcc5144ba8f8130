"""A sandbox of the local backend: namespaces under an init of ours, its files in layers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from headstart.backends.contract import (
    Capture,
    Checkpoint,
    Command,
    ForkableProcess,
    Identity,
    Limits,
    Process,
    ProcessImage,
    RunningSandbox,
    Template,
    Usage,
)
from headstart.backends.local.cgroups import Groups
from headstart.backends.local.layout import base_folders
from headstart.backends.local.lineage import MOST_LAYERS, LineageLayers
from headstart.backends.local.programs import Programs
from headstart.backends.local.shared_memory import SharedMemory
from headstart.backends.local.tree import Tree
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.client import ERRAND_S, SpawnerClient, Started
from headstart.backends.spawner.sandbox import SpawnedSandbox, inner_pids
from headstart.errors import BackendError, NotCapturable, TransactionRefused
from headstart.ids import CheckpointId, SandboxId

__all__ = ["LayeredFiles", "LocalSandbox", "entry_command", "take_back"]

_MOST_COPIED_BYTES = 512 << 20
_MOST_IMAGES = 4000
"""Processes that are kept count for the kernel; there is no other limit to their number."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayeredFiles:
    """What the files of a sandbox are made of: its template's tree, and layers of its lineage's on that."""

    tree: Tree
    lineage: LineageLayers


class LocalSandbox(SpawnedSandbox):
    """A set of namespaces under an init of ours.

    Args:
        memory: Its lineage's.
        fork: Starts a sandbox that begins with these layers of this one's lineage.
    """

    def __init__(  # noqa: PLR0913 (what it stands on)
        self,
        identity: Identity,
        started: Started,
        *,
        client: SpawnerClient,
        groups: Groups,
        files: LayeredFiles,
        memory: SharedMemory,
        fork: Callable[[LocalSandbox, tuple[str, ...], Identity], Awaitable[LocalSandbox]],
    ) -> None:
        template = files.tree.template
        entry = entry_command(template, identity)
        super().__init__(identity.sandbox, started.channel, entry, polite=template.reaches_out)
        self._client = client
        self._groups = groups
        self._group = str(started.facts["group"])
        self.memory = memory
        memory.join(self._group)
        self._layered = files
        self._fork = fork
        files.tree.hold()
        files.lineage.members[identity.sandbox] = self
        files.lineage.begun.add(identity.sandbox)
        self._keeps_files = False
        self._programs = Programs(
            identity.sandbox,
            client=client,
            errand=self._errand,
            gate=self._gate,
            channel=started.channel,
            settings=groups.settings_beside(self._group, _with_images(template.limits)),
            lineage=memory.lineage,
        )
        started.channel.ask_about_kills(self._count_kills)

    async def raise_priority(self) -> None:
        self._groups.raise_priority(self._group)

    async def usage(self) -> Usage:
        """What the control group is charged, else PSS; see `SharedMemory.left_bytes`."""
        await self._gather()
        memory, cpu = self._groups.memory_bytes(self._group), self._groups.cpu_s(self._group)
        count = self._groups.process_count(self._group)
        if memory is None or cpu is None or count is None:
            counted = await anyio.to_thread.run_sync(partial(tree_usage, self.pid, beside=self._programs.pids))
            return replace(counted, memory_bytes=counted.memory_bytes + await self._weight_of_images())
        return Usage(memory_bytes=memory + self.memory.left_bytes(self._group), cpu_s=cpu, processes=max(0, count - 1))

    async def _weight_of_images(self) -> int:
        """Return what images of its lineage hold, with the oldest of its sandboxes."""
        if not self.memory.is_kept or not self.memory.is_oldest(self._group):
            return 0
        told = await self._client.errand(None, "", "weigh", lineage=self.memory.lineage)
        return int(told.get("bytes", 0))

    async def _gather(self) -> None:
        """See to it that the programs that go on here are in its control groups."""
        programs = self._programs.pids
        if not self._groups.have(self._group, programs):
            await anyio.to_thread.run_sync(self._groups.gather, self._group, self.pid, programs)

    async def _pause(self) -> None:
        await self._gather()
        await super()._pause()

    async def cpu_s(self) -> float:
        """See `RunningSandbox.cpu_s`."""
        counted_s = self._groups.cpu_s(self._group)
        return await super().cpu_s() if counted_s is None else counted_s

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """See `RunningSandbox.start_forkable`."""
        if not self._client.facts["traces"]:
            return super().start_forkable(command, descriptors=descriptors)
        return self._programs.start(self._complete(command), descriptors)

    def revive(
        self, image: ProcessImage, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """See `RunningSandbox.revive`."""
        return self._programs.revive(image, descriptors)

    def _apart(self) -> Sequence[int]:
        return self._programs.pids

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        """See `RunningSandbox.checkpoint`."""
        return await self._on_its_own(lambda: self._checkpoint(files_only=files_only, beside=beside))

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        """See `RunningSandbox.fork`."""
        self._gate.check()
        with self.memory.expecting_one():
            return await self._fork(self, self._layers_of(at), identity)

    async def forget(self, checkpoint: Checkpoint) -> None:
        """See `RunningSandbox.forget`."""
        lineage = self._layered.lineage
        unused = lineage.forget(checkpoint.id)
        await lineage.noted()
        lineage.have_dropped(unused)

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        """See `RunningSandbox.save_base`."""
        folders = base_folders(self._layered.tree.template)
        told = await self._on_its_own(
            lambda: self._errand("save", to=str(folder), folders=folders, most_bytes=most_bytes)
        )
        match told:
            case {"outcome": "saved"}:
                return
            case {"outcome": "busy", "processes": running}:
                raise NotCapturable(f"{self.id} runs {_listed(running)}", hint="wait until it has ended", held=running)
            case {"outcome": "too-large"}:
                raise BackendError(
                    f"what {self.id} has written takes more than {most_bytes >> 20} MB",
                    hint="remove what is not needed",
                )
            case _:
                raise BackendError(f"{self.id}: the helper that copied its files was killed", hint="try again")

    @property
    def layered(self) -> LayeredFiles:
        """What its files are made of."""
        return self._layered

    def _layers_of(self, checkpoint: Checkpoint) -> tuple[str, ...]:
        try:
            return self._layered.lineage.checkpoints[checkpoint.id].layers
        except KeyError:
            raise BackendError(
                f"{checkpoint.id} is no checkpoint of {self.id}", hint="it is another sandbox's, or was forgotten"
            ) from None

    async def _checkpoint(self, *, files_only: bool, beside: Sequence[ForkableProcess | Process]) -> Checkpoint:
        lineage = self._layered.lineage
        self.memory.bound()
        self.memory.is_kept = self.memory.is_kept or bool(beside)
        await self._see_to_room_for_a_layer()
        await lineage.noted()  # which layer might come on top, for whoever comes after a crash
        new, copy = lineage.nexts[self.id], lineage.new_layer()
        layers = (*lineage.stands[self.id], new)
        lineage.mount(self.id, layers)
        try:
            told = await self._seal(layers, copy, despite_processes=files_only, beside=beside)
        except BackendError:
            lineage.stand(self.id, lineage.stands[self.id], lineage.new_layer())  # something of the other may be there
            raise
        unused = lineage.mounted(self.id, was_swapped=told["outcome"] == "sealed")
        try:
            checkpoint = self._kept(told, new, copy)
            await lineage.noted()
        finally:
            lineage.have_dropped(unused)
        self._flatten(told)
        return checkpoint

    async def _see_to_room_for_a_layer(self) -> None:
        lineage = self._layered.lineage
        if len(lineage.stands[self.id]) >= MOST_LAYERS and lineage.flattening is not None:
            lineage.consider_flattening()
            await lineage.flattening.wait()
        if len(lineage.stands[self.id]) >= MOST_LAYERS:
            raise TransactionRefused(
                f"{self.id} stands on {MOST_LAYERS} layers already, which checkpoints or other sandboxes need",
                hint="drop checkpoints that are not needed, or go on in a new sandbox",
            )

    def _flatten(self, told: Mapping[str, Any]) -> None:
        flattening = self._layered.lineage.flattening
        if flattening is not None:
            if "room" in told:
                flattening.note_room(told["room"])
            flattening.consider()

    def _kept(self, told: Mapping[str, Any], new: str, copy: str) -> Checkpoint:
        """Note what came of sealing."""
        lineage = self._layered.lineage
        layers = lineage.stands[self.id]
        lineage.stand(self.id, layers, lineage.new_layer())
        match told:
            case {"outcome": "sealed"}:
                sealed = layers
                lineage.stand(self.id, (*layers, new), lineage.nexts[self.id])
            case {"outcome": "copied"}:
                sealed = (*layers[:-1], copy)
            case {"outcome": "unchanged"}:
                sealed = layers[:-1]
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
        lineage.keep(checkpoint, sealed)
        return checkpoint

    async def _seal(
        self, layers: Sequence[str], copy: str, *, despite_processes: bool, beside: Sequence[ForkableProcess | Process]
    ) -> Mapping[str, Any]:
        what: dict[str, Any] = {
            "plan": {"layers": layers, "store": self._layered.lineage.store},
            "copy": copy,
            "apart": self._programs.pids,
            "beside": self._programs.pids_of(beside),
            "resting": inner_pids(beside),
        }
        told = await self._errand("seal", **what, despite_processes=despite_processes, most_bytes=_MOST_COPIED_BYTES)
        return await self._errand("mend", **what) if told["outcome"] == "broken" else told

    def drop(self, layers: Sequence[str]) -> None:
        """Have layers deleted that nobody uses, in a while."""

        async def drop() -> None:
            try:
                await self._errand("drop", layers=layers)
            except BackendError as error:
                _log.debug("%s: layers are left until it ends: %s", self.id, error)

        if layers and not self._channel.lost.is_set():
            self._channel.start_soon(drop)

    async def merge(self, row: Sequence[str], **details: Any) -> Mapping[str, Any]:
        """Have layers merged; see `guest.merging.merge`.

        Raises:
            BackendError: It was not possible.
        """
        return await self._errand("merge", layers=row, **details)

    async def _errand(
        self, do: str, *, descriptors: Sequence[int] = (), within_s: float | None = ERRAND_S, **details: Any
    ) -> Mapping[str, Any]:
        tree = self._layered.tree.key
        return await self._client.errand(self.id, tree, do, descriptors=descriptors, within_s=within_s, **details)

    def _group_folders(self) -> list[str]:
        return self._groups.folders(self._group)

    def _count_kills(self) -> int:
        return self._groups.kills_for_memory(self._group)

    @property
    def is_lost(self) -> bool:
        """Whether it has ended by itself."""
        return self._channel.lost.is_set()

    async def stop(self, why: str | None = None) -> None:
        """End it, and keep its files where they outlive it; `why` is told to whoever uses it then."""
        self._keeps_files = True
        if why is not None:
            self._channel.give_up(why)
        await self.aclose()

    async def _remove(self) -> None:
        files = self._layered
        del files.lineage.members[self.id]  # who closes deletes nothing any more
        with self.memory.leaving(self._group):
            await self._client.close(self.id, self._channel)
        files.lineage.have_dropped(files.lineage.unmount(self.id))
        if not self._keeps_files:
            await take_back(files.lineage, self.id)
        await files.tree.let_go()


async def take_back(lineage: LineageLayers, sandbox: SandboxId) -> None:
    """Note that a sandbox is no more, and have its layers deleted. Completes under cancellation."""
    unused = lineage.leave(sandbox)
    with anyio.CancelScope(shield=True):
        try:
            await lineage.noted()
        except BackendError as error:
            _log.warning("%s: its files are left until its store is opened again: %s", sandbox, error)
        else:
            lineage.have_dropped(unused)


def entry_command(template: Template, identity: Identity) -> Command:
    """Return a template's command, complete: with the environment and folder that it has in one sandbox."""
    command = template.command
    own: Mapping[str, str] = {"HOME": template.private_home}
    return Command(
        argv=command.argv, env={**command.env, **identity.env, **own}, cwd=command.cwd or template.private_home
    )


def _with_images(limits: Limits) -> Limits:
    return replace(limits, pids=None if limits.pids is None else limits.pids + _MOST_IMAGES)


def _listed(things: Sequence[str]) -> str:
    return ", ".join(things)
