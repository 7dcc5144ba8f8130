"""A small MCP server that keeps notes in memory, with every kind of traffic that tests need."""

import os
import sys

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import SamplingMessage, TextContent, ToolAnnotations

server = MCPServer("notes", instructions="Keeps notes while it runs.")
notes: list[str] = []
unanswered: list[str] = []
cancelled: list[str] = []


@server.tool()
async def add_note(text: str) -> str:
    """Add a note."""
    notes.append(text)
    return f"{len(notes)} notes"


@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
async def read_notes() -> str:
    """Read all notes."""
    return "\n".join(notes)


@server.tool()
async def count_slowly(to: int, ctx: Context) -> str:
    """Count, telling how far it is."""
    for number in range(to):
        await ctx.report_progress(number, to)
    return str(to)


@server.tool()
async def never_answer() -> str:
    """Wait for ever, and note who gives up waiting."""
    unanswered.append("never_answer")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        cancelled.append("never_answer")
        raise
    return ""


@server.tool()
async def unanswered_calls() -> str:
    """Count the calls that never were to be answered."""
    return str(len(unanswered))


@server.tool()
async def cancelled_calls() -> str:
    """Count the calls that were cancelled."""
    return str(len(cancelled))


@server.tool()
async def die() -> str:
    """End in the middle of a call."""
    sys.stderr.write("about to die of a bug\n")
    sys.stderr.flush()
    os._exit(7)


@server.tool()
async def big(size_mb: int) -> str:
    """Answer a lot."""
    return "x" * (size_mb * 1024 * 1024)


@server.tool()
async def ask_model(question: str, ctx: Context) -> str:
    """Let the client's model answer."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text=question))
    answer = await ctx.session.create_message(  # pyright: ignore[reportDeprecated]  older protocols have it
        [message], max_tokens=10
    )
    return answer.content.text if isinstance(answer.content, TextContent) else "?"


@server.tool()
async def grow(ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(lambda: "grown", name="grown", description="It was not there before.")
    await ctx.session.send_tool_list_changed()
    return "grown"


@server.resource("notes://all")
def all_notes() -> str:
    """All notes."""
    return "\n".join(notes)


if __name__ == "__main__":
    server.run("stdio")
