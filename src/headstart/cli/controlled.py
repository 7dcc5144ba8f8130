"""What the control routes show of the running service, and what they can tell it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headstart.backends.contract import Backend, Network
from headstart.cli.plain import plain
from headstart.clock import Clock
from headstart.config.model import Settings
from headstart.ids import PrincipalId
from headstart.proxy.app import ModelProxy
from headstart.runtime.service import Service
from headstart.sandbox.hosted import SandboxHost

__all__ = ["Control"]


class Control:
    """Implements `api.control.Controlled` over the service's parts."""

    def __init__(  # noqa: PLR0913 (what it shows)
        self,
        *,
        settings: Settings,
        backend: Backend,
        service: Service,
        proxy: ModelProxy,
        host: SandboxHost,
        clock: Clock,
        stop: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._service = service
        self._proxy = proxy
        self._host = host
        self._clock = clock
        self._stop = stop

    async def status(self) -> dict[str, Any]:
        """See `Controlled.status`."""
        broker = self._service.broker.statistics(self._clock.monotonic_s())
        return {
            "pool": {"mode": self._settings.pool.mode.value, **plain(broker.pool)},
            "predictors": plain(broker.predictors.records),
            "waste": plain(broker.waste),
            "hosted": plain(await self._host.summary()),
            "runtime": plain(await self._service.statistics()),
            "proxy": plain(self._proxy.statistics()),
            "upstreams": [
                {"prefix": one.prefix, "base_url": one.shown_url, "way": one.way} for one in self._settings.upstreams
            ],
            "offline": [server.name for server in self._settings.servers if server.offline]
            if Network.NONE in self._backend.capabilities.network
            else [],
            "backend": {"name": self._backend.name, **plain(self._backend.capabilities)},
        }

    async def trace(self, session: str) -> dict[str, Any] | None:
        """See `Controlled.trace`."""
        found = await self._service.trace(session)
        return None if found is None else plain(found)

    async def forget(self, principal: PrincipalId | None) -> dict[str, Any]:
        """See `Controlled.forget`."""
        return plain(await self._service.forget(principal))

    def stop(self) -> None:
        """See `Controlled.stop`."""
        self._stop()
