"""The fake keeps the contract's promises, so that what is tested against it holds elsewhere."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from headstart.backends.contract import (
    ByteStreams,
    Command,
    ExitStatus,
    Identity,
    Leftovers,
    Preload,
    Prepared,
    Template,
    Usage,
)
from headstart.core.events import PrepareForm
from headstart.errors import BackendError, SandboxPaused
from headstart.ids import SandboxId
from headstart.testing.fake_backend import FakeBackend, FakeSandbox, ProcessContext
from headstart.testing.fake_mcp import RpcError, ScriptedCall, ScriptedServer, ScriptedTool, text

pytestmark = pytest.mark.anyio


async def cat(process: ProcessContext) -> int:
    async for chunk in process.stdin:
        await process.stdout.send(chunk)
    return 0


async def env(process: ProcessContext) -> int:
    await process.stdout.send(json.dumps(dict(process.env)).encode())
    return 0


async def fail(process: ProcessContext) -> int:
    raise RuntimeError("broken on purpose")


async def hang(process: ProcessContext) -> int:
    await anyio.sleep_forever()
    return 0


async def stubborn(process: ProcessContext) -> int:
    process.handles_sigterm = True
    await anyio.sleep_forever()
    return 0


async def flood(process: ProcessContext) -> int:
    for _ in range(40):
        await process.stdout.send(b"x" * 65_536)
    return 0


PROGRAMS = {"cat": cat, "env": env, "fail": fail, "hang": hang, "stubborn": stubborn, "flood": flood}


def template(program: str = "cat", **changes: Any) -> Template:
    return Template(name=program, command=Command(argv=(f"/usr/bin/{program}",), env={"A": "1"}), **changes)


async def started(backend: FakeBackend, program: str = "cat", name: str = "sbx_1") -> FakeSandbox:
    prepared = await backend.prepare(template(program))
    return await backend.start(prepared, Identity(sandbox=SandboxId(name), env={"B": "2"}))


async def read_all(streams: ByteStreams) -> bytes:
    return b"".join([chunk async for chunk in streams.stdout])


async def test_attach_gives_the_entry_command_its_pipes() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend)
        async with sandbox.attach() as streams:
            await streams.stdin.send(b"hello ")
            await streams.stdin.send(b"you")
            await streams.stdin.aclose()
            assert await read_all(streams) == b"hello you"
            assert await streams.wait() == ExitStatus(code=0)


async def test_the_entry_command_starts_once_per_sandbox() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend)
        async with sandbox.attach():
            pass
        with pytest.raises(BackendError, match="once"):
            async with sandbox.attach():
                pass


async def test_a_failing_command_is_data() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        done = await (await started(backend)).run(Command(argv=("fail",)))
        assert done.status == ExitStatus(code=1)
        assert b"broken on purpose" in done.stderr


async def test_a_failing_sandbox_raises() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend)
        with pytest.raises(BackendError, match="not found"):
            await sandbox.run(Command(argv=("no-such-program",)))
        backend.lose(sandbox.id)
        with pytest.raises(BackendError, match="is gone"):
            await sandbox.run(Command(argv=("cat",)))


async def test_the_environment_is_the_commands_and_the_identitys() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        done = await (await started(backend)).run(Command(argv=("env",), env={"C": "3"}))
        assert json.loads(done.stdout) == {"B": "2", "C": "3"}
        assert backend.starts[0].env == {"A": "1", "B": "2"}


async def test_a_command_that_takes_too_long_is_killed() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend)
        with pytest.raises(TimeoutError):
            await sandbox.run(Command(argv=("hang",)), timeout_s=0.01)
        assert (await sandbox.usage()).processes == 0


async def test_long_output_is_cut_and_said_so() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        done = await (await started(backend)).run(Command(argv=("flood",)))
        assert (len(done.stdout), done.truncated) == (1 << 20, True)


async def test_an_unread_flood_waits_without_growing() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend, "flood")
        async with sandbox.attach() as streams:
            with anyio.move_on_after(0.05):
                await streams.wait()
            assert (await sandbox.usage()).processes == 1


@pytest.mark.parametrize(("program", "signal"), [("cat", None), ("hang", 15), ("stubborn", 9)])
async def test_leaving_attach_asks_ever_less_politely(program: str, signal: int | None) -> None:
    async with FakeBackend(PROGRAMS, grace_s=0.02) as backend:
        sandbox = await started(backend, program)
        async with sandbox.attach() as streams:
            await anyio.lowlevel.checkpoint()
        assert (await streams.wait()).signal == signal


async def test_held_starts_wait_for_their_release() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        hold = backend.hold("start", "cat")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(started, backend)
            with anyio.fail_after(5):
                await hold.wait_reached()
            assert backend.live == frozenset()
            assert [start.sandbox for start in backend.starts] == ["sbx_1"]
            hold.release()
        assert backend.live == {"sbx_1"}


async def test_failures_come_as_often_as_asked_for() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        backend.fail_start("cat", times=2, message="no more pids")
        for _ in range(2):
            with pytest.raises(BackendError, match="no more pids"):
                await started(backend)
        assert (await started(backend)).id == "sbx_1"
        backend.fail_prepare("cat")
        with pytest.raises(BackendError):
            await backend.prepare(template())


async def test_a_crash_shows_as_the_signal_it_was() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend, "hang")
        async with sandbox.attach() as streams:
            backend.crash(sandbox.id, out_of_memory=True)
            with anyio.fail_after(5):
                assert await streams.wait() == ExitStatus(signal=9, out_of_memory=True)
                assert await read_all(streams) == b""


async def test_closing_is_idempotent_and_completes_under_cancellation() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend, "stubborn")
        async with sandbox.attach():
            with anyio.CancelScope() as scope:
                scope.cancel()
                await sandbox.aclose()
            assert backend.live == frozenset()
            await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_leaving_the_backend_ends_what_is_still_running() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend, "stubborn")
        attached = sandbox.attach()
        streams = await attached.__aenter__()
    assert (await streams.wait()).signal == 9
    await attached.__aexit__(None, None, None)
    assert await backend.leftovers() == Leftovers()


async def test_a_preload_makes_a_zygote_where_the_backend_can() -> None:
    preload = Preload(interpreter="/usr/bin/python3", modules=("json",), entry=("-m", "x"))
    forms: list[Prepared] = []
    for zygotes in (True, False):
        async with FakeBackend(PROGRAMS, zygotes=zygotes, preload_cpu_s=0.25) as backend:
            forms.append(await backend.prepare(template(preload=preload)))
    assert [(p.form, p.preload_cpu_s) for p in forms] == [(PrepareForm.ZYGOTE, 0.25), (PrepareForm.COLD, 0.0)]


async def test_usage_is_what_it_was_told_to_be() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        backend.set_usage("cat", Usage(memory_bytes=7, cpu_s=2.0, processes=0))
        assert await (await started(backend)).usage() == Usage(memory_bytes=7, cpu_s=2.0, processes=0)


# ---------------------------------------------------------------- the scripted MCP server


class Client:
    """Just enough of a client to hold a conversation, line by line."""

    def __init__(self, streams: ByteStreams) -> None:
        self.streams = streams
        self._buffer = b""

    async def send(self, **message: Any) -> None:
        await self.streams.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def line(self) -> str:
        with anyio.fail_after(5):
            while b"\n" not in self._buffer:
                self._buffer += await self.streams.stdout.receive()
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

    async def message(self) -> dict[str, Any]:
        return json.loads(await self.line())


async def ask_name(_arguments: dict[str, Any], call: ScriptedCall) -> dict[str, Any]:
    await call.progress(1, 2)
    answer = await call.request("elicitation/create", {"message": "name?"})
    return text(answer["result"]["name"])


async def wait_for_ever(_arguments: dict[str, Any], _call: ScriptedCall) -> dict[str, Any]:
    await anyio.sleep_forever()
    return {}


async def die(_arguments: dict[str, Any], call: ScriptedCall) -> dict[str, Any]:
    await call.exit(3)


def refuse(_arguments: dict[str, Any], _call: ScriptedCall) -> dict[str, Any]:
    raise RpcError(-32000, "not today", {"why": "rain"})


TOOLS = (
    ScriptedTool(name="echo", annotations={"readOnlyHint": True}),
    ScriptedTool(name="ask", handler=ask_name),
    ScriptedTool(name="wait", handler=wait_for_ever),
    ScriptedTool(name="die", handler=die),
    ScriptedTool(name="refuse", handler=refuse),
)


def call(request: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": f"p{request}"}}
    return {"id": request, "method": "tools/call", "params": params}


async def test_a_scripted_server_holds_a_whole_conversation() -> None:
    server = ScriptedServer(name="demo", tools=TOOLS)
    async with FakeBackend({"demo": server.program}, grace_s=5) as backend:
        sandbox = await started(backend, "demo")
        async with sandbox.attach() as streams:
            client = Client(streams)
            await client.send(id=1, method="initialize", params={"protocolVersion": "2025-06-18"})
            assert (await client.message())["result"]["protocolVersion"] == "2025-06-18"
            await client.send(id=2, method="tools/list")
            listed = (await client.message())["result"]["tools"]
            assert [tool["name"] for tool in listed] == ["echo", "ask", "wait", "die", "refuse"]
            assert listed[0]["annotations"] == {"readOnlyHint": True}
            await client.send(**call(3, "wait"))
            await client.send(**call(4, "echo", b=1, a=2))
            assert (await client.message()) == {"jsonrpc": "2.0", "id": 4, "result": text('{"a": 2, "b": 1}')}
            await client.send(method="notifications/cancelled", params={"requestId": 3})
            await client.send(**call(5, "ask"))
            assert (await client.message())["params"] == {"progressToken": "p5", "progress": 1, "total": 2}
            asked = await client.message()
            assert asked["method"] == "elicitation/create"
            await client.send(id=asked["id"], result={"name": "Ada"})
            assert (await client.message())["result"] == text("Ada")
            await client.send(**call(6, "refuse"))
            assert (await client.message())["error"] == {
                "code": -32000,
                "message": "not today",
                "data": {"why": "rain"},
            }
            await client.send(id=7, method="no/such")
            assert (await client.message())["error"]["code"] == -32601
        assert await streams.wait() == ExitStatus(code=0)
    assert [message["method"] for message in server.received if "method" in message].count("tools/call") == 4


async def test_a_scripted_server_can_die_in_the_middle_of_a_call() -> None:
    server = ScriptedServer(tools=TOOLS)
    async with FakeBackend({"demo": server.program}) as backend, (await started(backend, "demo")).attach() as streams:
        await Client(streams).send(**call(1, "die"))
        with anyio.fail_after(5):
            assert await streams.wait() == ExitStatus(code=3)
            assert await read_all(streams) == b""


async def test_a_scripted_server_can_print_junk_and_can_keep_silent() -> None:
    noisy, silent = ScriptedServer(junk="Loading…"), ScriptedServer(answers_handshake=False)
    async with FakeBackend({"noisy": noisy.program, "silent": silent.program}) as backend:
        async with (await started(backend, "noisy")).attach() as streams:
            client = Client(streams)
            await client.send(id=1, method="ping")
            assert [await client.line(), json.loads(await client.line())["result"]] == ["Loading…", {}]
        async with (await started(backend, "silent", "sbx_2")).attach() as streams:
            await Client(streams).send(id=1, method="initialize")
            with anyio.move_on_after(0.05) as scope:
                await streams.stdout.receive()
            assert scope.cancelled_caught


async def test_a_paused_sandbox_takes_and_says_nothing_until_it_is_resumed() -> None:
    async with FakeBackend(PROGRAMS) as backend:
        sandbox = await started(backend)
        async with sandbox.attach() as streams:
            await sandbox.pause()
            await sandbox.pause()
            await streams.stdin.send(b"hello")
            await streams.stdin.aclose()
            with anyio.move_on_after(0.01) as silence:
                await streams.stdout.receive()
            assert silence.cancelled_caught
            for act in (lambda: sandbox.run(Command(argv=("cat",))), sandbox.checkpoint, sandbox.files.list):
                with pytest.raises(SandboxPaused, match="sbx_1 is paused"):
                    await act()
            assert (await sandbox.usage()).processes == 1
            await sandbox.resume()
            assert await read_all(streams) == b"hello"
            await sandbox.pause()
            await sandbox.aclose()
            assert backend.live == frozenset()
