"""What a service has learned of its sessions is there in the next one, and only there for whom it was learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headstart.errors import HeadstartError
from headstart.ids import LOCAL_PRINCIPAL, PrincipalId, ResourceId, SessionId
from headstart.runtime.service import Service
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedServer, ScriptedTool

from .conftest import OpenService, RecordingChannel, call, scope, scripted

pytestmark = pytest.mark.anyio

NAMES = ("git", "excel")
SCRIPT = ScriptedServer(tools=(ScriptedTool(name="do"),))


async def lives_a_session(service: Service, name: str) -> None:
    """One session that calls both servers in turn, to its end."""
    for server in NAMES:
        await service.request(scope(name), ResourceId(server), "tools/call", call("do"), RecordingChannel())
    await service.close_session(SessionId(name), reason="left")
    await service.wait_idle()


def transitions(service: Service, principal: PrincipalId = LOCAL_PRINCIPAL) -> Any:
    return service.broker.export_learned(principal)["transitions"]


async def test_what_follows_what_is_known_after_a_restart_until_it_is_forgotten(
    open_service: OpenService, tmp_path: Path
) -> None:
    servers = [scripted(name, tmp_path) for name in NAMES]
    async with FakeBackend(programs={f"mcp-{name}": SCRIPT.program for name in NAMES}) as backend:
        async with open_service(*servers, backend=backend) as service:
            nothing = transitions(service)
            await lives_a_session(service, "one")
            learned = transitions(service)
        async with open_service(*servers, backend=backend) as service:
            remembered = transitions(service)
            of_somebody_else = transitions(service, PrincipalId("else"))
            await service.forget(None)
        async with open_service(*servers, backend=backend) as service:
            forgotten = transitions(service)
    assert learned != nothing
    assert remembered == learned
    assert of_somebody_else == nothing
    assert forgotten == nothing


async def test_to_forget_somebody_unknown_erases_nothing_of_others(open_service: OpenService, tmp_path: Path) -> None:
    servers = [scripted(name, tmp_path) for name in NAMES]
    async with FakeBackend(programs={f"mcp-{name}": SCRIPT.program for name in NAMES}) as backend:
        async with open_service(*servers, backend=backend) as service:
            await lives_a_session(service, "one")
            with pytest.raises(HeadstartError, match="nothing is known of a principal 'lokal'; nothing was erased"):
                await service.forget(PrincipalId("lokal"))
        async with open_service(*servers, backend=backend) as service:
            erased = await service.forget(LOCAL_PRINCIPAL)
    assert erased.learned == 1
    assert erased.traces == 1
    assert erased.journals >= 2


async def test_with_learning_off_a_session_leaves_nothing_for_the_next_service(
    open_service: OpenService, tmp_path: Path
) -> None:
    servers = [scripted(name, tmp_path) for name in NAMES]
    async with FakeBackend(programs={f"mcp-{name}": SCRIPT.program for name in NAMES}) as backend:
        async with open_service(*servers, backend=backend, learn=False) as service:
            nothing = transitions(service)
            await lives_a_session(service, "one")
        async with open_service(*servers, backend=backend, learn=False) as service:
            assert transitions(service) == nothing
