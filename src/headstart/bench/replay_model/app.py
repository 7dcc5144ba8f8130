"""The replay model as a raw ASGI app: `/v1/chat/completions` and `/v1/models`."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any

import anyio
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.bench.replay_model.playback import Pace, message_of, output_tokens, play, tokens
from headstart.bench.replay_model.recordings import RecordedStep, Recording, select_recording
from headstart.ids import IdSource, RandomIds

__all__ = ["Pace", "replay_app"]

_JSON = (b"content-type", b"application/json")
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_MAX_BODY_BYTES = 64 * 1024 * 1024


def replay_app(
    recordings: Sequence[Recording], *, ttft_s: float = 0.0, tpot_s: float = 0.0, ids: IdSource | None = None
) -> ASGIApp:
    """Return an ASGI app that plays `recordings`.

    Args:
        recordings: What it can say.
        ttft_s: Seconds from a request's arrival to the first token.
        tpot_s: Seconds from each token to the next.
        ids: Where response and call ids come from that the recording does not give.
    """
    return _ReplayModel(recordings, Pace(ttft_s=ttft_s, tpot_s=tpot_s), ids or RandomIds())


class _Part(BaseModel):
    text: str = ""


class _Message(BaseModel):
    role: str
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        parts = self.content or ""
        return parts if isinstance(parts, str) else "".join(part.text for part in parts)


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _ChatRequest(BaseModel):
    """What of a request decides the answer; the rest is ignored."""

    model: str = ""
    messages: list[_Message] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None


class _NotPlayable(Exception):
    """The request asks for what no recording says."""

    def __init__(self, message: str, *, status: int = 404, code: str = "recording_not_found") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _ReplayModel:
    def __init__(self, recordings: Sequence[Recording], pace: Pace, ids: IdSource) -> None:
        self._recordings = tuple(recordings)
        self._pace = pace
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        arrived_s = asyncio.get_running_loop().time()
        try:
            await self._route(scope, receive, send, arrived_s)
        except _NotPlayable as exc:
            error = {"message": str(exc), "type": "invalid_request_error", "param": None, "code": exc.code}
            await _send_whole(send, exc.status, _compact({"error": error}), _JSON)

    async def _route(self, scope: Scope, receive: Receive, send: Send, arrived_s: float) -> None:
        match scope["method"], scope["path"]:
            case "POST", "/v1/chat/completions":
                request = _read_request(await _read_body(receive))
                recording, step = self._find(request)
                answer = _Answer(request, step, self._pace, arrived_s, self._ids)
                compress = recording.gzip and _accepts_gzip(scope)
                await _until_disconnect(receive, _answer(send, answer, compress=compress))
            case "GET", "/v1/models":
                models = [{"id": one.model, "object": "model", "owned_by": "replay"} for one in self._recordings]
                await _send_whole(send, 200, _compact({"object": "list", "data": models}), _JSON)
            case method, path:
                raise _NotPlayable(f"{method} {path}: the replay model has /v1/chat/completions and /v1/models")

    def _find(self, request: _ChatRequest) -> tuple[Recording, RecordedStep]:
        first = next((message.text for message in request.messages if message.role == "user"), "")
        found = select_recording(self._recordings, model=request.model, first_user_text=first)
        if isinstance(found, str):
            raise _NotPlayable(found)
        turn = sum(message.role == "assistant" for message in request.messages)
        if turn >= len(found.steps):
            raise _NotPlayable(
                f"recording {found.session!r} ends after {len(found.steps)} steps; this asks for one more"
            )
        return found, found.steps[turn]


class _Answer:
    """One step, being said to one client."""

    def __init__(self, request: _ChatRequest, step: RecordedStep, pace: Pace, arrived_s: float, ids: IdSource) -> None:
        self.streamed = request.stream
        self._step = step
        self._pace = pace
        self._arrived_s = arrived_s
        self._ids = ids
        self._with_usage = request.stream_options is not None and request.stream_options.include_usage
        prompt_tokens = sum(len(tokens(message.text)) for message in request.messages)
        written = output_tokens(step)
        self._usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": written,
            "total_tokens": prompt_tokens + written,
        }
        self._finish_reason = "tool_calls" if step.calls else "stop"
        self._head = {"id": ids.new("chatcmpl"), "created": int(time.time()), "model": request.model}

    async def whole(self) -> bytes:
        """Return the response as one JSON object, once its last token is due."""
        await self._until(max(output_tokens(self._step) - 1, 0))
        choice = {"index": 0, "message": message_of(self._step, self._ids), "finish_reason": self._finish_reason}
        return _compact({**self._head, "object": "chat.completion", "choices": [choice], "usage": self._usage})

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events, each when its token is due."""
        started = False
        for delta in play(self._step, self._ids):
            await self._until(delta.token)
            if not started:
                yield self._event({"role": "assistant", "content": ""})
                started = True
            yield self._event(delta.content)
        for last in self._ending():
            yield last

    def _ending(self) -> Iterator[bytes]:
        yield self._event({}, finish_reason=self._finish_reason)
        if self._with_usage:
            yield _sse({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": self._usage})
        yield b"data: [DONE]\n\n"

    def _event(self, delta: dict[str, Any], *, finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return _sse({**self._head, "object": "chat.completion.chunk", "choices": [choice]})

    async def _until(self, token: int) -> None:
        delay_s = self._arrived_s + self._pace.due_s(token) - asyncio.get_running_loop().time()
        if delay_s > 0:
            await asyncio.sleep(delay_s)


async def _answer(send: Send, answer: _Answer, *, compress: bool) -> None:
    encoder = zlib.compressobj(wbits=31) if compress else None
    encoding = ((b"content-encoding", b"gzip"),) if encoder else ()
    if not answer.streamed:
        body = await answer.whole()
        whole = encoder.compress(body) + encoder.flush() if encoder else body
        await _send_whole(send, 200, whole, _JSON, *encoding)
        return
    headers = [_EVENT_STREAM, (b"cache-control", b"no-cache"), *encoding]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for piece in answer.pieces():
        data = encoder.compress(piece) + encoder.flush(zlib.Z_SYNC_FLUSH) if encoder else piece
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": encoder.flush() if encoder else b""})


async def _until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it is done or the client is gone."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await work
        group.cancel_scope.cancel()


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > _MAX_BODY_BYTES:
            raise _NotPlayable("the request is larger than 64 MB", status=413, code="too_large")
        if not message.get("more_body"):
            return bytes(body)


def _read_request(body: bytes) -> _ChatRequest:
    try:
        return _ChatRequest.model_validate_json(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise _NotPlayable(f"{where}: {first['msg']}", status=400, code="invalid_request") from exc


def _accepts_gzip(scope: Scope) -> bool:
    return any(name == b"accept-encoding" and b"gzip" in value.lower() for name, value in scope["headers"])


async def _send_whole(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + _compact(event) + b"\n\n"


def _compact(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
