"""Sandboxes of this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import platformdirs
from anyio.abc import TaskGroup

from headstart.backends.contract import Backend, Prepared, RunningSandbox, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.clock import SystemClock
from headstart.core.transaction import LineageId
from headstart.errors import ConfigError
from headstart.ids import IdSource, RandomIds, SandboxId
from headstart.runtime.identities import identity_of
from headstart.runtime.lineage import SandboxLineage
from headstart.runtime.remembered import Remembered
from headstart.runtime.state_files import unusable
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.options import HOST, SandboxOptions
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.templates import HeldTemplate, TemplateBuilder, TemplateOrder, TemplateRecord, TemplateStore

__all__ = ["Ready", "Sandboxes"]


_Sources = tuple[tuple[int, int] | None, ...]


async def _drop(_: bytes) -> None:
    """Have no use for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What sandboxes are started from.

    Attributes:
        environment: What every command finds there.
        shell: What runs lines.
    """

    prepared: Prepared
    environment: Mapping[str, str]
    shell: str = "bash"


class Sandboxes:
    """Sandboxes of this process, as many as wanted; opened with `Sandboxes.open`.

    What they have in common is prepared once: the first sandbox takes some 100 ms, each other one
    a few.
    """

    def __init__(self, backend: Backend, templates: TemplateStore, ids: IdSource, tasks: TaskGroup) -> None:
        self._backend = backend
        self._templates = templates
        self._ids = ids
        self._tasks = tasks
        self._preparing = anyio.Lock()
        self._prepared: list[tuple[Prepared, _Sources]] = []
        self._held: dict[str, tuple[tuple[int, int] | None, HeldTemplate]] = {}
        self._holding = ExitStack()

    @classmethod
    @asynccontextmanager
    async def open(cls, *, backend: str = "local", state_dir: str | Path | None = None) -> AsyncGenerator[Sandboxes]:
        """Be able to create sandboxes; when the block is left, all have ended and nothing of them is left.

        Args:
            backend: `"local"`, or `"process"`: no isolation at all, for machines that cannot isolate.
            state_dir: Where Headstart's state is: its templates, and what sandboxes need while they live.

        Raises:
            ConfigError: There is no such backend, or the state cannot be kept there.
            BackendUnavailable: The backend cannot run on this machine; the message says why.
        """
        folder = Path(state_dir) if state_dir else platformdirs.user_state_path("headstart")
        if backend not in _BACKENDS:
            known = " or ".join(repr(name) for name in _BACKENDS)
            raise ConfigError(f"there is no backend {backend!r}", where="backend", hint=f"say {known}")
        await anyio.to_thread.run_sync(_make_private, folder)
        templates = TemplateStore(folder / "templates")
        async with (
            _BACKENDS[backend](folder) as running,
            cls.on(running, templates=templates, ids=RandomIds()) as sandboxes,
        ):
            yield sandboxes

    @classmethod
    @asynccontextmanager
    async def on(cls, backend: Backend, *, templates: TemplateStore, ids: IdSource) -> AsyncGenerator[Sandboxes]:
        """Be able to create sandboxes of a backend that runs; when the block is left, it has none of ours."""
        async with open_tasks() as tasks, AsyncExitStack() as stack:
            sandboxes = cls(backend, templates, ids, tasks)
            stack.push_async_callback(sandboxes.let_go)
            yield sandboxes

    @asynccontextmanager
    async def create(self, options: SandboxOptions | None = None) -> AsyncGenerator[Sandbox]:
        """Create a sandbox; when the block is left, nothing of it is.

        Raises:
            ConfigError: An option cannot be used, or there is no such template.
            BackendError: It could not be started.
        """
        ready = await self.prepare(options or SandboxOptions())
        name = SandboxId(self._ids.new("box"))
        box = self.have(await self._backend.start(ready.prepared, identity_of(name)), ready, name=LineageId(name))
        try:
            yield box
        finally:
            await box.kill()

    async def prepare(self, options: SandboxOptions, *, owner: SandboxId | None = None) -> Ready:
        """Make ready what a sandbox with these options is started from.

        Args:
            options: How it is to be.
            owner: A sandbox that outlives this process: it has the same template again, whatever becomes of that, until
                `let_go_of_template`.

        Raises:
            ConfigError: An option cannot be used, or there is no such template.
            BackendError: It cannot be made ready.
        """
        held = None if options.template == HOST else await self._hold(options.template, owner)
        if held is None:
            prepared = await self._prepare(options.launch())
            return Ready(prepared=prepared, environment=options.environment())
        return Ready(
            prepared=await self._prepare(options.launch(root=held.root, base=held.base)),
            environment=options.environment(held.record.environment),
            shell=held.record.shell,
        )

    def have(
        self,
        running: RunningSandbox,
        ready: Ready,
        *,
        name: LineageId,
        remembered: Remembered | None = None,
        boot: str = "",
    ) -> Sandbox:
        """Return a sandbox that was started from what is ready, as its user has it; `kill` ends it.

        It carries `identity_of` its name, or of whom it is remembered to, with this `boot`.
        """
        lineage = SandboxLineage(
            running,
            name=name,
            identify=partial(identity_of, boot=boot),
            ids=self._ids,
            clock=SystemClock(),
            tasks=self._tasks,
            remembered=remembered,
        )
        return Sandbox(lineage, ready.environment, shell=ready.shell)

    async def build_template(
        self,
        order: TemplateOrder,
        *,
        tell: Callable[[str], None] = lambda _: None,
        on_output: Callable[[bytes], Awaitable[None]] = _drop,
    ) -> TemplateRecord:
        """Build a template; sandboxes that are created from then on by its name begin with it. If cancelled, nothing has changed.

        Args:
            order: What is wanted.
            tell: Is told what is done next, in a line.
            on_output: Takes what set-up and readiness commands say, as it comes.

        Raises:
            ConfigError: It cannot be built as it was ordered.
            BuildFailed: A command in it failed.
            BackendError: A sandbox failed.
        """
        builder = TemplateBuilder(
            self._backend, self._templates, ids=self._ids, clock=SystemClock(), tell=tell, on_output=on_output
        )
        return await builder.build(order)

    async def let_go_of_template(self, owner: SandboxId) -> None:
        """Note that a sandbox which outlived its process has ended. One that had no template is fine."""
        await anyio.to_thread.run_sync(self._templates.let_go, owner)

    async def let_go_of_all_templates_but(self, owners: Collection[str]) -> None:
        """Note which sandboxes that outlived their process there are."""
        await anyio.to_thread.run_sync(self._templates.let_go_of_all_but, owners)

    async def _hold(self, name: str, owner: SandboxId | None) -> HeldTemplate:
        """Return a template; its files stay where they are until all sandboxes of this process have ended."""
        if owner is not None:
            return await anyio.to_thread.run_sync(_kept_for, self._templates, name, owner)
        async with self._preparing:
            version = self._templates.version(name)
            known, held = self._held.get(name, (None, None))
            if held is None or known is None or known != version:
                held = await anyio.to_thread.run_sync(self._holding.enter_context, self._templates.held(name))
                self._held[name] = version, held
            return held

    async def _prepare(self, template: Template) -> Prepared:
        async with self._preparing:
            sources = await anyio.to_thread.run_sync(_identities, template) if template.mounts else ()
            for prepared, was in self._prepared:
                if prepared.template == template and was == sources:
                    return prepared
            prepared = await self._backend.prepare(template)
            self._prepared.append((prepared, sources))
            return prepared

    async def let_go(self) -> None:
        """Let go of what was prepared; `open` does it."""
        with anyio.CancelScope(shield=True):
            for prepared, _ in self._prepared:
                await prepared.aclose()
            self._holding.close()


def _kept_for(templates: TemplateStore, name: str, owner: SandboxId) -> HeldTemplate:
    with templates.held(name, owner=owner) as held:
        return held


def _identities(template: Template) -> _Sources:
    """Return which files it mounts: what is prepared has those, not others that have got their names since."""
    return tuple(_identity(mount.source) for mount in template.mounts)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None  # preparing tells what is wrong with it
    return facts.st_dev, facts.st_ino


def _make_private(state: Path) -> None:
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(state, error) from error


_BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "local": open_local_backend,
    "process": open_process_backend,
}
