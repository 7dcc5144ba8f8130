"""What the proxy answers of its own accord: one JSON line, in the shape model clients know."""

from __future__ import annotations

import json
from dataclasses import dataclass

from starlette.types import Send

__all__ = ["Refusal"]

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error response.

    Attributes:
        status: HTTP status.
        code: A short word for programs.
        message: What, where.
        hint: The cure.
        headers: Further response headers.
    """

    status: int
    code: str
    message: str
    hint: str
    headers: tuple[Header, ...] = ()

    def body(self) -> bytes:
        told = f"{self.message}. hint: {self.hint}"  # SDKs show the message and nothing else
        error = {"message": told, "type": "headstart_proxy", "code": self.code, "hint": self.hint}
        return json.dumps({"error": error}, ensure_ascii=False).encode() + b"\n"

    async def send(self, send: Send) -> None:
        body = self.body()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def send_to_websocket(self, send: Send) -> None:
        """Deny a WebSocket handshake with this response."""
        body = self.body()
        headers = [(b"content-type", b"application/json"), *self.headers]
        await send({"type": "websocket.http.response.start", "status": self.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})
