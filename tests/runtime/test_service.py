"""Calls, lists and sessions, over real MCP servers in real processes."""

import pytest

from .conftest import NOTES, OpenService, RecordingChannel, call, scope, stdio_server, text_of

pytestmark = pytest.mark.anyio


async def test_a_call_is_answered_by_the_servers_own_sandbox(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        result = await service.request(scope(), NOTES, "tools/call", call("add_note", text="first"), RecordingChannel())
    assert text_of(result) == "1 notes"
