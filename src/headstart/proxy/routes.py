"""From a request's path to an upstream. Pure.

Paths are taken apart as the bytes that came in: what follows `/v1` is passed on exactly
as the client wrote it, percent-encodings included.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes, urlsplit

from headstart.config.model import ForwardProxy, Upstream
from headstart.ids import SESSION_NAME_RULE, is_session_name
from headstart.proxy.headers import Header
from headstart.proxy.refusals import Refusal

__all__ = ["Origin", "Route", "Routes", "UpstreamTarget"]

DEFAULT_PREFIX = "default"
_NOT_IN_A_TARGET = re.compile(rb"[\x00-\x20\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where connections go."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamTarget:
    """An upstream, taken apart once.

    Attributes:
        prefix: Its name in our paths.
        shown_url: As configured, for messages; without its query, which may hold a key.
        host_header: The `Host` it expects.
        base_path: Path that stands before what follows `/v1`, without a slash at its end.
        base_query: Query that every request gets (`api-version=…`), "" for none.
    """

    prefix: str
    shown_url: str
    origin: Origin
    host_header: bytes
    base_path: bytes
    base_query: bytes = field(repr=False)
    proxy: ForwardProxy | None = None
    proxy_headers: tuple[Header, ...] = field(default=(), repr=False)
    absolute: bytes = b""
    """What stands before the path in requests that are sent to a proxy instead (`http://host`)."""

    @classmethod
    def of(cls, upstream: Upstream) -> UpstreamTarget:
        """Take an upstream's base URL apart; that it is one has been checked with the rest of the config."""
        url = urlsplit(upstream.base_url)
        tls = url.scheme == "https"
        proxy = upstream.proxy
        host_header = url.netloc.encode("idna" if not url.netloc.isascii() else "ascii")
        return cls(
            prefix=upstream.prefix,
            shown_url=upstream.shown_url,
            origin=Origin(host=url.hostname or "", port=url.port or (443 if tls else 80), tls=tls),
            host_header=host_header,
            base_path=url.path.rstrip("/").encode(),
            base_query=url.query.encode(),
            proxy=proxy,
            proxy_headers=() if proxy is None else _proxy_headers(proxy),
            absolute=b"" if proxy is None or tls else b"http://" + host_header,
        )

    @property
    def via(self) -> Origin | None:
        """The proxy that connections go to instead."""
        return None if self.proxy is None else Origin(host=self.proxy.host, port=self.proxy.port, tls=False)

    def target(self, path: bytes, query: bytes) -> bytes:
        """Return the request target (path and query) for `path`, what followed `/v1`."""
        joined = b"&".join(part for part in (self.base_query, query) if part)
        return self.absolute + (b"".join((self.base_path, path, b"?" if joined else b"", joined)) or b"/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes.

    Attributes:
        session: Its name in the URL, else None.
        path: What followed `/v1`, as text, for choosing the wire format.
        target: The request target upstream; never shown, some clients put their key into the query.
    """

    upstream: UpstreamTarget
    session: str | None
    path: str
    target: bytes = field(repr=False)


class Routes:
    """All upstreams by prefix."""

    def __init__(self, upstreams: Iterable[Upstream]) -> None:
        self._by_prefix = {upstream.prefix.encode(): UpstreamTarget.of(upstream) for upstream in upstreams}

    @property
    def upstreams(self) -> tuple[UpstreamTarget, ...]:
        return tuple(self._by_prefix.values())

    def claims(self, path: str) -> bool:
        """Say whether a request for `path` is one for a model server (also one that is going to be refused)."""
        segments = path.encode().split(b"/")[1:]
        if len(segments) > 2 and segments[0] == b"s":
            segments = segments[2:]
        return b"v1" in segments[:2] or not self._by_prefix.keys().isdisjoint(segments[:1])

    def resolve(self, raw_path: bytes, query: bytes = b"") -> Route | Refusal:
        """Find the upstream for a request, or say why there is none."""
        session, rest = _split_session(raw_path)
        if session is not None and not is_session_name(session):
            return _refuse_session()
        prefix, rest = self._split_prefix(rest)
        upstream = self._by_prefix.get(prefix)
        if upstream is None:
            return self._refuse_prefix(prefix)
        version, slash, tail = rest.removeprefix(b"/").partition(b"/")
        if version != b"v1":
            return self._refuse_version(upstream)
        if tail == b"v1" or tail.startswith(b"v1/"):
            return self._refuse_doubled(upstream)
        path = slash + tail
        target = upstream.target(path, query)
        if _NOT_IN_A_TARGET.search(target):
            return Refusal(status=400, code="bad_path", message="the path holds a control character", hint="encode it")
        return Route(
            upstream=upstream,
            session=session,
            path=path.decode("latin-1"),
            target=target,
        )

    def _split_prefix(self, path: bytes) -> tuple[bytes, bytes]:
        first, slash, rest = path.removeprefix(b"/").partition(b"/")
        if first == b"v1":
            return DEFAULT_PREFIX.encode(), path
        return first, slash + rest

    def _refuse_prefix(self, prefix: bytes) -> Refusal:
        known = ", ".join(f"/{upstream.prefix}/v1" for upstream in self.upstreams) or "none"
        name = prefix.decode("latin-1")
        hint = f"the configured upstreams are: {known}; add others to headstart.toml; MCP is at /mcp"
        return Refusal(status=404, code="unknown_upstream", message=f"no upstream is named {name!r}", hint=hint)

    @staticmethod
    def _refuse_version(upstream: UpstreamTarget) -> Refusal:
        message = f"paths of the upstream {upstream.prefix!r} begin with /{upstream.prefix}/v1/"
        hint = f"set the client's base URL to one that ends in /{upstream.prefix}/v1"
        return Refusal(status=404, code="no_version", message=message, hint=hint)

    @staticmethod
    def _refuse_doubled(upstream: UpstreamTarget) -> Refusal:
        hint = f"the base URL already ends in /v1; give the client one without the second /v1 ({upstream.prefix})"
        return Refusal(status=404, code="doubled_v1", message="the path has /v1 twice", hint=hint)


def _proxy_headers(proxy: ForwardProxy) -> tuple[Header, ...]:
    if proxy.credentials is None:
        return ()
    return ((b"proxy-authorization", b"Basic " + b64encode(proxy.credentials.encode())),)


def _split_session(path: bytes) -> tuple[str | None, bytes]:
    if not path.startswith(b"/s/"):
        return None, path
    session, slash, rest = path[3:].partition(b"/")
    return unquote_to_bytes(session).decode("utf-8", "replace"), slash + rest


def _refuse_session() -> Refusal:
    message = f"the session in the path cannot be one: {SESSION_NAME_RULE}"
    return Refusal(status=400, code="bad_session", message=message, hint="use /s/<session>/v1/…")
