"""JSON-RPC and HTTP as bytes: what the gateway reads and writes.

Payloads are parsed to plain JSON objects and written from them, never through models,
so unknown fields and key order survive. Bodies that are already JSON (cached lists) are
spliced into their envelope as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from starlette.types import Receive, Scope, Send

from headstart.runtime.contract import JsonObject
from headstart.runtime.json_text import decode, encode

__all__ = [
    "JSON_HEADERS",
    "SSE_HEADERS",
    "BodyTooLarge",
    "ClientLeft",
    "Receive",
    "Scope",
    "Send",
    "decode",
    "encode",
    "error_message",
    "error_object",
    "header",
    "json_object",
    "notification_message",
    "read_body",
    "refuse",
    "request_message",
    "response_message",
    "send_body",
    "send_json",
    "sse_frame",
]

JSON_HEADERS: Final = [(b"content-type", b"application/json")]
SSE_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
]

_SLICE_BYTES: Final = 256 * 1024
"""Large bodies leave in slices, so that a slow reader holds back the sender, not the memory."""


class BodyTooLarge(Exception):
    """A request's body is larger than the port takes."""


class ClientLeft(Exception):
    """The client closed its connection before its request was complete."""


def json_object(value: object) -> JsonObject | None:
    """Return a JSON value if it is an object, else None."""
    return cast("JsonObject", value) if isinstance(value, dict) else None


def error_message(request_id: object, code: int, message: str, data: object = None) -> bytes:
    """Make an error response; `data` is left out when None."""
    return response_message(request_id, b"error", error_object(code, message, data))


def error_object(code: int, message: str, data: object = None) -> bytes:
    error: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return encode(error)


def response_message(request_id: object, member: bytes, value: bytes) -> bytes:
    """Wrap an encoded `result` or `error` in the response envelope."""
    return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (encode(request_id), member, value)


def notification_message(method: str, params: Mapping[str, Any] | None) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    if params is not None:
        message["params"] = params
    return encode(message)


def request_message(request_id: str, method: str, params: Mapping[str, Any] | None) -> bytes:
    message: dict[str, object] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return encode(message)


def sse_frame(message: bytes) -> bytes:
    """Make one server-sent event of a message (JSON has no raw line ends)."""
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header called `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return None


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Read a request's whole body.

    Raises:
        BodyTooLarge: It is announced as, or becomes, larger than the limit.
        ClientLeft: The client closed before the end.
    """
    announced = header(scope, b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit_bytes:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BodyTooLarge
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def send_body(send: Send, body: bytes, *, last: bool = True) -> None:
    """Send a body, in slices if it is large; the server's flow control paces them."""
    if len(body) <= _SLICE_BYTES:
        await send({"type": "http.response.body", "body": body, "more_body": not last})
        return
    view = memoryview(body)
    for start in range(0, len(body), _SLICE_BYTES):
        more = not last or start + _SLICE_BYTES < len(body)
        await send({"type": "http.response.body", "body": bytes(view[start : start + _SLICE_BYTES]), "more_body": more})


async def send_json(
    send: Send, status: int, body: bytes = b"", *, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send a complete response with a JSON body, or with none if it is empty."""
    lines = [*(JSON_HEADERS if body else ()), (b"content-length", b"%d" % len(body)), *(headers or ())]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send_body(send, body)


async def refuse(  # noqa: PLR0913  the parts of one HTTP error
    send: Send,
    status: int,
    code: int,
    message: str,
    *,
    request_id: object = None,
    data: object = None,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Answer with an HTTP error whose body is a JSON-RPC error."""
    await send_json(send, status, error_message(request_id, code, message, data), headers=headers)
