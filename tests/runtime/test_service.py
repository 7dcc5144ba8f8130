"""Calls, lists and sessions, over real MCP servers in real processes."""

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.exceptions import MCPError

from headstart.backends.contract import (
    Capabilities,
    FileStores,
    Identity,
    Leftovers,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.process import open_process_backend
from headstart.clock import SystemClock
from headstart.config.model import PoolMode, PoolSettings
from headstart.core.events import Event, Instruction, SandboxExited, SandboxStopped
from headstart.core.stream import GenerationStarted, TextArrived, ToolCallOpened
from headstart.errors import SandboxLost
from headstart.ids import LOCAL_PRINCIPAL, GenerationId, PrincipalId, ResourceId
from headstart.runtime.contract import Catalogue, JsonObject
from headstart.runtime.service import Service
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedCall, ScriptedServer, ScriptedTool, text

from .conftest import NOTES, OpenService, RecordingChannel, call, scope, scripted, stdio_server, text_of

pytestmark = pytest.mark.anyio


class CountingBackend:
    """The process backend, counting its starts."""

    name = "counting"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = AsyncExitStack()
        self.started = 0

    async def __aenter__(self) -> Self:
        self._backend = await self._stack.enter_async_context(open_process_backend(self._folder))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def capabilities(self) -> Capabilities:
        return self._backend.capabilities

    @property
    def stores(self) -> FileStores:
        return self._backend.stores

    async def prepare(self, template: Template) -> Prepared:
        return await self._backend.prepare(template)

    async def start(self, prepared: Prepared, identity: Identity, *, background: bool = False) -> RunningSandbox:
        self.started += 1
        return await self._backend.start(prepared, identity, background=background)

    async def leftovers(self) -> Leftovers:
        return await self._backend.leftovers()


async def test_a_call_is_answered_by_the_servers_own_sandbox(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        result = await service.request(scope(), NOTES, "tools/call", call("add_note", text="first"), RecordingChannel())
    assert text_of(result) == "1 notes"


async def ask(service: Service, tool: str, *, session: str = "ses", **arguments: object) -> JsonObject:
    return await service.request(scope(session), NOTES, "tools/call", call(tool, **arguments), RecordingChannel())


async def test_every_session_has_its_own_instance(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", session="one", text="of one")
        assert text_of(await ask(service, "read_notes", session="two")) == ""
        assert text_of(await ask(service, "read_notes", session="one")) == "of one"


async def test_a_shared_server_has_one_instance_for_all_sessions(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py", shared=True)) as service:
        await ask(service, "add_note", session="one", text="of one")
        assert text_of(await ask(service, "read_notes", session="two")) == "of one"


async def test_lists_are_learned_once_and_kept_over_a_restart(open_service: OpenService, tmp_path: Path) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        assert not service.servers(LOCAL_PRINCIPAL)[0].learned
        first = await service.catalogue(NOTES, scope())
    async with (
        CountingBackend(tmp_path / "second") as backend,
        open_service(stdio_server("notes.py"), backend=backend) as service,
    ):
        assert service.servers(LOCAL_PRINCIPAL)[0].learned
        again = await service.catalogue(NOTES, scope())
        assert backend.started == 0
    assert again == first
    assert [tool["name"] for tool in first.tools][:2] == ["add_note", "read_notes"]
    assert first.initialize["instructions"] == "Keeps notes while it runs."


async def test_learning_tells_its_progress(open_service: OpenService) -> None:
    told: list[tuple[int, int, str]] = []

    async def progress(*, done: int, total: int, message: str) -> None:
        told.append((done, total, message))

    async with open_service(stdio_server("notes.py")) as service:
        await service.catalogue(NOTES, scope(), progress=progress)
    assert [(done, total) for done, total, _ in told] == [(0, 1), (1, 1)]
    assert told[0][2] == "notes is being learned"


async def test_two_that_ask_for_unknown_lists_wait_for_one_learning(open_service: OpenService, tmp_path: Path) -> None:
    async with (
        CountingBackend(tmp_path / "backend") as backend,
        open_service(stdio_server("notes.py"), backend=backend) as service,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.catalogue, NOTES, scope("one"))
            tasks.start_soon(service.catalogue, NOTES, scope("two"))
        assert backend.started == 1


async def test_two_servers_with_one_launch_spec_are_learned_once_and_listed_each_by_its_name(
    open_service: OpenService, tmp_path: Path
) -> None:
    twins = [replace(scripted("twins", tmp_path), name=ResourceId(name)) for name in ("one", "two")]
    script = ScriptedServer(tools=(ScriptedTool(name="do"),))
    async with FakeBackend(programs={"mcp-twins": script.program}) as backend:
        for _ in ("at first", "after a restart"):
            found: list[Catalogue] = []
            async with open_service(*twins, backend=backend) as service, anyio.create_task_group() as tasks:

                async def look(name: ResourceId, service: Service = service, found: list[Catalogue] = found) -> None:
                    found.append(await service.catalogue(name, scope()))

                for twin in twins:
                    tasks.start_soon(look, twin.name)
            assert {catalogue.server for catalogue in found} == {"one", "two"}
        assert len(backend.starts) == 1


async def test_progress_reaches_the_client_in_order_and_with_its_own_token(open_service: OpenService) -> None:
    client = RecordingChannel()
    params = {**call("count_slowly", to=3), "_meta": {"progressToken": "mine"}}
    async with open_service(stdio_server("notes.py")) as service:
        result = await service.request(scope(), NOTES, "tools/call", params, client)
    assert text_of(result) == "3"
    assert [params for _, params in client.told] == [
        {"progressToken": "mine", "progress": n, "total": 3} for n in range(3)
    ]


async def test_a_server_may_ask_the_clients_model(open_service: OpenService) -> None:
    answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "42"}}
    client = RecordingChannel(answers={"sampling/createMessage": answer})
    async with open_service(stdio_server("notes.py")) as service:
        result = await service.request(scope(), NOTES, "tools/call", call("ask_model", question="?"), client)
    assert text_of(result) == "42"


async def test_a_tool_that_appears_is_seen_by_its_session_alone(open_service: OpenService) -> None:
    listener = RecordingChannel()
    async with open_service(stdio_server("notes.py")) as service:
        before = await service.catalogue(NOTES, scope())
        service.listen(scope().session, listener)
        await ask(service, "grow")
        await listener.wait_for("notifications/tools/list_changed")
        mine = await service.catalogue(NOTES, scope())
        others = await service.catalogue(NOTES, scope("other"))
    assert [tool["name"] for tool in mine.tools] == [*(tool["name"] for tool in before.tools), "grown"]
    assert others == before


async def test_a_servers_own_error_is_passed_on_as_it_is(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        with pytest.raises(MCPError) as caught:
            await service.request(scope(), NOTES, "no/such/method", {}, RecordingChannel())
    assert caught.value.code == -32601


async def test_resources_are_read_through_the_session(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        await ask(service, "add_note", text="kept")
        read = await service.request(scope(), NOTES, "resources/read", {"uri": "notes://all"}, RecordingChannel())
    assert read["contents"][0]["text"] == "kept"


async def test_a_session_that_had_state_is_told_of_its_loss_after_a_restart(open_service: OpenService) -> None:
    server = stdio_server("notes.py", trust_annotations=True)
    async with open_service(server) as service:
        await service.catalogue(NOTES, scope())
        await ask(service, "add_note", text="lost")
    async with open_service(server) as service:
        with pytest.raises(SandboxLost, match="notes"):
            await ask(service, "read_notes")
        assert text_of(await ask(service, "read_notes")) == ""
    async with open_service(server) as service:
        assert text_of(await ask(service, "read_notes")) == ""  # it had nothing any more that could be lost


async def test_a_session_that_only_read_is_not_bothered_by_a_restart(open_service: OpenService) -> None:
    server = stdio_server("notes.py", trust_annotations=True)
    async with open_service(server) as service:
        await service.catalogue(NOTES, scope())
        await ask(service, "read_notes")
    async with open_service(server) as service:
        assert text_of(await ask(service, "read_notes")) == ""


async def test_a_session_whose_sandbox_was_only_prepared_is_not_bothered_by_a_restart(
    open_service: OpenService,
) -> None:
    server = stdio_server("notes.py")
    async with open_service(server) as service:
        await service.catalogue(NOTES, scope())
    reserved = PoolSettings(mode=PoolMode.RESERVED, zygotes=False)
    async with open_service(server, pool=reserved) as service:
        service.open_session(scope())
        with anyio.fail_after(20):
            while not any(one.ready for one in (await service.statistics()).sandboxes):
                await anyio.lowlevel.checkpoint()
    async with open_service(server, pool=reserved) as service:
        assert text_of(await ask(service, "read_notes")) == ""


async def test_a_loss_is_told_by_the_server_that_lost_it_and_once_however_often_the_service_restarts(
    open_service: OpenService,
) -> None:
    used, unused = stdio_server("notes.py"), stdio_server("notes.py", name=ResourceId("other"))
    async with open_service(used, unused) as service:
        await ask(service, "add_note", text="lost")
    async with open_service(used, unused) as service:  # nobody asks meanwhile
        service.open_session(scope())
    async with open_service(used, unused) as service:
        params = call("read_notes")
        other = await service.request(scope(), ResourceId("other"), "tools/call", params, RecordingChannel())
        assert text_of(other) == ""
        with pytest.raises(SandboxLost, match="notes"):
            await ask(service, "read_notes")
    async with open_service(used) as service:
        await ask(service, "read_notes")


async def test_closing_a_session_stops_its_sandboxes(open_service: OpenService, tmp_path: Path) -> None:
    async with (
        CountingBackend(tmp_path / "backend") as backend,
        open_service(stdio_server("notes.py"), backend=backend) as service,
    ):
        await ask(service, "add_note", text="x")
        await service.close_session(scope().session, reason="the client left")
        await service.close_session(scope().session, reason="again")
        with anyio.fail_after(10):
            await service.wait_idle()
        assert (await backend.leftovers()).processes == 0


async def test_a_thousand_sessions_that_are_abandoned_leave_nothing(open_service: OpenService) -> None:
    async with open_service(stdio_server("notes.py")) as service:
        for number in range(1_000):
            service.open_session(scope(f"ses-{number}"))
        for number in range(1_000):
            await service.close_session(scope(f"ses-{number}").session, reason="idle")
        found = await service.statistics()
    assert (found.sessions, len(found.sandboxes)) == (0, 0)


@pytest.mark.parametrize("learned", ["notes", "twin"])
async def test_what_a_model_begins_to_call_is_warm_before_it_calls(
    open_service: OpenService, tmp_path: Path, learned: str
) -> None:
    notes = scripted("notes", tmp_path)
    twin = replace(notes, name=ResourceId("twin"))
    script = ScriptedServer(tools=(ScriptedTool(name="read"),))
    generation = GenerationId("gen_1")
    clock = SystemClock()
    pool = PoolSettings(mode=PoolMode.PREDICTIVE, zygotes=False)
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(notes, twin, backend=backend, pool=pool) as service,
    ):
        await service.catalogue(ResourceId(learned), scope())
        service.open_session(scope())
        started = GenerationStarted(
            at_s=clock.monotonic_s(), generation=generation, principal=LOCAL_PRINCIPAL, session=scope().session
        )
        service.observe(started)
        opened = ToolCallOpened(at_s=clock.monotonic_s(), generation=generation, index=0, tool="notes__read")
        service.observe(opened)
        with anyio.fail_after(5):
            while not any(one.ready for one in (await service.statistics()).sandboxes):
                await anyio.lowlevel.checkpoint()
        before = len(backend.starts)
        await service.request(scope(), NOTES, "tools/call", call("read"), RecordingChannel())
        trace = await service.trace("ses")
        assert len(backend.starts) == before
    assert trace is not None
    assert [(one.predictor, one.won) for one in trace.preparations] == [("tool-name", True)]
    assert (trace.summary.cold_calls, trace.summary.waited_s) == (0, 0.0)


BURST_S = 0.4
LATE_S = 0.5
"""How much a look may come too late on a machine that has other things to do."""


async def _stands_still(service: Service) -> None:
    with anyio.fail_after(60):
        while not any(one.stands_still for one in (await service.statistics()).sandboxes):
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("called", [True, False])
async def test_a_bet_on_a_server_that_needs_more_cpu_than_may_be_wasted_stands_still_until_it_is_called(
    open_service: OpenService, called: bool
) -> None:
    pool = PoolSettings(mode=PoolMode.PREDICTIVE, zygotes=False, waste_cpu_share=0.0, waste_cpu_burst_s=BURST_S)
    generation = GenerationId("gen_1")
    async with open_service(stdio_server("heavy.py"), pool=pool) as service:
        await service.catalogue(NOTES, scope())
        service.open_session(scope())
        now_s, user = SystemClock().monotonic_s(), scope().session
        service.observe(GenerationStarted(at_s=now_s, generation=generation, principal=LOCAL_PRINCIPAL, session=user))
        service.observe(ToolCallOpened(at_s=now_s, generation=generation, index=0, tool="read"))
        await _stands_still(service)
        [held] = (await service.statistics()).sandboxes
        assert not held.ready
        assert held.cpu_s <= BURST_S + LATE_S
        if called:
            answer = await service.request(scope(), NOTES, "tools/call", call("read"), RecordingChannel())
            assert text_of(answer) == "hello"
        await service.close_session(scope().session, reason="over")
        with anyio.fail_after(60):
            while (await service.statistics()).sandboxes:
                await anyio.lowlevel.checkpoint()
        trace = await service.trace("ses")
        assert trace is not None
        [preparation] = trace.preparations
    assert preparation.won is called
    assert 0.0 < preparation.wasted_cpu_s <= BURST_S + LATE_S or called


async def test_a_shared_server_is_shared_within_a_principal_only(open_service: OpenService, tmp_path: Path) -> None:
    script = ScriptedServer(tools=(ScriptedTool(name="read"),))
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(scripted("notes", tmp_path, shared=True), backend=backend) as service,
    ):
        for name, principal in (("a1", "ann"), ("a2", "ann"), ("b1", "bob")):
            asker = scope(name, principal=PrincipalId(principal))
            await service.request(asker, NOTES, "tools/call", call("read"), RecordingChannel())
        users = {(one.principal, one.sessions) for one in (await service.statistics()).sandboxes}
    assert users == {("ann", ("a1", "a2")), ("bob", ("b1",))}


async def test_what_a_broken_stream_of_events_does_to_the_broker_never_reaches_the_proxy(
    open_service: OpenService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        FakeBackend() as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):

        def broken(event: object) -> list[Instruction]:
            raise RuntimeError("a bug")

        handle, service.broker.handle = service.broker.handle, broken  # pyright: ignore[reportAttributeAccessIssue]
        service.observe(TextArrived(at_s=1.0, generation=GenerationId("gen_1"), text="x"))
        service.broker.handle = handle  # pyright: ignore[reportAttributeAccessIssue]
        assert (await service.statistics()).events_broken == 1
    assert "the broker could not handle TextArrived" in caplog.text


async def test_the_broker_s_trouble_with_a_sandbox_s_end_does_not_end_the_service(
    open_service: OpenService, tmp_path: Path
) -> None:
    script = ScriptedServer(tools=(ScriptedTool(name="read"),))
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        await ask(service, "read")
        handle = service.broker.handle

        def broken(event: Event) -> list[Instruction]:
            match event:
                case SandboxExited() | SandboxStopped():
                    raise RuntimeError("a bug")
                case _:
                    return handle(event)

        service.broker.handle = broken  # pyright: ignore[reportAttributeAccessIssue]
        await service.close_session(scope().session, reason="over")
        with anyio.fail_after(5):
            await service.wait_idle()
        assert text_of(await ask(service, "read", session="another")) == "{}"
        assert (await service.statistics()).events_broken == 1
        service.broker.handle = handle  # pyright: ignore[reportAttributeAccessIssue]


class LostChannel(RecordingChannel):
    """A client whose way back fails in a way nobody foresaw."""

    async def progress(self, params: JsonObject) -> None:
        raise OSError("the way back is broken")


async def test_a_call_that_fails_in_an_unforeseen_way_gives_its_sandbox_back(
    open_service: OpenService, tmp_path: Path
) -> None:
    async def tell(arguments: JsonObject, call: ScriptedCall) -> JsonObject:
        await call.progress(1)
        return text("done")

    script = ScriptedServer(tools=(ScriptedTool(name="tell", handler=tell),))
    async with (
        FakeBackend(programs={"mcp-notes": script.program}) as backend,
        open_service(scripted("notes", tmp_path), backend=backend) as service,
    ):
        params = {**call("tell"), "_meta": {"progressToken": "mine"}}
        with pytest.raises(OSError, match="the way back is broken"):
            await service.request(scope(), NOTES, "tools/call", params, LostChannel())
        await anyio.lowlevel.checkpoint()
        assert service.broker.statistics(0.0).pool.calls == 0


async def test_what_hosted_sandboxes_use_counts_in_the_pool_s_budget_and_is_told_when_it_has_changed(
    open_service: OpenService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headstart.runtime.service.HOUSEKEEPING_EVERY_S", 0.001)
    used = [300_000_000]
    asked = anyio.Event()

    async def memory_bytes() -> int:
        asked.set()
        return used[0]

    def counted(service: Service) -> int:
        return service.broker.statistics(SystemClock().monotonic_s()).pool.hosted_bytes

    async def until_counted(service: Service, expected: int) -> None:
        with anyio.fail_after(10):
            while counted(service) != expected:
                await anyio.lowlevel.checkpoint()

    async with open_service() as service:
        service.count_hosted(memory_bytes)
        await until_counted(service, 300_000_000)
        events = (await service.statistics()).events
        used[0] += 1_000_000
        for _ in range(5):
            asked = anyio.Event()
            with anyio.fail_after(10):
                await asked.wait()
        assert (await service.statistics()).events == events, "little is not worth a line in the journal"
        used[0] = 0
        await until_counted(service, 0)
