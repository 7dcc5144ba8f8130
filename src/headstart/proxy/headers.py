"""Which header fields go on, in both directions (RFC 9110 §7.6.1). Pure.

Nothing is added and nothing rewritten but `Host`. What is left out: the fields that
concern one connection only, those that `Connection` names, and Headstart's own
(`X-Headstart-Session`, `X-Headstart-Key`). Trailers pass as trailers, never among a head's
fields, and without those that would change what the message is (§6.5.1).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = [
    "BodyFraming",
    "Header",
    "field_lines",
    "framing_of",
    "passable_trailers",
    "request_headers",
    "response_headers",
    "value_of",
]

Header = tuple[bytes, bytes]

SESSION_HEADER = b"x-headstart-session"
OWN_PREFIX = b"x-headstart-"

_ONE_CONNECTION = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_A_TRAILER = _ONE_CONNECTION | {
    b"authorization",
    b"content-encoding",
    b"content-length",
    b"content-range",
    b"content-type",
    b"cookie",
    b"expect",
    b"host",
    b"set-cookie",
    b"trailer",
}
"""Framing, routing, credentials, and how a body is to be read: some receivers mix trailers into the head."""
_NOT_UPSTREAM = _ONE_CONNECTION | {b"host", b"expect"}  # `Expect` is answered here: the body is on its way anyway


_TAKES_TRAILERS = ((b"te", b"trailers"), (b"connection", b"te"))


class BodyFraming(NamedTuple):
    """How a request's body is delimited; neither means that there is none."""

    length: int | None
    chunked: bool


def value_of(headers: Iterable[Header], name: bytes) -> bytes | None:
    """Return the first value of a field (`name` in lower case)."""
    for key, value in headers:
        if key == name or (len(key) == len(name) and key.lower() == name):
            return value
    return None


def framing_of(headers: Iterable[Header]) -> BodyFraming:
    """Read a request's framing; a transfer coding wins over a length (RFC 9112 §6.3)."""
    headers = tuple(headers)
    if value_of(headers, b"transfer-encoding") is not None:
        return BodyFraming(None, chunked=True)
    length = value_of(headers, b"content-length")
    return BodyFraming(None if length is None else int(length), chunked=False)


def request_headers(headers: Iterable[Header], *, framing: BodyFraming) -> list[Header]:
    """Return what of a request's fields goes upstream; `Host` and the chunked coding are the sender's to add."""
    headers = list(headers)
    left_out = _NOT_UPSTREAM | _named_by_connection(headers)
    if framing.chunked:
        left_out |= {b"content-length"}
    passed = [header for header in headers if header[0] not in left_out and not header[0].startswith(OWN_PREFIX)]
    if takes_trailers(headers):
        passed += _TAKES_TRAILERS
    return passed


def response_headers(headers: Iterable[Header], *, status: int) -> list[Header]:
    """Return what of a response's fields goes to the client."""
    headers = list(headers)
    left_out = _ONE_CONNECTION | _named_by_connection(headers)
    if status in (204, 304):
        left_out |= {b"content-length"}  # it would announce a body that such a response cannot have
    return [header for header in headers if header[0].lower() not in left_out]


def takes_trailers(headers: Iterable[Header]) -> bool:
    """Say whether a request's sender wants to see the response's trailers."""
    return b"trailers" in [token.strip().lower() for token in (value_of(headers, b"te") or b"").split(b",")]


def passable_trailers(fields: Iterable[Header]) -> list[Header]:
    """Return what of a message's trailers goes on."""
    lowered = ((name.lower(), name, value) for name, value in fields)
    return [
        (name, value) for key, name, value in lowered if key not in _NOT_A_TRAILER and not key.startswith(OWN_PREFIX)
    ]


def field_lines(fields: Iterable[Header]) -> bytes:
    """Return fields as they go on the wire."""
    return b"".join(b"%b: %b\r\n" % field for field in fields)


def _named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    named = [value for name, value in headers if len(name) == 10 and name.lower() == b"connection"]
    if not named:
        return frozenset()
    tokens = (token.strip().lower() for value in named for token in value.split(b","))
    # `Connection: content-length` and the like would change what the message means.
    return frozenset(tokens) - {b"content-length", b"content-type", b"content-encoding", b"authorization", b"host"}
