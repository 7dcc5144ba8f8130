"""A server's question to a client always ends: answered, given up, or after a while."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError

from headstart.gateway import session as session_module
from headstart.gateway.channels import RequestChannel, Voice
from headstart.gateway.parked import ParkedCall
from headstart.gateway.reply import Reply
from headstart.gateway.session import Connection, Session
from headstart.gateway.views import Views
from headstart.ids import LOCAL_PRINCIPAL, SessionId
from headstart.runtime.contract import SessionScope

pytestmark = pytest.mark.anyio


def connection_of() -> Connection:
    return Connection(
        id="mcp_1",
        session=Session(id=SessionId("ses"), principal=LOCAL_PRINCIPAL, named=True, used_s=0.0),
        server=None,
        scope=SessionScope(session=SessionId("ses"), principal=LOCAL_PRINCIPAL),
        protocol_version="2025-06-18",
        client_params={"capabilities": {"elicitation": {}}},
    )


async def unheard(message: MutableMapping[str, Any]) -> None:
    await anyio.lowlevel.checkpoint()


async def asked(connection: Connection, reply: Reply, then: Callable[[], None]) -> str:
    """Ask a client that does not answer, do `then` once it is asked, and return how the question ended."""
    channel = RequestChannel(Voice(connection, {}, reply), None, cast("Views", None))
    errors: list[str] = []

    async def ask() -> None:
        with pytest.raises(MCPError) as caught:
            await channel.request("elicitation/create", {"message": "who?"})
        errors.append(caught.value.message)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not connection.questions:
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            then()
    assert connection.questions == {}
    assert list(reply.questions) == []
    return errors[0]


async def test_a_question_ends_with_its_connection() -> None:
    connection = connection_of()
    reply = Reply(unheard, can_stream=True, headers=[])
    assert await asked(connection, reply, connection.end) == "the client left before it answered"


async def test_a_question_ends_when_the_client_leaves_the_reply_it_came_on() -> None:
    reply = Reply(unheard, can_stream=True, headers=[])
    assert await asked(connection_of(), reply, reply.leave) == "the client left before it answered"


async def test_a_question_that_nobody_answers_ends_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "PATIENCE_S", 0.01)
    reply = Reply(unheard, can_stream=True, headers=[])
    assert await asked(connection_of(), reply, lambda: None) == "the client did not answer within 0.01 s"


async def test_a_stateless_client_s_question_ends_with_its_call() -> None:
    connection = connection_of()
    call = ParkedCall(connection, Voice(connection, {}, Reply(unheard, can_stream=True, headers=[])))
    errors: list[str] = []

    async def ask() -> None:
        with pytest.raises(MCPError) as caught:
            await call.ask("elicitation/create", None)
        errors.append(caught.value.message)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            call.close()
    assert errors == ["the call ended before elicitation/create was answered"]
