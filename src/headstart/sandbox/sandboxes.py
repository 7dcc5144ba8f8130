"""Sandboxes of this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import platformdirs
from anyio.abc import TaskGroup

from headstart.backends.contract import Backend, Identity, Prepared, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.clock import SystemClock
from headstart.core.transaction import LineageId
from headstart.errors import ConfigError
from headstart.ids import IdSource, RandomIds, SandboxId
from headstart.runtime.lineage import SandboxLineage
from headstart.runtime.tasks import open_tasks
from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.sandbox import Sandbox

__all__ = ["Sandboxes"]


class Sandboxes:
    """Sandboxes of this process, as many as wanted; opened with `Sandboxes.open`.

    What they have in common is prepared once: the first sandbox takes some 100 ms, each other one
    a few.
    """

    def __init__(self, backend: Backend, ids: IdSource, tasks: TaskGroup) -> None:
        self._backend = backend
        self._ids = ids
        self._tasks = tasks
        self._preparing = anyio.Lock()
        self._prepared: list[Prepared] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, *, backend: str = "local", state_dir: str | Path | None = None) -> AsyncGenerator[Sandboxes]:
        """Be able to create sandboxes; when the block is left, all have ended and nothing of them is left.

        Args:
            backend: `"local"`, or `"process"`: no isolation at all, for machines that cannot isolate.
            state_dir: Where their folders are, while they live.

        Raises:
            ConfigError: There is no such backend.
            BackendUnavailable: The backend cannot run on this machine; the message says why.
        """
        folder = Path(state_dir) if state_dir else platformdirs.user_state_path("headstart") / "sandboxes"
        if backend not in _BACKENDS:
            known = " or ".join(repr(name) for name in _BACKENDS)
            raise ConfigError(f"there is no backend {backend!r}", where="backend", hint=f"say {known}")
        async with _BACKENDS[backend](folder) as running, cls.on(running, ids=RandomIds()) as sandboxes:
            yield sandboxes

    @classmethod
    @asynccontextmanager
    async def on(cls, backend: Backend, *, ids: IdSource) -> AsyncGenerator[Sandboxes]:
        """Be able to create sandboxes of a backend that runs; when the block is left, it has none of ours."""
        async with open_tasks() as tasks, AsyncExitStack() as stack:
            sandboxes = cls(backend, ids, tasks)
            stack.push_async_callback(sandboxes.let_go)
            yield sandboxes

    @asynccontextmanager
    async def create(self, options: SandboxOptions | None = None) -> AsyncGenerator[Sandbox]:
        """Create a sandbox; when the block is left, nothing of it is.

        Raises:
            ConfigError: An option cannot be used.
            BackendError: It could not be started.
        """
        chosen = options or SandboxOptions()
        prepared = await self._prepare(chosen.template())
        name = self._ids.new("box")
        running = await self._backend.start(prepared, _identity(SandboxId(name)))
        lineage = SandboxLineage(
            running, name=LineageId(name), identify=_identity, ids=self._ids, clock=SystemClock(), tasks=self._tasks
        )
        box = Sandbox(lineage, chosen.environment())
        try:
            yield box
        finally:
            await box.kill()

    async def _prepare(self, template: Template) -> Prepared:
        async with self._preparing:
            for prepared in self._prepared:
                if prepared.template == template:
                    return prepared
            prepared = await self._backend.prepare(template)
            self._prepared.append(prepared)
            return prepared

    async def let_go(self) -> None:
        """Let go of what was prepared; `open` does it."""
        with anyio.CancelScope(shield=True):
            for prepared in self._prepared:
                await prepared.aclose()


def _identity(sandbox: SandboxId) -> Identity:
    return Identity(sandbox=sandbox)


_BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "local": open_local_backend,
    "process": open_process_backend,
}
