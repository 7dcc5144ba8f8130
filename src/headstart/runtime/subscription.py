"""What a server of the stateless protocol is asked to tell unasked: one `subscriptions/listen`.

The request stays open; its stream carries what was subscribed to. A wider or narrower
subscription is another request, and the old one is given up only once the new one is
acknowledged, so that nothing falls between them. A stream that breaks is opened again, with
pauses that grow; what was missed meanwhile is unknown, so all lists are read again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.outbox import LinkClosed
from headstart.runtime.rpc import Owner, Peer

__all__ = ["Subscription"]

ACKNOWLEDGE_TIMEOUT_S: Final = 10.0
PAUSES_S: Final = (0.5, 2.0, 8.0, 30.0)
"""Before a broken stream is opened again; the last is repeated."""

_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_KINDS: Final = {"tools": "toolsListChanged", "prompts": "promptsListChanged", "resources": "resourcesListChanged"}
_NOT_FOUND: Final = -32002
_METHOD_NOT_FOUND: Final = -32601

_log = logging.getLogger(__name__)

Stamp = Callable[[JsonObject, ClientChannel | None], JsonObject]
"""Makes a request's params the stateless protocol's."""


class _Stream:
    """One open `subscriptions/listen`: the `ClientChannel` of its request."""

    def __init__(self, wanted: JsonObject, owner: Owner) -> None:
        self.wanted = wanted
        self.scope = anyio.CancelScope()
        self.settled = anyio.Event()
        """Set once it is acknowledged, or has ended."""
        self.uris: frozenset[str] = frozenset()
        self.acknowledged = False
        self._owner = owner

    @property
    def capabilities(self) -> Mapping[str, Any]:
        return {}

    @property
    def log_level(self) -> str | None:
        return None

    async def progress(self, params: JsonObject) -> None:
        """Drop it: nobody asked for any."""

    async def notify(self, method: str, params: JsonObject | None, *, server: object = None) -> None:  # noqa: ARG002
        if method == _ACKNOWLEDGED:
            honored = (params or {}).get("notifications")
            uris = cast("JsonObject", honored).get("resourceSubscriptions") if isinstance(honored, dict) else None
            self.uris = frozenset(cast("list[str]", uris) if isinstance(uris, list) else ())
            if self.acknowledged:
                self._tell_what_may_be_missed()
            self.acknowledged = True
            self.settled.set()
        else:
            self._owner.notified(method, _without_id(params))

    async def request(self, method: str, params: JsonObject | None, *, server: object = None) -> JsonObject:  # noqa: ARG002
        raise MCPError(_METHOD_NOT_FOUND, f"nobody answers {method} on a subscription", None)

    def _tell_what_may_be_missed(self) -> None:
        for kind, member in _KINDS.items():
            if member in self.wanted:
                self._owner.notified(f"notifications/{kind}/list_changed", None)


class Subscription:
    """All that a conversation is subscribed to; what it is told goes to the peer's owner."""

    def __init__(self, peer: Peer, stamp: Stamp, capabilities: JsonObject) -> None:
        self._peer = peer
        self._stamp = stamp
        self._kinds = {member: True for name, member in _KINDS.items() if _says_list_changed(capabilities.get(name))}
        self._uris: frozenset[str] = frozenset()
        self._current: _Stream | None = None
        self._turn = anyio.Lock()

    def begin(self) -> None:
        """Subscribe to the lists that may change, if there are any, without waiting for it."""
        if self._kinds:
            self._current = self._open(self._uris)

    async def watch(self, uri: str) -> None:
        """Subscribe to a resource.

        Raises:
            MCPError: The server does not let anybody subscribe to it.
        """
        async with self._turn:
            if uri not in self._uris and uri not in (await self._widen(self._uris | {uri})).uris:
                raise MCPError(_NOT_FOUND, f"the server gives no subscription to {uri}", {"uri": uri})

    async def leave(self, uri: str) -> None:
        """Unsubscribe from a resource; harmless if it was not subscribed to."""
        async with self._turn:
            if uri in self._uris:
                await self._widen(self._uris - {uri})

    async def _widen(self, uris: frozenset[str]) -> _Stream:
        old, fresh = self._current, self._open(uris)
        with anyio.move_on_after(ACKNOWLEDGE_TIMEOUT_S):
            await fresh.settled.wait()
        if not fresh.acknowledged:
            fresh.scope.cancel()
            return fresh
        self._current, self._uris = fresh, uris & fresh.uris
        if old is not None:
            old.scope.cancel()
        return fresh

    def _open(self, uris: frozenset[str]) -> _Stream:
        wanted: JsonObject = {**self._kinds, **({"resourceSubscriptions": sorted(uris)} if uris else {})}
        stream = _Stream(wanted, self._peer.owner)
        self._peer.tasks.start_soon(self._hold, stream, name="mcp subscription")
        return stream

    async def _hold(self, stream: _Stream) -> None:
        """Keep a stream open until it is given up; one that was never acknowledged is not opened again."""
        with stream.scope:
            for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
                try:
                    await self._listen(stream)
                except LinkClosed:
                    return
                finally:
                    stream.settled.set()
                if not stream.acknowledged:
                    return
                await anyio.sleep(pause_s)

    async def _listen(self, stream: _Stream) -> None:
        """Hold one request open until the server ends it, well or not."""
        params = self._stamp({"notifications": stream.wanted}, stream)
        try:
            await self._peer.request("subscriptions/listen", params, channel=stream, subscribes=True)
        except MCPError as refused:
            _log.debug("a subscription ended: %s", refused.message)


def _says_list_changed(capability: object) -> bool:
    return isinstance(capability, dict) and cast("JsonObject", capability).get("listChanged") is True


def _without_id(params: JsonObject | None) -> JsonObject | None:
    meta = None if params is None else params.get("_meta")
    if params is None or not isinstance(meta, dict):
        return params
    kept = {name: value for name, value in cast("JsonObject", meta).items() if name != SUBSCRIPTION_ID_META_KEY}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return ({**rest, "_meta": kept} if kept else rest) or None
