"""Prepared templates, one per principal, launch spec and form; each is made once and kept."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from headstart.backends.contract import Backend, Preload, Prepared
from headstart.core.events import PrepareForm
from headstart.errors import BackendError
from headstart.ids import PrincipalId, ResourceId
from headstart.runtime.statistics import ZygoteStatus
from headstart.runtime.templates import LaunchSpec

__all__ = ["PreparationKey", "Preparations", "open_preparations"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PreparationKey:
    """Whose, of what, in which form."""

    principal: PrincipalId
    digest: str
    form: PrepareForm


class Preparations:
    """Owns what a backend has prepared."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._prepared: dict[PreparationKey, Prepared] = {}
        self._locks: dict[PreparationKey, anyio.Lock] = {}

    def ready(self, key: PreparationKey) -> Prepared | None:
        return self._prepared.get(key)

    def adopt(self, key: PreparationKey, prepared: Prepared) -> None:
        """Keep what somebody else prepared (and checked) under this key."""
        self._prepared[key] = prepared

    async def get(self, key: PreparationKey, spec: LaunchSpec, preload: Preload | None = None) -> Prepared:
        """Return the prepared template; two that ask at once wait for one preparation.

        Cancelling one that waits leaves the preparation to the others.

        Raises:
            BackendError: It cannot be prepared.
        """
        lock = self._locks.setdefault(key, anyio.Lock())
        async with lock:
            prepared = self._prepared.get(key)
            if prepared is None:
                template = replace(spec.template, preload=preload)
                prepared = self._prepared[key] = await self._backend.prepare(template)
            return prepared

    async def drop(self, key: PreparationKey) -> None:
        """Let go of one; sandboxes that were started from it live on."""
        prepared = self._prepared.pop(key, None)
        if prepared is not None:
            await prepared.aclose()

    async def zygotes(self) -> tuple[ZygoteStatus, ...]:
        """Measure the prepared forms that hold memory of their own."""
        found: list[ZygoteStatus] = []
        for key, prepared in list(self._prepared.items()):
            if prepared.form is PrepareForm.ZYGOTE:
                try:
                    usage = await prepared.usage()
                except BackendError as exc:
                    _log.debug("the zygote of %s cannot be measured: %s", prepared.template.name, exc)
                    continue
                found.append(
                    ZygoteStatus(
                        server=ResourceId(prepared.template.name),
                        principal=key.principal,
                        memory_bytes=usage.memory_bytes,
                        preload_cpu_s=prepared.preload_cpu_s,
                    )
                )
        return tuple(found)

    async def aclose(self) -> None:
        """Let go of all; completes under cancellation."""
        with anyio.CancelScope(shield=True):
            for key in list(self._prepared):
                try:
                    await self.drop(key)
                except BackendError:
                    _log.exception("a prepared template could not be closed")


@asynccontextmanager
async def open_preparations(backend: Backend) -> AsyncGenerator[Preparations]:
    """Own what is prepared while the context is open."""
    preparations = Preparations(backend)
    try:
        yield preparations
    finally:
        await preparations.aclose()
