"""A server that speaks the stateless protocol only; over stdio when it is run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import (
    UNSUPPORTED_PROTOCOL_VERSION,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    InputRequests,
    InputRequiredResult,
    JSONRPCError,
    JSONRPCRequest,
)


def build(cancelled: anyio.Event | None = None) -> MCPServer:
    """Make the server; `cancelled` is set when its `wait` is given up."""
    server = MCPServer("stateless", instructions="Ask away.")

    @server.tool()
    async def count(upto: int, ctx: Context) -> str:
        for number in range(1, upto + 1):
            await ctx.report_progress(number, upto)
        return f"counted to {upto}"

    @server.tool()
    async def grow(ctx: Context) -> str:
        server.add_tool(lambda: "there", name="grown")
        await ctx.notify_tools_changed()
        return "grew"

    @server.tool()
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated("note://one")
        return "touched"

    add_tools_that_ask(server)

    @server.tool()
    async def wait(ctx: Context) -> str:
        await ctx.report_progress(0)
        try:
            await anyio.sleep_forever()
        finally:
            if cancelled is not None:
                cancelled.set()
        return ""

    @server.resource("note://one")
    def one() -> str:
        return "first"

    return server


def add_tools_that_ask(server: MCPServer) -> None:
    @server.tool()
    async def name_it(ctx: Context) -> str | InputRequiredResult:
        answer = (ctx.input_responses or {}).get("name")
        if answer is None:
            schema: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
            question = ElicitRequest(params=ElicitRequestFormParams(message="A name?", requested_schema=schema))
            return InputRequiredResult(input_requests={"name": question}, request_state="round one")
        assert ctx.request_state == "round one"
        assert isinstance(answer, ElicitResult)
        assert answer.content is not None
        return f"named {answer.content['name']}"

    @server.tool()
    async def flood(questions: int, size: int) -> InputRequiredResult:
        params = ElicitRequestFormParams(message="?" * size, requested_schema={"type": "object", "properties": {}})
        asked: InputRequests = {f"q{number}": ElicitRequest(params=params) for number in range(questions)}
        return InputRequiredResult(input_requests=asked)


@asynccontextmanager
async def without_initialize(read: Any, write: Any) -> AsyncGenerator[Any]:
    """Refuse `initialize` as a server does that has no handshake, and pass everything else on."""
    send, receive = anyio.create_memory_object_stream[Any](16)

    async def forward() -> None:
        async with send:
            async for item in read:
                message = item.message if isinstance(item, SessionMessage) else None
                if isinstance(message, JSONRPCRequest) and message.method == "initialize":
                    told = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
                    error = ErrorData(code=UNSUPPORTED_PROTOCOL_VERSION, message="Unsupported", data=told)
                    await write.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=error)))
                else:
                    await send.send(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forward)
        yield receive
        tasks.cancel_scope.cancel()


async def main() -> None:
    inner = build()._lowlevel_server  # pyright: ignore[reportPrivateUsage]  `run_stdio_async` takes no streams of one's own
    async with stdio_server() as (read, write), without_initialize(read, write) as stateless_read:
        await inner.run(stateless_read, write, inner.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
