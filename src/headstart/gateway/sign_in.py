"""Signing in to a remote server through `/mcp/<server>`.

A remote server answers 401 with a challenge that names its protected-resource metadata
(RFC 9728). Clients follow it, and strict ones insist that the metadata is about the URL
that they connected to, which is ours. So the challenge points to our copy of the
metadata, which is the server's own in everything but `resource`. The authorization server
is the server's; tokens pass through us and are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from headstart.gateway.wire import Scope, Send, decode, encode, header, json_object, refuse, send_json
from headstart.ids import ResourceId
from headstart.runtime.contract import JsonObject

__all__ = ["WELL_KNOWN", "SignIn", "own_challenge", "own_url"]

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"

_METADATA: Final = re.compile(r'\bresource_metadata\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<plain>[^\s,]+))', re.IGNORECASE)
_LIMIT_BYTES: Final = 256 * 1024
_TIMEOUT_S: Final = 10.0
"""For one place, all in all."""


def own_url(scope: Scope, path: str) -> str:
    """Return the URL of one of our paths as this client would write it."""
    host = header(scope, b"host") or "localhost"
    return f"{scope.get('scheme', 'http')}://{host}{path}"


def own_challenge(challenge: str, metadata_url: str) -> str:
    """Point a challenge to our copy of the metadata, where it points to any."""
    return _METADATA.sub(lambda _: f'resource_metadata="{metadata_url}"', challenge)


class SignIn:
    """Serves the protected-resource metadata of remote servers."""

    def __init__(self, remotes: Mapping[ResourceId, str]) -> None:
        self._remotes = remotes
        self._named: dict[ResourceId, str] = {}

    def note(self, server: ResourceId, challenge: str) -> None:
        """Remember where a server says that its metadata is."""
        found = _METADATA.search(challenge)
        if found is not None:
            self._named[server] = found["quoted"] or found["plain"] or ""

    async def metadata(self, scope: Scope, send: Send, server: ResourceId, resource_path: str) -> None:
        """Answer with a server's metadata, made to be about our own URL for it."""
        url = self._remotes.get(server)
        if url is None:
            await refuse(send, 404, INVALID_REQUEST, f"{server!r} is no remote server: nothing to sign in to")
            return
        found = await self._fetch(_places(url, self._named.get(server)))
        if found is None:
            await refuse(send, 502, INTERNAL_ERROR, f"{server}: its protected-resource metadata could not be read")
            return
        await send_json(send, 200, encode({**found, "resource": own_url(scope, resource_path)}))

    async def _fetch(self, places: list[str]) -> JsonObject | None:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, follow_redirects=False) as client:
            for place in places:
                try:
                    with anyio.fail_after(_TIMEOUT_S):
                        found = await _read_object(client, place)
                except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, ValueError):
                    continue
                if found is not None:
                    return found
        return None


async def _read_object(client: httpx2.AsyncClient, place: str) -> JsonObject | None:
    """Return the JSON object at a place, None if there is none or it is too large to be one of these."""
    async with client.stream("GET", place) as answer:
        if answer.status_code != 200:
            return None
        body = bytearray()
        async for piece in answer.aiter_bytes():
            body += piece
            if len(body) > _LIMIT_BYTES:
                return None
    return json_object(decode(bytes(body)))


def _places(server_url: str, named: str | None) -> list[str]:
    """Return where a server's metadata may be: where it said (if that is its own), else RFC 9728's places."""
    server = urlsplit(server_url)
    origin = f"{server.scheme}://{server.netloc}"
    usual = [f"{origin}{WELL_KNOWN}{server.path.rstrip('/')}", f"{origin}{WELL_KNOWN}"]
    own = named is not None and named.startswith(f"{origin}/")
    return list(dict.fromkeys([named, *usual] if own and named is not None else usual))
