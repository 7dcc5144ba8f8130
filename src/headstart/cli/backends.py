"""Choosing the backend: the local one, or, if the operator named it, the one without isolation."""

from __future__ import annotations

import resource
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from headstart.backends.contract import Backend
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.config.model import Settings
from headstart.errors import BackendUnavailable, ConfigError

__all__ = ["open_backend"]

_FEWEST_OPEN_FILES = 256
"""The service itself takes 30, a sandbox 6, a client 1."""


@asynccontextmanager
async def open_backend(settings: Settings) -> AsyncGenerator[Backend]:
    """Open the backend that the settings name.

    Raises:
        ConfigError: Too few files may be open at once.
        BackendUnavailable: The local backend cannot run here, and no other was named.
    """
    _check_open_files()
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


def _check_open_files() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < _FEWEST_OPEN_FILES:
        told = f"only {allowed} files may be open at once, and every sandbox takes several"
        raise ConfigError(told, where="ulimit -n", hint="ulimit -n 4096, or LimitNOFILE=4096 in a unit of systemd")
