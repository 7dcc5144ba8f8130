"""What every server offers: known, learned, found changed, told to the core and to clients.

Two lists can differ from what is known of a launch spec. A *fresh* sandbox that says
something new corrects the catalogue for everybody of its principal. A *running* sandbox
that changes its lists has changed them for the session that it serves, and for nobody else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from headstart.clock import Clock
from headstart.core.events import Event, PrepareForm
from headstart.errors import CatalogueUnavailable, ServerUnavailable
from headstart.ids import PrincipalId, ResourceId, SessionId
from headstart.runtime.contract import Catalogue, SessionScope
from headstart.runtime.forms import Forms
from headstart.runtime.handshake import Lists, as_catalogue, is_stateless
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Sessions
from headstart.runtime.store import Estimate, Known, Store

__all__ = ["Catalogues", "named"]

_LISTS = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "resource_templates": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}

_log = logging.getLogger(__name__)


class Catalogues:
    """The catalogues of all principals."""

    def __init__(
        self,
        *,
        servers: ConfiguredServers,
        store: Store,
        sessions: Sessions,
        forms: Forms,
        clock: Clock,
        report: Callable[[Event], None],
    ) -> None:
        self._servers = servers
        self._store = store
        self._sessions = sessions
        self._forms = forms
        self._clock = clock
        self._report = report
        self._introduced: set[PrincipalId] = set()

    def known(self, server: ResourceId, scope: SessionScope) -> Known | None:
        """Return what is known of a server without waiting, None if nothing is."""
        built_in = self._servers.built_in(server)
        if built_in is not None:
            return Known(catalogue=built_in.catalogue)
        try:
            known = self._store.known(scope.principal, self._servers.key(server, scope))
        except ServerUnavailable:
            return None  # its command is gone; whoever starts it is told so
        return None if known is None else replace(known, catalogue=named(known.catalogue, server))

    def stateless(self, server: ResourceId, scope: SessionScope) -> bool:
        """Tell whether a server spoke the stateless protocol when it was last met."""
        known = self.known(server, scope)
        return known is not None and is_stateless(known.catalogue.initialize)

    def of_session(self, server: ResourceId, scope: SessionScope) -> Catalogue | None:
        """Return a server's lists as this session sees them, None if they are not known."""
        session = self._sessions.get(scope.session)
        own = session.own_lists.get(server) if session is not None else None
        if own is not None:
            return own
        known = self.known(server, scope)
        return None if known is None else known.catalogue

    def key(self, server: ResourceId, scope: SessionScope) -> str:
        """Return the key of a server's catalogue.

        Raises:
            CatalogueUnavailable: Its command does not exist.
        """
        try:
            return self._servers.key(server, scope)
        except ServerUnavailable as exc:
            raise CatalogueUnavailable(str(exc), hint=exc.hint) from exc

    # ------------------------------------------------------------ the core is told

    def introduce(self, principal: PrincipalId) -> None:
        """Tell the core of all servers, once per principal."""
        if principal not in self._introduced:
            self._introduced.add(principal)
            for server in self._servers.names:
                known = self._known_of(principal, server)
                self._register(principal, server, known)
                if known is not None:
                    self._forms.consider(principal, server)

    def learned(self, principal: PrincipalId, server: ResourceId, key: str, known: Known) -> None:
        """Keep what was learned, for all servers with this one's launch spec."""
        before = self._store.known(principal, key)
        self._store.learn(principal, key, known)
        for each in self._servers.alike(server):
            self._register(principal, each, known)
            self._forms.consider(principal, each)
            if before is not None:
                self._tell_changes(principal, each, before.catalogue, known.catalogue)

    def fresh(self, principal: PrincipalId, server: ResourceId, lists: Lists) -> None:
        """Compare what a fresh sandbox says with what is known."""
        key = self._servers.spec(server).digest
        known = self._store.known(principal, key)
        catalogue = as_catalogue(server, key, lists)
        if known is None or known.catalogue.digest != catalogue.digest:
            estimate: Estimate | None = known.estimate if known is not None else None
            self.learned(principal, server, key, Known(catalogue=catalogue, estimate=estimate))

    def register(self, principal: PrincipalId, server: ResourceId) -> None:
        """Tell the core again: what a server is started from has changed."""
        if principal in self._introduced:
            self._register(principal, server, self._known_of(principal, server))

    def _known_of(self, principal: PrincipalId, server: ResourceId) -> Known | None:
        nobody = SessionScope(session=SessionId(""), principal=principal)
        return self.known(server, nobody)

    def _register(self, principal: PrincipalId, server: ResourceId, known: Known | None) -> None:
        form = self._forms.form_of(principal, server)
        zygote = self._forms.estimate(principal, server) if form is PrepareForm.ZYGOTE else None
        if known is not None and zygote is not None:
            known = replace(known, estimate=zygote)
        self._report(self._servers.registration(server, principal, known, form, self._clock.monotonic_s()))

    def _tell_changes(self, principal: PrincipalId, server: ResourceId, before: Catalogue, after: Catalogue) -> None:
        methods = {method for name, method in _LISTS.items() if getattr(before, name) != getattr(after, name)}
        if methods:
            _log.info("%s offers something else than was known: %s", server, ", ".join(sorted(methods)))
        for session in self._sessions.of_principal(principal):
            for method in sorted(methods):
                session.tell(server, method, None)


def named(catalogue: Catalogue, server: ResourceId) -> Catalogue:
    """Return the lists of a server, maybe learned of another one that has the same launch spec, under its own name."""
    return catalogue if catalogue.server == server else replace(catalogue, server=server)
