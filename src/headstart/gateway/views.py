"""Gathers catalogues into views, each content once.

The first list of an unknown server waits for its learning (the runtime bounds it) and
tells a client that asked for progress how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import anyio

from headstart.errors import CatalogueUnavailable, ServerUnavailable, UnauthorizedUpstream
from headstart.gateway.view import Missing, View, merge, merged_key, single
from headstart.ids import ResourceId
from headstart.runtime.contract import Catalogue, LearnProgress, ServerEntry, SessionScope, ToolRuntime

__all__ = ["Views"]


class Views:
    """Makes views and keeps one of each content while anybody looks at it."""

    def __init__(self, runtime: ToolRuntime) -> None:
        self._runtime = runtime
        self._kept: WeakValueDictionary[str, View] = WeakValueDictionary()

    async def of(
        self, server: ResourceId | None, scope: SessionScope, *, progress: LearnProgress | None = None
    ) -> View:
        """Return the current view of one server, or of all.

        Raises:
            CatalogueUnavailable: The one server could not be learned (in the merged view
                it is left out instead).
            UnauthorizedUpstream: The one server wants credentials.
        """
        if server is None:
            return await self._merged(self._runtime.servers(scope.principal), scope, progress)
        return self._keep_single(await self._runtime.catalogue(server, scope, progress=progress))

    async def of_learned(self, scope: SessionScope) -> View:
        """Return the merged view of what is known already; learns nothing."""
        entries = self._runtime.servers(scope.principal)
        missing = [
            Missing(server=e.name, reason=e.problem or "its tools are not known yet") for e in entries if not e.learned
        ]
        return await self._merged([e for e in entries if e.learned], scope, None, also_missing=missing)

    def _keep_single(self, catalogue: Catalogue) -> View:
        view = single(catalogue)
        return self._kept.setdefault(view.key, view)

    async def _merged(
        self,
        entries: Sequence[ServerEntry],
        scope: SessionScope,
        progress: LearnProgress | None,
        *,
        also_missing: Sequence[Missing] = (),
    ) -> View:
        found: dict[ResourceId, Catalogue | Missing] = {}
        unknown = sum(not entry.learned for entry in entries)

        async def gather(entry: ServerEntry) -> None:
            found[entry.name] = await self._catalogue_or_reason(entry.name, scope)
            if progress is not None and not entry.learned:
                done = sum(not e.learned and e.name in found for e in entries)
                await progress(done=done, total=unknown, message=f"learned {entry.name}")

        async with anyio.create_task_group() as tasks:
            for entry in entries:
                tasks.start_soon(gather, entry)
        in_order = [found[entry.name] for entry in entries]
        catalogues = [each for each in in_order if isinstance(each, Catalogue)]
        missing = [*(each for each in in_order if isinstance(each, Missing)), *also_missing]
        kept = self._kept.get(merged_key(catalogues, missing))
        if kept is None:
            kept = merge(catalogues, missing)
            self._kept[kept.key] = kept
        return kept

    async def _catalogue_or_reason(self, server: ResourceId, scope: SessionScope) -> Catalogue | Missing:
        try:
            return await self._runtime.catalogue(server, scope)
        except UnauthorizedUpstream:
            return Missing(server=server, reason=f"it wants credentials; connect to /mcp/{server} to sign in")
        except (CatalogueUnavailable, ServerUnavailable) as exc:
            return Missing(server=server, reason=str(exc))
