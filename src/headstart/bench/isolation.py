"""Which backend a bench runs on: the local one, else, said loudly, the one without isolation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from headstart.backends.contract import Backend
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.bench.scratch import scratch_dir
from headstart.errors import BackendUnavailable

__all__ = ["best_backend_name", "open_best_backend"]


@asynccontextmanager
async def open_best_backend(tell: Callable[[str], None]) -> AsyncGenerator[Backend]:
    """Open the best backend of this machine in the benches' folder, and tell if it does not isolate."""
    async with AsyncExitStack() as stack:
        folder = scratch_dir()
        try:
            backend: Backend = await stack.enter_async_context(open_local_backend(folder))
        except BackendUnavailable as missing:
            tell(f"NO ISOLATION: servers run in the process backend, because {missing}")
            backend = await stack.enter_async_context(open_process_backend(folder))
        yield backend


async def best_backend_name(tell: Callable[[str], None]) -> str:
    """Return what `service.backend` has to say for the best backend of this machine."""
    async with open_best_backend(tell) as backend:
        return backend.name
