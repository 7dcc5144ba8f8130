"""Building a template: its root, what its set-up commands write, its login environment, and that it is ready.

All of it is made beside what is there, tried, and then put in place at once. Whatever ends a build before
that leaves an earlier template of its name as it was.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, Command, ExitStatus, Identity, RunningSandbox, Template
from headstart.backends.output import take_output
from headstart.clock import Clock
from headstart.errors import BuildFailed
from headstart.ids import IdSource, SandboxId
from headstart.runtime.identities import identity_of
from headstart.sandbox.options import HOST, SandboxOptions
from headstart.sandbox.templates.archive import ArchiveLimits
from headstart.sandbox.templates.login import find_shell, login_environment
from headstart.sandbox.templates.record import Layer, TemplateRecord, check_name, stamp_of
from headstart.sandbox.templates.sources import open_root
from headstart.sandbox.templates.store import TemplateStore

__all__ = ["TemplateBuilder", "TemplateOrder"]

_MOST_BASE_BYTES = 64 << 30
"""What was written has been bounded by the sandbox's own limit, so this one is nobody's."""

_KEPT_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateOrder:
    """A template that is wanted.

    Attributes:
        name: By which it is found.
        source: `host`, or the path of a folder or of an archive that has a root file system in it.
        setup: Lines for its shell, run once, in order. What they write into the home, /tmp and /var/tmp is
            what every sandbox begins with.
        ready: A line for its shell that has to succeed, in a sandbox like those that will be.
        options: How the sandboxes are to be that it is built in. Of these, only `env` is the template's, too.
        timeout_s: How long each of these lines may take.
    """

    name: str
    source: str = HOST
    setup: tuple[str, ...] = ()
    ready: str | None = None
    options: SandboxOptions = field(default_factory=SandboxOptions)
    timeout_s: float | None = None


class TemplateBuilder:
    """Builds templates into a store.

    Args:
        tell: Is told what is done next, in a line.
        on_output: Takes what set-up and readiness commands say, as it comes.
    """

    def __init__(
        self,
        backend: Backend,
        store: TemplateStore,
        *,
        ids: IdSource,
        clock: Clock,
        tell: Callable[[str], None],
        on_output: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._backend = backend
        self._store = store
        self._ids = ids
        self._clock = clock
        self._tell = tell
        self._on_output = on_output

    async def build(self, order: TemplateOrder) -> TemplateRecord:
        """Build a template, and return it when it is there. If cancelled, nothing has changed.

        Raises:
            ConfigError: It cannot be built as it was ordered.
            BuildFailed: A command in it failed.
            BackendError: A sandbox failed.
        """
        check_name(order.name)
        try:
            return await self._build(order)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._store.collect)

    async def _build(self, order: TemplateOrder) -> TemplateRecord:
        self._tell(f"root: {order.source}")
        async with AsyncExitStack() as stack:
            root, folder = await stack.enter_async_context(open_root(order.source, self._store, ArchiveLimits()))
            bare = replace(order.options.launch(root=folder), name=order.name)
            async with self._sandbox(bare) as box:
                shell = await find_shell(box, order.options.environment())
                login = await login_environment(box, shell, order.options.environment())
            layer = None
            if order.setup:
                base = await anyio.to_thread.run_sync(stack.enter_context, self._store.new_layer())
                await self._set_up(order, bare, _Surroundings(shell, order.options.environment(login)), base)
                layer = await anyio.to_thread.run_sync(_layer_in, base)
                bare = replace(bare, base=base)
                async with self._sandbox(bare) as box:
                    login = await login_environment(box, shell, order.options.environment())
            if order.ready is not None:
                self._tell(f"ready: {order.ready}")
                around = _Surroundings(shell, order.options.environment(login))
                async with self._sandbox(bare) as box:
                    await self._run(box, order.ready, around, order, what="readiness command")
            record = TemplateRecord(
                name=order.name,
                root=root,
                setup=order.setup,
                ready=order.ready,
                mounts=dict(order.options.mounts),
                network=order.options.network,
                env=dict(order.options.env),
                login_env={name: value for name, value in login.items() if name not in order.options.env},
                shell=shell,
                layer=layer,
                built_s=self._clock.wall_s(),
            )
            await anyio.to_thread.run_sync(self._store.put, record)
            return record

    async def _set_up(self, order: TemplateOrder, plan: Template, around: _Surroundings, base: Path) -> None:
        """Run the set-up commands, and copy what they have written to the folder `base`."""
        async with self._sandbox(plan) as box:
            for number, line in enumerate(order.setup, start=1):
                self._tell(f"set-up {number} of {len(order.setup)}: {line}")
                await self._run(box, line, around, order, what=f"set-up command {number} of {len(order.setup)}")
            kept = await box.checkpoint(files_only=True)
            if kept.left_out:
                self._tell(f"still running, and no part of the template: {', '.join(kept.left_out)}")
            fork = await box.fork(kept, self._identity())
            try:
                await fork.save_base(base, most_bytes=_MOST_BASE_BYTES)
            finally:
                await fork.aclose()

    async def _run(
        self, box: RunningSandbox, line: str, around: _Surroundings, order: TemplateOrder, *, what: str
    ) -> None:
        """Run a line to its end.

        Raises:
            BuildFailed: It failed.
        """
        tail = bytearray()

        async def take(chunk: bytes) -> None:
            tail.extend(chunk)
            del tail[:-_KEPT_BYTES]
            await self._on_output(chunk)

        status: ExitStatus | None = None
        command = Command(argv=(around.shell, "-c", line), env=around.env)
        async with box.start(command) as streams:
            with anyio.move_on_after(order.timeout_s if order.timeout_s is not None else float("inf")):
                status = await take_output(streams, b"", stdout=take, stderr=take)
        ended, hint = _told(status, order.timeout_s)
        if ended is not None:
            raise BuildFailed(
                f"template {order.name}: its {what} {ended}: {line}", hint=hint, output=tail.decode(errors="replace")
            )

    @asynccontextmanager
    async def _sandbox(self, plan: Template) -> AsyncGenerator[RunningSandbox]:
        prepared = await self._backend.prepare(plan)
        try:
            box = await self._backend.start(prepared, self._identity())
            try:
                yield box
            finally:
                await box.aclose()
        finally:
            with anyio.CancelScope(shield=True):
                await prepared.aclose()

    def _identity(self) -> Identity:
        return identity_of(SandboxId(self._ids.new("build")))


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a line is run by, and with."""

    shell: Literal["bash", "sh"]
    env: Mapping[str, str]


def _told(status: ExitStatus | None, timeout_s: float | None) -> tuple[str | None, str | None]:
    """Return how a command failed, if it did, and what helps."""
    match status:
        case None:
            return f"had not ended after {timeout_s:g} s, and was killed", "give it more time: --timeout"
        case ExitStatus(out_of_memory=True):
            return "was killed, because it had used up the sandbox's memory", "give it more: --memory"
        case ExitStatus(code=0):
            return None, None
        case ExitStatus(code=None, signal=signal):
            return f"was killed by signal {signal}", _AS_IT_WAS
        case ExitStatus(code=code):
            return f"ended with status {code}", _AS_IT_WAS


_AS_IT_WAS = "what it said last tells why; an earlier template of that name is as it was"


def _layer_in(base: Path) -> Layer:
    """Return what is known of a layer that has been written to a folder."""
    size_bytes = files = 0
    for _, folders, names, descriptor in os.fwalk(base):
        files += len(folders) + len(names)
        size_bytes += sum(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size for name in names)
    return Layer(id=base.name, size_bytes=size_bytes, files=files, stamp=stamp_of(base))
