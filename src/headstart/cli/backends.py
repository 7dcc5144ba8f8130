"""Choosing the backend: the local one, or, if the operator named it, the one without isolation."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from headstart.backends.contract import Backend
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.config.model import Settings
from headstart.errors import BackendUnavailable

__all__ = ["open_backend"]


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncGenerator[Backend]:
    """Open the backend that the settings name.

    Raises:
        BackendUnavailable: The local backend cannot run here, and no other was named.
    """
    if settings.service.backend == "process":
        async with open_process_backend(settings.state_dir) as process:
            yield process
        return
    async with AsyncExitStack() as stack:
        try:
            local = await stack.enter_async_context(
                open_local_backend(settings.state_dir, own_ports=(settings.service.port,))
            )
        except BackendUnavailable as exc:
            hint = 'headstart doctor says what is missing; service.backend = "process" runs servers without isolation'
            raise BackendUnavailable(f"sandboxes cannot be isolated here: {exc}", hint=exc.hint or hint) from exc
        yield local
