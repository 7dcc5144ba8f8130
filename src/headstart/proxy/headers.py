"""Which header fields go on, in both directions (RFC 9110 §7.6.1). Pure.

Nothing is added and nothing rewritten but `Host`. What is left out: the fields that
concern one connection only, those that `Connection` names, and Headstart's own
(`X-Headstart-Session`, `X-Headstart-Key`). Trailers are dropped, as §6.5.1 allows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["BodyFraming", "Header", "framing_of", "request_headers", "response_headers", "value_of"]

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
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_UPSTREAM = _ONE_CONNECTION | {b"host", b"expect"}  # `Expect` is answered here: the body is on its way anyway


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
    return [header for header in headers if header[0] not in left_out and not header[0].startswith(OWN_PREFIX)]


def response_headers(headers: Iterable[Header], *, status: int) -> list[Header]:
    """Return what of a response's fields goes to the client."""
    headers = list(headers)
    left_out = _ONE_CONNECTION | _named_by_connection(headers)
    if status in (204, 304):
        left_out |= {b"content-length"}  # it would announce a body that such a response cannot have
    return [header for header in headers if header[0].lower() not in left_out]


def _named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    named = [value for name, value in headers if len(name) == 10 and name.lower() == b"connection"]
    if not named:
        return frozenset()
    tokens = (token.strip().lower() for value in named for token in value.split(b","))
    # `Connection: content-length` and the like would change what the message means.
    return frozenset(tokens) - {b"content-length", b"content-type", b"content-encoding", b"authorization", b"host"}
