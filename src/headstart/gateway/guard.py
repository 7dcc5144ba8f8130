"""Who may use the port: the check in front of every route, HTTP and WebSocket.

A service on loopback is reachable by every web page that the user opens. A page can post
to it from another origin, and through DNS rebinding even from "the same" one. Three
checks, cheapest first, none of which a page can pass:

- *Host* must be a loopback name, the address the service is bound to, or one that the
  operator allowed. Rebinding shows the attacker's own name here.
- *Origin*, if there is one, must be the service's own or allowed. Programs send none;
  browsers always send it with what could do harm. What they send without (images,
  links) carries `Sec-Fetch-Site`, which must not say `cross-site`.
- *Key*, where keys are configured: `X-Headstart-Key`, else `Authorization: Bearer`, else
  the path prefix `/k/<key>` for agents that can set nothing but a base URL. A key used in
  `Authorization` or in the path is taken out of the request, so it is never passed on to
  a model's or tool's server.

Each key is a principal of its own; without keys there is one, `local`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from headstart.gateway.wire import Receive, Scope, Send, header, send_json
from headstart.ids import LOCAL_PRINCIPAL, PRINCIPAL_SCOPE_KEY, PrincipalId

__all__ = ["App", "PortGuard", "principal_of_key"]

App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "[::]"})  # noqa: S104  recognised, not bound to
_HOST: Final = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[^\[\]:@/?#\s]+)(?::[0-9]*)?", re.IGNORECASE)
"""A name or address and perhaps a port, and nothing after it."""
_PATH_PREFIX: Final = "/k/"


@dataclass(frozen=True, slots=True)
class _Refusal:
    status: int
    error: str
    hint: str


def principal_of_key(key: str) -> PrincipalId:
    """Name a key's principal; the name tells nothing about the key."""
    return PrincipalId(f"key_{hashlib.blake2b(key.encode(), digest_size=6, person=b'headstart').hexdigest()}")


class PortGuard:
    """ASGI middleware for the whole port.

    Args:
        app: What is behind it.
        host: The address that the service is bound to.
        keys: The configured keys; none means that everybody is `local`.
        allowed_hosts: More names in `Host`, without ports.
        allowed_origins: Pages that may use the port (`https://inspector.example`).
        self_checked: Path prefixes whose routes ask for a credential of their own.
    """

    def __init__(
        self,
        app: App,
        *,
        host: str,
        keys: Iterable[str] = (),
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        self_checked: tuple[str, ...] = (),
    ) -> None:
        self._app = app
        self._self_checked = self_checked
        bound = _bracketed(host)
        own = () if bound in _ANY_ADDRESS else (bound,)
        self._hosts = frozenset(name.lower() for name in (*_LOOPBACK, *own, *map(_bracketed, allowed_hosts)))
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._principals = {key.encode(): principal_of_key(key) for key in keys}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, with its principal in the scope, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        origin = header(scope, b"origin")
        refusal = self._wrong_host(scope) or self._wrong_origin(scope, origin)
        if refusal is None and origin is not None and _is_preflight(scope):
            await _answer_preflight(scope, send, origin)
            return
        if refusal is None:
            refusal = self._identify(scope)
        if refusal is not None:
            await _refuse(scope, receive, send, refusal)
            return
        await self._app(scope, receive, send if origin is None else _readable_by(origin, send))

    def _wrong_host(self, scope: Scope) -> _Refusal | None:
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        named = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if named is not None and named["name"] in self._hosts:
            return None
        told = hosts[0] if len(hosts) == 1 else f"{len(hosts)} Host headers"
        return _Refusal(403, f"host not allowed: {told}", "use localhost, or add the name to allowed_hosts")

    def _wrong_origin(self, scope: Scope, origin: str | None) -> _Refusal | None:
        if origin is None:
            if header(scope, b"sec-fetch-site") in {"cross-site", "same-site"}:
                return _Refusal(403, "requests of other sites' pages are refused", "open the address itself")
            return None
        host = (header(scope, b"host") or "").lower()
        if origin.lower() in self._origins or origin.lower() in {f"http://{host}", f"https://{host}"}:
            return None
        return _Refusal(403, f"origin not allowed: {origin}", "add it to allowed_origins if you trust that page")

    def _identify(self, scope: Scope) -> _Refusal | None:
        """Leave the principal in the scope; take a key out of where it must not go further."""
        scope.pop(PRINCIPAL_SCOPE_KEY, None)
        if not self._principals or scope["path"].startswith(self._self_checked):
            scope[PRINCIPAL_SCOPE_KEY] = LOCAL_PRINCIPAL
            return None
        principal = self._by_header(scope) or self._by_path(scope)
        if principal is None:
            hint = "send it as X-Headstart-Key, as Authorization: Bearer, or as the path prefix /k/<key>"
            return _Refusal(401, "a Headstart key is needed", hint)
        scope[PRINCIPAL_SCOPE_KEY] = principal
        return None

    def _by_header(self, scope: Scope) -> PrincipalId | None:
        own = header(scope, b"x-headstart-key")
        if own is not None:
            _take_out(scope, b"x-headstart-key")
            return self._principal(own)
        scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
        principal = self._principal(token.strip()) if scheme.lower() == "bearer" else None
        if principal is not None:
            _take_out(scope, b"authorization")
        return principal

    def _by_path(self, scope: Scope) -> PrincipalId | None:
        path: str = scope["path"]
        if not path.startswith(_PATH_PREFIX):
            return None
        given, slash, rest = path[len(_PATH_PREFIX) :].partition("/")
        principal = self._principal(unquote(given))
        if principal is not None:
            scope["path"] = slash + rest
            raw: bytes = scope.get("raw_path") or quote(path).encode()
            scope["raw_path"] = b"/" + raw.split(b"/", 3)[3] if raw.count(b"/") > 2 else b""
        return principal

    def _principal(self, given: str) -> PrincipalId | None:
        """Compare with every key, each in constant time."""
        found: PrincipalId | None = None
        offered = given.encode("utf-8", "surrogatepass")
        for key, principal in self._principals.items():
            if hmac.compare_digest(key, offered):
                found = principal
        return found


def _bracketed(host: str) -> str:
    """Write an IPv6 address as the Host header does."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _take_out(scope: Scope, name: bytes) -> None:
    scope["headers"] = [pair for pair in scope["headers"] if pair[0] != name]


def _is_preflight(scope: Scope) -> bool:
    asks = header(scope, b"access-control-request-method") is not None
    return scope["type"] == "http" and scope["method"] == "OPTIONS" and asks


async def _answer_preflight(scope: Scope, send: Send, origin: str) -> None:
    wanted = header(scope, b"access-control-request-headers") or "content-type"
    allowed = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"GET, POST, DELETE"),
        (b"access-control-allow-headers", wanted.encode("latin-1")),
        (b"vary", b"origin"),
    ]
    await send_json(send, 204, headers=allowed)


def _readable_by(origin: str, send: Send) -> Send:
    """Let a page of an allowed origin read the response."""
    lines = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"mcp-session-id, www-authenticate"),
        (b"vary", b"origin"),
    ]

    async def send_readable(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *lines]}
        await send(message)

    return send_readable


async def _refuse(scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
    body = json.dumps({"error": refusal.error, "hint": refusal.hint}).encode()
    challenge = [(b"www-authenticate", b'Bearer realm="headstart"')] if refusal.status == 401 else []
    if scope["type"] == "http":
        await send_json(send, refusal.status, body, headers=challenge)
        return
    await receive()  # websocket.connect
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.error})
        return
    lines = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *challenge]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": lines})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
