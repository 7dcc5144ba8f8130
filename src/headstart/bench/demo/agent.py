"""An ordinary agent: the OpenAI SDK for the model, the MCP SDK for the tools, and two URLs.

Nothing in it knows of Headstart. It asks, calls what the model asks for, tells the model
what came back, and stops when the model asks for nothing more.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import TextContent, Tool
from openai import AsyncOpenAI, AsyncStream
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

__all__ = ["CallRecord", "SessionRecord", "open_loopback", "run_session"]

MAX_STEPS = 30
_CONNECT_S = 30.0
_ANSWER_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One tool call as the agent lived it (seconds on the monotonic clock)."""

    tool: str
    started_s: float
    ended_s: float
    is_error: bool
    said: str


@dataclass(slots=True, kw_only=True)
class SessionRecord:
    """One session as the agent lived it.

    Attributes:
        connected_s: When the MCP connection stood and the tools were listed.
        model_s: Seconds spent waiting for the model, all steps together.
    """

    session: str
    started_s: float = 0.0
    connected_s: float = 0.0
    ended_s: float = 0.0
    model_s: float = 0.0
    steps: int = 0
    calls: list[CallRecord] = field(default_factory=list[CallRecord])

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


async def run_session(*, session: str, prompt: str, model: str, model_url: str, mcp_url: str) -> SessionRecord:
    """Run one conversation to its end.

    Raises:
        openai.APIError: The model server failed.
    """
    record = SessionRecord(session=session, started_s=time.monotonic())
    async with (
        open_loopback() as http,
        AsyncOpenAI(base_url=model_url, api_key="demo", max_retries=0, http_client=http) as llm,
        Client(streamable_http_client(mcp_url, http_client=http)) as tools,
    ):
        offered = [_as_function(tool) for tool in (await tools.list_tools()).tools]
        record.connected_s = time.monotonic()
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        while record.steps < MAX_STEPS:
            asked = time.monotonic()
            text, calls = await _generate(llm, model, messages, offered)
            record.model_s += time.monotonic() - asked
            record.steps += 1
            messages.append(_assistant_message(text, calls))
            if not calls:
                break
            messages.extend([await _call(tools, call, record) for call in calls])
    record.ended_s = time.monotonic()
    return record


def open_loopback() -> httpx2.AsyncClient:
    """Open an HTTP client for what has no TLS.

    The SDKs' own clients each read a list of certificate authorities. That holds up all
    sessions of this process, and on a busy machine it took a fifth of a second.
    """
    nobody_trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncClient(
        verify=nobody_trusted, trust_env=False, timeout=httpx2.Timeout(_ANSWER_S, connect=_CONNECT_S)
    )


def _as_function(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema},
    }


async def _generate(
    llm: AsyncOpenAI, model: str, messages: Sequence[dict[str, Any]], offered: Sequence[dict[str, Any]]
) -> tuple[str, list[dict[str, Any]]]:
    stream: AsyncStream[ChatCompletionChunk] = await llm.chat.completions.create(
        model=model,
        messages=cast("list[ChatCompletionMessageParam]", messages),
        stream=True,
        extra_body={"tools": offered},  # as `tools=` the SDK walks through them all, as long as 20 tokens take
    )
    text: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    async for chunk in stream:
        if not chunk.choices:
            continue
        delta = chunk.choices[0].delta
        text.append(delta.content or "")
        for piece in delta.tool_calls or ():
            call = calls.setdefault(piece.index, {"id": "", "name": "", "arguments": ""})
            call["id"] = piece.id or call["id"]
            if piece.function:
                call["name"] += piece.function.name or ""
                call["arguments"] += piece.function.arguments or ""
    return "".join(text), [calls[index] for index in sorted(calls)]


def _assistant_message(text: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return message


async def _call(tools: Client, call: dict[str, Any], record: SessionRecord) -> dict[str, Any]:
    started = time.monotonic()
    result = await tools.call_tool(call["name"], json.loads(call["arguments"] or "{}"))
    said = "\n".join(part.text for part in result.content if isinstance(part, TextContent))
    record.calls.append(
        CallRecord(
            tool=call["name"],
            started_s=started,
            ended_s=time.monotonic(),
            is_error=bool(result.is_error),
            said=said[:500],
        )
    )
    return {"role": "tool", "tool_call_id": call["id"], "content": said[:4_000]}
