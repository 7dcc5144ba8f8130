"""A client's open stream: the GET stream of a handshake client, or one `subscriptions/listen`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, cast

import anyio
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY

from headstart.gateway.wire import json_object, notification_message
from headstart.runtime.contract import JsonObject

__all__ = ["GetStream", "ListenStream"]

_QUEUED: Final = 256
"""Messages; a client further behind than this loses notifications (they say "look again", not what is new)."""


class GetStream:
    """All that belongs to no request, for a handshake client. An `Outbox`."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[bytes](_QUEUED)

    def wants(self, method: str, params: Mapping[str, Any] | None) -> bool:  # noqa: ARG002  it wants all
        return True

    def offer(self, method: str, params: JsonObject | None) -> bool:
        return self.ask(notification_message(method, params))

    def ask(self, message: bytes) -> bool:
        try:
            self._send.send_nowait(message)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return False
        return True

    def close(self) -> None:
        self._send.close()

    async def messages(self) -> AsyncIterator[bytes]:
        """Yield what is queued until the stream is closed."""
        with self._receive:
            async for message in self._receive:
                yield message


class ListenStream(GetStream):
    """Only what a stateless client asked for, each message marked with its subscription."""

    def __init__(self, subscription_id: object, wanted: Mapping[str, Any]) -> None:
        super().__init__()
        self._meta = {SUBSCRIPTION_ID_META_KEY: subscription_id}
        uris = wanted.get("resourceSubscriptions")
        listed = cast("list[object]", uris) if isinstance(uris, list) else []
        self.uris = frozenset(uri for uri in listed if isinstance(uri, str))
        self._methods = {
            f"notifications/{kind}/list_changed"
            for kind, member in (
                ("tools", "toolsListChanged"),
                ("prompts", "promptsListChanged"),
                ("resources", "resourcesListChanged"),
            )
            if wanted.get(member) is True
        }

    @property
    def meta(self) -> JsonObject:
        return self._meta

    def honored(self, uris: frozenset[str]) -> JsonObject:
        """Return the filter to acknowledge: what was asked for, with these URIs."""
        told: JsonObject = {f"{method.split('/')[1]}ListChanged": True for method in sorted(self._methods)}
        if uris:
            told["resourceSubscriptions"] = sorted(uris)
        return told

    def wants(self, method: str, params: Mapping[str, Any] | None) -> bool:
        if method == "notifications/resources/updated":
            return (params or {}).get("uri") in self.uris
        return method in self._methods

    def offer(self, method: str, params: JsonObject | None) -> bool:
        meta = {**(json_object((params or {}).get("_meta")) or {}), **self._meta}
        return self.ask(notification_message(method, {**(params or {}), "_meta": meta}))
