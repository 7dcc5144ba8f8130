"""What a client is told when something fails.

A JSON-RPC error from a server goes through as it is. When a *tool call* cannot be served
(its server is down, its sandbox was lost, a budget is exhausted) the model is told so
in a tool result with `isError`, because a model can act on that and a protocol error
would end most agents' turn. Everything else fails as a JSON-RPC error.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Final

from mcp import MCPError
from mcp_types import INTERNAL_ERROR

from headstart.errors import HeadstartError, SandboxLost, ServerUnavailable, UnauthorizedUpstream
from headstart.gateway.wire import encode, error_object, response_message

__all__ = ["REQUEST_CANCELLED", "Answer", "failed", "refused", "succeeded"]

REQUEST_CANCELLED: Final = -32800
"""Ends a cancelled request's stream where the protocol has no other end for it."""

_SHARED: Final = (
    "This session is shared by all clients with these credentials that name none (X-Headstart-Session), so the state "
    "may have been another one's"
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How a request ended, ready for its envelope.

    Attributes:
        member: `result` or `error`.
        value: Its value, encoded.
        status: For the response, if it is still free to choose.
        challenge: A remote server's `WWW-Authenticate`, "" for none.
    """

    member: bytes
    value: bytes
    error_code: int | None = None
    status: int = 200
    challenge: str = ""

    def message(self, request_id: object) -> bytes:
        return response_message(request_id, self.member, self.value)


def succeeded(result: bytes) -> Answer:
    return Answer(member=b"result", value=result)


def refused(code: int, message: str, data: object = None, *, status: int = 200) -> Answer:
    return Answer(member=b"error", value=error_object(code, message, data), error_code=code, status=status)


def failed(method: str, exc: Exception, *, server: str | None, modern: bool, challenge: bool, unnamed: bool) -> Answer:
    """Turn an exception into what the client is told.

    Args:
        method: What was asked for.
        exc: What came of it.
        server: The server concerned, if one was found.
        modern: Mark results for the 2026-07-28 protocol.
        challenge: A remote server's 401 may be shown as this response's own status.
        unnamed: The client shares its session with all that name none; what it is told may be news to it.
    """
    if isinstance(exc, MCPError):
        return refused(exc.code, exc.message, exc.data)
    if isinstance(exc, UnauthorizedUpstream) and challenge:
        return replace(refused(INTERNAL_ERROR, str(exc), status=exc.status), challenge=exc.challenge)
    if not isinstance(exc, HeadstartError):
        _logger.error("%s failed inside the gateway", method, exc_info=exc)
        return refused(INTERNAL_ERROR, "the gateway failed at this request; its log says why")
    if method == "tools/call":
        return succeeded(_tool_error(_told(exc, server, unnamed=unnamed), modern=modern))
    return refused(INTERNAL_ERROR, _told(exc, server, unnamed=unnamed), {"server": server} if server else None)


def _told(exc: HeadstartError, server: str | None, *, unnamed: bool) -> str:
    """Name the server, what happened, where there is more that is not for models, and the cure."""
    about = exc.server if isinstance(exc, (ServerUnavailable, SandboxLost)) else server
    text = str(exc)
    if about and about not in text:
        text = f"{about}: {text}"
    if exc.detail:
        text = f"{text}\nheadstart status shows what the server wrote last"
    cure = exc.hint or _cure(exc, about)
    if unnamed and isinstance(exc, SandboxLost):
        cure = f"{cure}. {_SHARED}"
    return f"{text}\nhint: {cure}" if cure else text


def _cure(exc: HeadstartError, server: str | None) -> str | None:
    match exc:
        case UnauthorizedUpstream():
            return f"connect to /mcp/{server} to sign in, or set its headers in the config"
        case SandboxLost():
            return "a new one starts with the next call, without the old state; repeat what set it up"
        case ServerUnavailable(retry_after_s=seconds) if seconds is not None:
            return f"it is tried again in {seconds:.0f} s"
        case _:
            return None


def _tool_error(text: str, *, modern: bool) -> bytes:
    result = {"content": [{"type": "text", "text": text}], "isError": True}
    return encode({"resultType": "complete", **result} if modern else result)
