"""The backend that isolates with what the kernel has."""

from __future__ import annotations

import base64
import itertools
import logging
import os
import platform
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from headstart.backends.contract import (
    Capabilities,
    Identity,
    Leftovers,
    Limits,
    Mount,
    Network,
    Prepared,
    Processes,
    Template,
)
from headstart.backends.forked import ForkedSandbox, Nest, open_nest
from headstart.backends.local import layout, metadata_block
from headstart.backends.local.cgroups import Groups
from headstart.backends.local.flattening import Flattening
from headstart.backends.local.fork_group import ForkGroup
from headstart.backends.local.guest import confine
from headstart.backends.local.guest.places import find_places
from headstart.backends.local.lineage import FIRST_LAYER, LineageLayers
from headstart.backends.local.sandbox import LayeredFiles, LocalSandbox, entry_command, take_back
from headstart.backends.local.seccomp import SeccompProfile, build_filter
from headstart.backends.local.shared_memory import SharedMemory
from headstart.backends.local.stores import LocalStores
from headstart.backends.local.tree import Tree
from headstart.backends.spawner.client import SpawnerClient, open_spawner
from headstart.backends.spawner.guest import launch, syscalls
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.backends.zygote import GUEST_DIR
from headstart.errors import BackendError, BackendUnavailable
from headstart.ids import SandboxId

__all__ = ["LocalBackend", "open_local_backend"]

_KIND = "headstart.backends.local.guest.kind"
_BYTES_PER_INODE = 16_384
_STAGING = "staging"
_FORK_PREFIX = "fork"
_MOST_NOTES = 32

_log = logging.getLogger(__name__)


_GUEST_MOUNTS = tuple(
    Mount(source=folder, target=folder)
    for folder in (Path(launch.__file__).parent, Path(confine.__file__).parent, GUEST_DIR)
)
"""What a preloader and the confinement of its forks are loaded from."""


class LocalBackend:
    """Starts isolated sandboxes; made by `open_local_backend`."""

    def __init__(self, client: SpawnerClient, groups: Groups, *, state_dir: Path, metadata_blocked: str | None) -> None:
        """`metadata_blocked` is None if cloud metadata cannot be reached, else why it can."""
        self._state_dir = state_dir.resolve()
        self._client = client
        self._groups = groups
        self._metadata_blocked = metadata_blocked
        self._privileged = os.geteuid() == 0
        self._run = Path(client.facts["run"])
        self._keys = itertools.count(1)
        self._stores = LocalStores(
            client,
            self._state_dir / "stores",
            can_make_images=bool(client.facts["images"]),
            why_not_plain=client.facts["why_not_plain"],
            start=self._start_with,
            inodes_for=_inodes_for,
        )
        self._notes: dict[str, None] = {}
        self._plans: WeakKeyDictionary[Nest, dict[str, Any]] = WeakKeyDictionary()
        self._filters = {
            profile: base64.b64encode(build_filter(profile, platform.machine())).decode() for profile in SeccompProfile
        }

    @property
    def name(self) -> str:
        return "local"

    @property
    def stores(self) -> LocalStores:
        """See `FileStores`."""
        return self._stores

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            isolation="namespaces, minimal root, seccomp" + (", id-mapped mounts" if self._privileged else ""),
            zygotes=True,
            private_folders=True,
            layers=True,
            processes=Processes.KERNELS if self._client.facts["traces"] else Processes.NONE,
            roots=True,
            pausing=True,
            descriptors=True,
            identities=True,
            durable=self._stores.are_possible,
            network=frozenset({Network.NONE, Network.HOST}),
            limits={"memory", "pids", "cpu"} <= self._groups.controllers,
            weaker=tuple(self._weaknesses()),
        )

    def _weaknesses(self) -> list[str]:
        weaker: list[str] = []
        if not self._privileged:
            weaker.append("sandboxes run as the service's own user, who owns what they may write: start as root")
        missing = sorted({"memory", "pids", "cpu"} - self._groups.controllers)
        if missing:
            weaker.append(
                f"no control group limits {', '.join(missing)}; per-process limits stand in:"
                " start as root, or have systemd delegate a group (systemd-run --user --scope -p Delegate=yes)"
            )
        if not self._client.facts["traces"]:
            weaker.append("no Python kernel can be part of a checkpoint: nobody may trace processes here (ptrace)")
        if not syscalls.can_scope():
            weaker.append(
                "network host reaches abstract Unix sockets of the host (Linux 6.12 with Landlock would stop it):"
                " use network none"
            )
        if self._metadata_blocked is not None:
            weaker.append(f"network host reaches cloud metadata ({self._metadata_blocked}): use network none")
        if self._stores.weakness is not None:
            weaker.append(self._stores.weakness)
        return weaker + list(self._notes)

    async def prepare(self, template: Template) -> Prepared:
        """See `Backend.prepare`. If cancelled, nothing is left of it."""
        if template.preload is None:
            return await self._build_tree(template, self._plan(template))
        if template.root is not None or template.base is not None:
            raise BackendError(f"{template.name}: what is preloaded has the host's files", hint="start it cold")
        self._refuse_to_uncover(template)
        plan = self._plan(template)
        for_zygote = {**plan, "seccomp": self._filters[SeccompProfile.ZYGOTE], "zygote": True}
        tree = await self._build_tree(template, for_zygote, extra=_GUEST_MOUNTS)
        try:
            identity = Identity(sandbox=SandboxId(f"zygote-{tree.key}"))
            sandbox = await self._start_cold(tree, identity, background=False)
        finally:
            await tree.aclose()
        plan |= {**tree.parts, "hostname": identity.hostname}
        nest = await open_nest(template, sandbox, self._client, confine=Path(confine.__file__), ahead=plan)
        self._plans[nest] = plan
        return nest

    async def _build_tree(self, template: Template, plan: dict[str, Any], extra: tuple[Mount, ...] = ()) -> Tree:
        key = f"t{next(self._keys)}"
        told = await self._client.prepare(
            key, {"tree": layout.tree_plan(template, secret=self._state_dir, extra=extra), "sandbox": plan}
        )
        self._note(told["notes"])
        return Tree(template, key, self._client, told["parts"])

    def _refuse_to_uncover(self, template: Template) -> None:
        """A fork lays its overlay on the plain folder, in which nothing is covered."""
        for hidden in layout.hidden_targets(template, self._state_dir):
            for target in layout.overlay_targets(template):
                if Path(hidden).is_relative_to(target):
                    raise BackendError(
                        f"{target} holds the service's own state and is an overlay, which forks cannot have",
                        hint="mount the folders in it that are needed",
                    )

    def _note(self, notes: Iterable[str]) -> None:
        """Remember what turned out to be weaker about a file tree; say each once."""
        for note in notes:
            if note not in self._notes and len(self._notes) < _MOST_NOTES:
                self._notes[note] = None
                _log.warning("%s", note)

    def _plan(self, template: Template) -> dict[str, Any]:
        scratch = template.limits.scratch_bytes
        return {
            "network": template.network.value,
            "scratch_bytes": scratch,
            "scratch_inodes": None if scratch is None else _inodes_for(scratch),
            "seccomp": self._filters[SeccompProfile.SANDBOX],
            "rlimits": self._rlimits(template.limits),
            "layers": [FIRST_LAYER],
            "store": None,
            "goes_on": False,
            "own": {},
            "zygote": False,
        }

    def _rlimits(self, limits: Limits) -> dict[str, int]:
        chosen = {"CORE": 0}
        if "memory" not in self._groups.controllers and limits.memory_bytes is not None:
            chosen["DATA"] = limits.memory_bytes
        if "pids" not in self._groups.controllers and limits.pids is not None and not self._privileged:
            chosen["NPROC"] = limits.pids + 1
        return chosen

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> SpawnedSandbox:
        """See `Backend.start`. If cancelled, nothing is left of the sandbox."""
        match prepared:
            case Tree():
                return await self._start_cold(prepared, identity, background=background)
            case Nest():
                return await self._fork(prepared, identity, background=background)
            case _:
                raise BackendError(f"{prepared.template.name} was prepared by another backend")

    async def _start_cold(self, tree: Tree, identity: Identity, *, background: bool) -> LocalSandbox:
        lineage = LineageLayers()
        Flattening(lineage, start_soon=self._client.start_soon)
        lineage.begin(identity.sandbox)
        return await self._start_with(LayeredFiles(tree=tree, lineage=lineage), identity, background=background)

    async def _start_with(
        self,
        files: LayeredFiles,
        identity: Identity,
        *,
        background: bool = False,
        origin: LocalSandbox | None = None,
        goes_on: bool = False,
    ) -> LocalSandbox:
        """Start a sandbox on the layers that its lineage has noted, of which it `goes_on` with the last one or has it made."""
        tree, lineage = files.tree, files.lineage
        layers = lineage.stands[identity.sandbox]
        order = {
            "hostname": identity.hostname,
            "own": {} if tree.template.preload is not None else layout.own_files(identity),
            "group_settings": self._groups.settings(tree.template.limits, background=background),
            "layers": list(layers),
            "goes_on": goes_on,
            "store": lineage.store,
        }
        lineage.mount(identity.sandbox, layers)
        try:
            started = await self._client.start(
                identity.sandbox, tree.key, order, origin=None if origin is None else origin.id
            )
        except BaseException:
            lineage.have_dropped(lineage.unmount(identity.sandbox))
            raise
        sandbox = LocalSandbox(
            identity,
            started,
            client=self._client,
            groups=self._groups,
            files=files,
            memory=SharedMemory(self._groups, tree.template.limits) if origin is None else origin.memory,
            fork=self._fork_layers,
        )
        if lineage.is_closed:
            await sandbox.stop()
            raise BackendError(f"the store {lineage.store} was closed while {identity.sandbox} was starting")
        return sandbox

    async def _fork_layers(self, parent: LocalSandbox, layers: tuple[str, ...], identity: Identity) -> LocalSandbox:
        lineage = parent.layered.lineage
        if identity.sandbox in lineage.stands:
            raise BackendError(f"{identity.sandbox} is there already", hint="give the fork an id of its own")
        lineage.begin(identity.sandbox, layers)
        try:
            await lineage.noted()
            return await self._start_with(parent.layered, identity, origin=parent)
        except BaseException:
            await take_back(lineage, identity.sandbox)
            raise

    async def _fork(self, nest: Nest, identity: Identity, *, background: bool) -> ForkedSandbox:
        entry = entry_command(nest.template, identity)
        plan = {**self._plans[nest], "hostname": identity.hostname}
        fork = await nest.fork(entry, plan=plan)
        group = ForkGroup(
            self._groups, f"{_FORK_PREFIX}{next(self._keys)}", nest.template.limits, background=background
        )
        fork.channel.ask_about_kills(group.count_kills)
        self._client.run_soon(partial(group.take_in, fork.channel.pid, below=self._client.pid))
        return ForkedSandbox(
            identity.sandbox,
            fork,
            entry,
            nest=nest,
            raise_priority=group.raise_priority,
            clean_up=group.remove,
        )

    async def leftovers(self) -> Leftovers:
        """Count what the spawner has started (parked processes apart), and what is on disk."""
        if self._client.is_gone:
            return Leftovers(cgroups=self._groups.count(""), directories=int(self._run.exists()))
        counted = await self._client.count()
        folders = [entry for entry in self._run.iterdir() if entry.is_dir() and entry.name != _STAGING]
        groups = counted["groups"] + self._groups.count(_FORK_PREFIX)
        return Leftovers(processes=counted["processes"], cgroups=groups, directories=len(folders))


def _inodes_for(scratch_bytes: int) -> int:
    return max(1024, scratch_bytes // _BYTES_PER_INODE)


@asynccontextmanager
async def open_local_backend(state_dir: Path, *, own_ports: Collection[int] = ()) -> AsyncGenerator[LocalBackend]:
    """Run the local backend; what it keeps on disk is below `state_dir`, which shows in no sandbox.

    With network `host`, sandboxes cannot connect to `own_ports` of this machine's loopback.

    On leaving, every sandbox has ended and nothing of it is left.

    Raises:
        BackendUnavailable: This machine or this user cannot make namespaces; the message says which.
    """
    places = find_places()
    settings: dict[str, Any] = {
        "base": str(state_dir / "local"),
        "cgroups": [place.as_told_to_spawner() for place in places],
        "privileged": os.geteuid() == 0,
    }
    async with open_spawner(_KIND, settings) as client:
        groups = Groups(places, client.facts["cgroups"])
        groups.weigh(os.cpu_count() or 1)
        unified = [Path(f) for p, f in zip(places, client.facts["cgroups"], strict=True) if p.version == 2]
        backend = LocalBackend(
            client, groups, state_dir=state_dir, metadata_blocked=_block_metadata(unified, own_ports)
        )
        try:
            yield backend
        finally:
            await backend.stores.aclose()


def _block_metadata(unified: list[Path], own_ports: Collection[int]) -> str | None:
    if not unified:
        return "no cgroup v2 that we may write to"
    try:
        metadata_block.attach(unified[0], own_ports=own_ports)
    except BackendUnavailable as error:
        return str(error)
    return None
