"""One sandbox's life, on a backend that does what the test says."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from headstart.backends.contract import Command, Preload, Prepared, Template, Usage
from headstart.clock import SystemClock
from headstart.config.model import WarmupCall
from headstart.core.events import (
    Event,
    SandboxBecameReady,
    SandboxExited,
    SandboxMeasured,
    SandboxStartFailed,
    SandboxStopped,
)
from headstart.errors import ServerUnavailable
from headstart.ids import SandboxId
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.supervisor import Order, Supervised
from headstart.testing.fake_backend import FakeBackend
from headstart.testing.fake_mcp import ScriptedCall, ScriptedServer, ScriptedTool, text

from .conftest import call, scripted

pytestmark = pytest.mark.anyio

SBX = SandboxId("sbx_1")


class Nobody:
    def notified(self, method: str, params: JsonObject | None) -> None: ...

    def fallback_channel(self) -> ClientChannel | None:
        return None


@dataclass
class Stage:
    backend: FakeBackend
    script: ScriptedServer
    tasks: TaskGroup
    folder: Path
    reports: list[Event] = field(default_factory=list[Event])
    changed: anyio.Event = field(default_factory=anyio.Event)

    def supervise(self, sandbox: SandboxId = SBX, *, server: dict[str, Any] | None = None, **more: Any) -> Supervised:
        """Begin a sandbox's life."""
        settings = scripted("notes", self.folder, **(server or {}))
        template = Template(name="notes", command=Command(argv=(str(settings.command),)))

        async def prepared() -> Prepared:
            return await self.backend.prepare(template)

        order = Order(sandbox=sandbox, server=settings, prepared=prepared, owner=Nobody())
        supervised = Supervised(
            replace(order, **more),
            backend=self.backend,  # pyright: ignore[reportArgumentType]  its name is a constant
            clock=SystemClock(),
            report=self._report,
        )
        self.tasks.start_soon(self._live, supervised)
        return supervised

    async def _live(self, supervised: Supervised) -> None:
        await supervised.live()
        self._report(supervised.end())

    def _report(self, event: Event) -> None:
        self.reports.append(event)
        self.changed.set()
        self.changed = anyio.Event()

    async def until(self, kind: type[Event], count: int = 1) -> Any:
        """Return the `count`-th report of a kind."""
        with anyio.fail_after(5):
            while len(found := [one for one in self.reports if isinstance(one, kind)]) < count:
                await self.changed.wait()
        return found[count - 1]


OpenStage = Callable[[], Any]


@pytest.fixture
def stage(tmp_path: Path) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Stage]:
        script = ScriptedServer(tools=(ScriptedTool(name="read", handler=lambda _arguments, _call: text("hi")),))
        async with (
            FakeBackend(programs={"mcp-notes": script.program}, zygotes=True) as backend,
            anyio.create_task_group() as tasks,
        ):
            yield Stage(backend, script, tasks, tmp_path)
            tasks.cancel_scope.cancel()

    return opened


async def test_ready_means_that_handshake_lists_and_warm_up_call_are_answered(stage: OpenStage) -> None:
    async with stage() as it:
        it.backend.set_usage("notes", Usage(memory_bytes=5_000, cpu_s=0.25, processes=1))
        it.supervise(server={"warmup": WarmupCall(tool="read")})
        ready: SandboxBecameReady = await it.until(SandboxBecameReady)
        asked = [message["method"] for message in it.script.received]
    assert asked == ["initialize", "notifications/initialized", "tools/list", "tools/call"]
    assert (ready.sandbox, ready.memory_bytes, ready.cpu_s) == (SBX, 5_000, 0.25)


@pytest.mark.parametrize("step", ["start", "attach"])
async def test_a_stop_while_it_or_its_command_is_being_started_ends_as_stopped_alone(
    stage: OpenStage, step: str
) -> None:
    async with stage() as it:
        hold = it.backend.hold(step, "notes")
        supervised = it.supervise()
        await hold.wait_reached()
        supervised.stop()
        await it.until(SandboxStopped)
        assert [type(report) for report in it.reports] == [SandboxStopped]
        assert it.backend.live == frozenset()


async def test_a_stop_while_it_shakes_hands_ends_as_stopped_alone(stage: OpenStage) -> None:
    async with stage() as it:
        it.script.answers_handshake = False
        supervised = it.supervise()
        with anyio.fail_after(5):
            while not it.script.received:
                await anyio.lowlevel.checkpoint()
        supervised.stop()
        await it.until(SandboxStopped)
        assert [type(report) for report in it.reports] == [SandboxStopped]
        assert it.backend.live == frozenset()


async def test_a_sandbox_that_never_starts_its_command_is_a_start_that_failed(stage: OpenStage) -> None:
    async with stage() as it:
        it.backend.hold("attach", "notes")
        it.supervise(server={"start_timeout_s": 0.05})
        failed: SandboxStartFailed = await it.until(SandboxStartFailed)
        assert it.backend.live == frozenset()
    assert failed.message == "notes: its sandbox did not start the command within 0.05 s"


async def test_a_stop_of_a_ready_one_leaves_nothing(stage: OpenStage) -> None:
    async with stage() as it:
        supervised = it.supervise()
        await it.until(SandboxBecameReady)
        supervised.stop()
        await it.until(SandboxStopped)
        assert it.backend.live == frozenset()
        with pytest.raises(ServerUnavailable, match="notes: its sandbox has been stopped"):
            await supervised.request("ping", None, None)


async def test_a_server_that_dies_idle_is_reported_with_how(stage: OpenStage) -> None:
    async with stage() as it:
        it.supervise()
        await it.until(SandboxBecameReady)
        it.backend.crash(SBX, signal_number=11)
        exited: SandboxExited = await it.until(SandboxExited)
        assert "notes: it was killed by signal 11" in exited.message
        assert it.backend.live == frozenset()


async def test_a_server_over_its_memory_limit_says_so_with_the_key_to_raise(stage: OpenStage) -> None:
    async with stage() as it:
        supervised = it.supervise()
        await it.until(SandboxBecameReady)
        it.backend.crash(SBX, out_of_memory=True)
        exited: SandboxExited = await it.until(SandboxExited)
        assert "killed because its memory limit was reached" in exited.message
        assert supervised.failure is not None
        assert supervised.failure.hint == "raise mcpServers.notes.headstart.memory_mb"


async def test_a_backend_that_fails_is_a_start_that_failed(stage: OpenStage) -> None:
    async with stage() as it:
        it.backend.fail_start("notes", message="no namespaces left")
        it.supervise()
        failed: SandboxStartFailed = await it.until(SandboxStartFailed)
        assert failed.message == "notes: no sandbox could be started: no namespaces left"


async def test_a_bug_in_one_supervisor_ends_that_sandbox_alone(
    stage: OpenStage, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> Prepared:
        raise RuntimeError("a bug")

    async with stage() as it:
        it.supervise(SandboxId("sbx_broken"), prepared=broken)
        it.supervise()
        failed: SandboxStartFailed = await it.until(SandboxStartFailed)
        await it.until(SandboxBecameReady)
        assert failed.sandbox == "sbx_broken"
        assert "RuntimeError('a bug')" in failed.message
    assert "its supervisor failed" in caplog.text


async def test_a_start_that_is_now_waited_for_gets_its_full_share(stage: OpenStage) -> None:
    async with stage() as it:
        hold = it.backend.hold("attach", "notes")
        supervised = it.supervise(background=True)
        await hold.wait_reached()
        supervised.raise_priority()
        hold.release()
        await it.until(SandboxBecameReady)
        assert it.backend.starts[0].background
        with anyio.fail_after(5):
            while it.backend.raised != [SBX]:
                await anyio.lowlevel.checkpoint()


async def test_two_starts_of_one_package_wait_for_each_other(stage: OpenStage) -> None:
    lock = anyio.Lock()
    async with stage() as it:
        hold = it.backend.hold("attach", "notes")
        for name in ("sbx_1", "sbx_2"):
            it.supervise(SandboxId(name), package_lock=lambda: lock)
        await hold.wait_reached()
        assert len(it.backend.starts) == 1
        hold.release()
        await it.until(SandboxBecameReady, 2)
        assert not lock.locked()


async def test_a_failed_start_lets_the_next_one_of_its_package_go(stage: OpenStage) -> None:
    lock = anyio.Lock()
    async with stage() as it:
        it.backend.fail_start("notes")
        for name in ("sbx_1", "sbx_2"):
            it.supervise(SandboxId(name), package_lock=lambda: lock)
        await it.until(SandboxStartFailed)
        await it.until(SandboxBecameReady)


async def test_a_zygote_that_cannot_be_forked_is_replaced_by_a_cold_start(stage: OpenStage) -> None:
    told: list[str] = []
    async with stage() as it:
        command = Command(argv=(str(it.folder / "mcp-notes"),))
        preload = Preload(interpreter="/usr/bin/python3", modules=(), entry=("-m", "x"))

        async def zygote() -> Prepared:
            return await it.backend.prepare(Template(name="zygote", command=command, preload=preload))

        async def cold(why: str) -> Prepared:
            told.append(why)
            return await it.backend.prepare(Template(name="notes", command=command))

        it.backend.fail_start("zygote", message="the zygote has died")
        it.supervise(prepared=zygote, cold_instead=cold)
        await it.until(SandboxBecameReady)
        assert [start.form.value for start in it.backend.starts] == ["zygote", "cold"]
    assert told == ["the zygote has died"]


async def test_a_call_that_is_open_when_the_server_goes_fails_with_how_it_ended(stage: OpenStage) -> None:
    async def leave(_arguments: JsonObject, asked: ScriptedCall) -> JsonObject:
        return await asked.exit(5)

    async with stage() as it:
        it.script.tools.append(ScriptedTool(name="leave", handler=leave))
        supervised = it.supervise()
        await it.until(SandboxBecameReady)
        with pytest.raises(ServerUnavailable, match="it exited with code 5 during the call"):
            await supervised.request("tools/call", call("leave"), None)


# ---------------------------------------------------------------- what it may use


def _has_used(it: Stage, cpu_s: float) -> None:
    it.backend.set_usage("notes", Usage(memory_bytes=5_000, cpu_s=cpu_s, processes=1))


async def test_a_bet_that_has_used_what_it_may_stands_still_and_asks_until_somebody_needs_it(stage: OpenStage) -> None:
    async with stage() as it:
        it.script.answers_handshake = False
        _has_used(it, 1.0)
        supervised = it.supervise(cpu_limit_s=1.0)
        asking: SandboxMeasured = await it.until(SandboxMeasured, 2)
        assert (asking.sandbox, asking.cpu_s) == (SBX, 1.0)
        assert supervised.stands_still
        supervised.limit_cpu(None)
        with anyio.fail_after(5):
            while supervised.stands_still:
                await anyio.lowlevel.checkpoint()


async def test_the_time_that_it_stands_still_is_no_part_of_its_start(stage: OpenStage) -> None:
    async with stage() as it:
        _has_used(it, 1.0)
        supervised = it.supervise(server={"start_timeout_s": 0.5}, cpu_limit_s=0.5)
        await it.until(SandboxMeasured, 3)  # a second and more
        assert not [one for one in it.reports if isinstance(one, SandboxStartFailed)]
        supervised.limit_cpu(None)
        ready: SandboxBecameReady = await it.until(SandboxBecameReady)
        assert ready.start_s < 0.9


async def test_a_bet_that_stands_still_is_ended_without_being_asked(stage: OpenStage) -> None:
    async with stage() as it:
        it.script.answers_handshake = False
        _has_used(it, 1.0)
        supervised = it.supervise(cpu_limit_s=1.0)
        await it.until(SandboxMeasured, 2)
        supervised.stop()
        stopped: SandboxStopped = await it.until(SandboxStopped)
        assert stopped.cpu_s == 1.0
        assert it.backend.live == frozenset()


async def test_who_keeps_a_package_from_others_is_not_held_still(stage: OpenStage) -> None:
    async with stage() as it, anyio.create_task_group() as tasks:
        lock = anyio.Lock()
        it.script.answers_handshake = False
        _has_used(it, 1.0)
        supervised = it.supervise(cpu_limit_s=1.0, package_lock=lambda: lock)
        await it.until(SandboxMeasured, 2)
        assert supervised.stands_still
        tasks.start_soon(lock.acquire)
        with anyio.fail_after(5):
            while supervised.stands_still:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def test_a_bet_that_is_stopped_while_it_is_being_held_is_ended_without_being_asked(stage: OpenStage) -> None:
    async with stage() as it:
        it.script.answers_handshake = False
        _has_used(it, 1.0)
        hold = it.backend.hold("pause", "notes")
        supervised = it.supervise(cpu_limit_s=1.0)
        await hold.wait_reached()
        supervised.stop()
        await it.until(SandboxStopped)
        assert it.backend.live == frozenset()
