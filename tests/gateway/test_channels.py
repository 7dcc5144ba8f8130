"""A server's question to a client always ends: answered, given up, or after a while."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from mcp import MCPError
from mcp_types import INTERNAL_ERROR

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
    assert reply.questions == {}
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


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": -1, "message": "no"}, -1, "no"),
        ({"code": "x", "message": "no"}, INTERNAL_ERROR, "no"),
        ({"code": 1.5}, INTERNAL_ERROR, "the client gave no message"),
        ({"code": [1], "message": {}}, INTERNAL_ERROR, "the client gave no message"),
        ("no", INTERNAL_ERROR, "no"),
    ],
)
async def test_a_clients_error_of_the_wrong_shape_is_a_refusal_all_the_same(
    error: object, code: int, message: str
) -> None:
    connection = connection_of()
    channel = RequestChannel(
        Voice(connection, {}, Reply(unheard, can_stream=True, headers=[])), None, cast("Views", None)
    )

    async def refuse() -> None:
        while not connection.questions:
            await anyio.lowlevel.checkpoint()
        for question in connection.questions.values():
            question.answer({"jsonrpc": "2.0", "id": "q", "error": error})

    told: list[tuple[int, str]] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse)
            with pytest.raises(MCPError) as caught:
                await channel.request("elicitation/create", {})
            told.append((caught.value.code, caught.value.message))
    assert told == [(code, message)]


async def test_questions_that_a_server_takes_back_leave_nothing_with_a_parked_call() -> None:
    connection = connection_of()
    call = ParkedCall(connection, Voice(connection, {}, Reply(unheard, can_stream=True, headers=[])))
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await call.ask("elicitation/create", None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.ask, "elicitation/create", {"n": 4})
        with anyio.fail_after(5):
            assert await call.outcome() == {"q4": {"method": "elicitation/create", "params": {"n": 4}}}
        tasks.cancel_scope.cancel()
