"""Sandboxes forked from a zygote, in both backends that have them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import (
    Backend,
    ByteStreams,
    Command,
    Identity,
    Leftovers,
    Mount,
    MountMode,
    Preload,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.forked import ForkedSandbox
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.backends.spawner.guest import processes
from headstart.core.events import PrepareForm
from headstart.errors import BackendError, BackendUnavailable
from headstart.ids import SandboxId

pytestmark = pytest.mark.anyio

SERVER = """
import asyncio, os, sys
async def serve():
    for line in sys.stdin:
        print(eval(line), flush=True)
    sys.exit(7)
asyncio.run(serve())
"""
AT_LOOP = " at its loop"


@pytest.fixture(params=["local", "process", "local" + AT_LOOP])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def template(folder: Path, *, advance: bool = False) -> Template:
    script = folder / "server.py"
    script.write_text(SERVER)
    folder.joinpath("data").mkdir(exist_ok=True)
    prefix = Path(sys.base_prefix)
    interpreter = os.path.realpath(sys.executable)
    mounts = [Mount(source=path, target=path) for path in (script, *([prefix] if prefix != Path("/usr") else []))]
    overlay = Mount(source=folder / "data", target=folder / "data", mode=MountMode.OVERLAY)
    return Template(
        name="server",
        command=Command(argv=(interpreter, str(script)), env={"PATH": "/usr/local/bin:/usr/bin:/bin"}),
        mounts=(*mounts, overlay),
        preload=Preload(
            interpreter=interpreter,
            modules=("json", "email.mime.text", "asyncio"),
            entry=(str(script),),
            advance=advance,
        ),
    )


@asynccontextmanager
async def zygote_in(folder: Path, kind: str) -> AsyncGenerator[tuple[Backend, Prepared]]:
    opener = open_process_backend if kind == "process" else open_local_backend
    try:
        async with opener(folder / "state") as backend:
            prepared = await backend.prepare(template(folder, advance=kind.endswith(AT_LOOP)))
            yield backend, prepared
            await prepared.aclose()
    except BackendUnavailable as error:
        pytest.skip(f"the {kind} backend cannot run here: {error}")


def identity(name: str) -> Identity:
    return Identity(sandbox=SandboxId(name), hostname=name, env={"WHOSE": name})


async def ask(stdio: ByteStreams, question: str) -> str:
    await stdio.stdin.send(question.encode() + b"\n")
    with anyio.fail_after(10):
        return (await stdio.stdout.receive()).decode().strip()


async def test_a_fork_is_the_server_with_an_identity_and_a_home_of_its_own(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        assert prepared.form is PrepareForm.ZYGOTE
        assert prepared.preload_cpu_s > 0
        sandboxes = [await backend.start(prepared, identity(name)) for name in ("sb-1", "sb-2")]
        for sandbox in sandboxes:
            async with sandbox.attach() as stdio:
                assert await ask(stdio, "'email.mime.text' in sys.modules, os.environ['WHOSE']") == (
                    f"(True, '{sandbox.id}')"
                )
                assert await ask(stdio, "os.listdir(os.environ['HOME'])") == "[]"
                assert await ask(stdio, "open(os.environ['HOME'] + '/x', 'w').write('x')") == "1"
                if kind != "process":
                    assert await ask(stdio, "os.uname().nodename, os.getuid(), len(os.listdir('/proc')) > 0") == (
                        f"('{sandbox.id}', 1000, True)"
                    )
                await stdio.stdin.aclose()
                with anyio.fail_after(10):
                    assert (await stdio.wait()).code == 7
        for sandbox in sandboxes:
            await sandbox.aclose()


async def test_commands_run_beside_the_forked_server_in_the_same_sandbox(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        sandbox = await backend.start(prepared, identity("sb-1"))
        async with sandbox.attach() as stdio:
            await ask(stdio, "open(os.environ['HOME'] + '/made', 'w').write('here')")
            done = await sandbox.run(Command(argv=("sh", "-c", "cat ~/made; pwd -P; cd; pwd -P")))
            said = done.stdout.decode()
            assert said.startswith("here")
            assert len(set(said.removeprefix("here").split())) == 1
            assert (await sandbox.usage()).processes == 1
        await sandbox.aclose()


async def test_forks_outlive_their_zygote_however_it_goes(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        sandbox = await backend.start(prepared, identity("sb-1"))
        async with sandbox.attach() as stdio:
            for pid in _zygotes_below(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            assert await ask(stdio, "1 + 1") == "2"
            with pytest.raises(BackendError):
                await backend.start(prepared, identity("sb-2"))
            await prepared.aclose()
            assert await ask(stdio, "2 + 2") == "4"
        await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


def _zygotes_below(pid: int) -> list[int]:
    """The first children of keepers, which nothing that preloads has started."""
    preloaders = [p for p in processes.descendants(pid) if b"boot.py\0preload" in _cmdline(p)]
    keepers = [p for p in preloaders if not any(p in processes.children(other) for other in preloaders)]
    return [processes.children(keeper)[0] for keeper in keepers]


async def fork_made_ahead(*, besides: int = 0) -> int:
    """Return the init of the fork that the zygote keeps ready, as soon as there is one."""
    (zygote,) = _zygotes_below(os.getpid())
    await until(lambda: any(pid != besides for pid in processes.children(zygote)))
    return next(pid for pid in processes.children(zygote) if pid != besides)


async def until(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - of a process that tells us nothing
            await anyio.sleep(0.005)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_what_a_fork_started_ends_with_it(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        if kind != "process":
            await fork_made_ahead()
        before = (await backend.leftovers()).processes
        sandbox: RunningSandbox = await backend.start(prepared, identity("sb-1"))
        await sandbox.run(Command(argv=("sh", "-c", "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)")))
        assert (await backend.leftovers()).processes >= before + 3  # init, server, sleep
        await sandbox.aclose()
        if kind != "process":
            await fork_made_ahead()
        left = await backend.leftovers()
        assert (left.processes, left.cgroups <= 1) == (before, True)


async def start_as_made_ahead(backend: Backend, prepared: Prepared, name: str) -> ForkedSandbox:
    """Start what differs from others in nothing that matters before it is wanted: the host's name would."""
    sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(name), env={"WHOSE": name}))
    assert isinstance(sandbox, ForkedSandbox)
    return sandbox


async def test_the_fork_that_was_made_ahead_is_the_next_sandbox(tmp_path: Path) -> None:
    async with zygote_in(tmp_path, "local" + AT_LOOP) as (backend, prepared):
        for name in ("sb-1", "sb-2"):
            ready = await fork_made_ahead()
            sandbox = await start_as_made_ahead(backend, prepared, name)
            assert sandbox.pid == ready
            async with sandbox.attach() as stdio:
                assert await ask(stdio, "os.environ['WHOSE'], os.uname().nodename") == f"('{name}', 'sandbox')"
                assert await ask(stdio, "os.getppid(), os.listdir(os.environ['HOME'])") == "(1, [])"
            await sandbox.aclose()


async def test_what_no_fork_was_made_for_ahead_is_forked_anew(tmp_path: Path) -> None:
    async with zygote_in(tmp_path, "local") as (backend, prepared):
        ready = await fork_made_ahead()
        other = await backend.start(prepared, identity("another-host"))
        same = await start_as_made_ahead(backend, prepared, "sb-1")
        assert same.pid == ready
        async with other.attach() as stdio:
            assert await ask(stdio, "os.uname().nodename") == "another-host"
        await other.aclose()
        await same.aclose()


async def test_a_fork_made_ahead_that_has_died_is_passed_over(tmp_path: Path) -> None:
    async with zygote_in(tmp_path, "local") as (backend, prepared):
        ready = await fork_made_ahead()
        os.kill(ready, signal.SIGKILL)
        await until(lambda: not Path(f"/proc/{ready}").exists())
        sandbox = await start_as_made_ahead(backend, prepared, "sb-1")
        async with sandbox.attach() as stdio:
            assert await ask(stdio, "1 + 1") == "2"
        await sandbox.aclose()


@pytest.mark.parametrize("how", ["let go of", "killed"])
async def test_a_fork_made_ahead_ends_with_its_zygote_though_others_live(tmp_path: Path, how: str) -> None:
    async with zygote_in(tmp_path, "local") as (backend, prepared):
        sandbox = await start_as_made_ahead(backend, prepared, "sb-1")
        ready = await fork_made_ahead(besides=sandbox.pid)
        if how == "killed":
            (zygote,) = _zygotes_below(os.getpid())
            os.kill(zygote, signal.SIGKILL)
        else:
            await prepared.aclose()
        await until(lambda: not processes.is_alive(ready))
        async with sandbox.attach() as stdio:
            assert await ask(stdio, "2 + 2") == "4"
        await prepared.aclose()
        await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_a_fork_made_ahead_counts_as_its_zygotes_until_it_is_wanted(tmp_path: Path) -> None:
    async with zygote_in(tmp_path, "local") as (backend, prepared):
        await fork_made_ahead()
        assert (await prepared.usage()).processes == 3  # keeper, zygote, the fork
        sandbox = await start_as_made_ahead(backend, prepared, "sb-1")
        assert (await sandbox.usage()).processes == 1
        await fork_made_ahead(besides=sandbox.pid)
        assert (await prepared.usage()).processes == 3
        await sandbox.aclose()


async def test_an_overlay_is_each_forks_own(tmp_path: Path) -> None:
    async with zygote_in(tmp_path, "local") as (backend, prepared):
        first, second = [await backend.start(prepared, identity(name)) for name in ("sb-1", "sb-2")]
        data = tmp_path / "data"
        assert (await first.run(Command(argv=("touch", f"{data}/made")))).status.code == 0
        assert (await second.run(Command(argv=("ls", "-A", str(data))))).stdout == b""
        assert list(data.iterdir()) == []
        await first.aclose()
        await second.aclose()


async def test_a_preload_that_cannot_be_forked_is_an_error_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        await prepared.aclose()
        broken = template(tmp_path)
        assert broken.preload is not None
        thread = "import threading, time; threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()"
        module = tmp_path / "data" / "starts_a_thread.py"
        module.write_text(thread)
        command = Command(argv=broken.command.argv, env={**broken.command.env, "PYTHONPATH": str(module.parent)})
        threaded = Preload(
            interpreter=broken.preload.interpreter, modules=("starts_a_thread",), entry=broken.preload.entry
        )
        with pytest.raises(BackendError, match="thread"):
            await backend.prepare(Template(name="threaded", command=command, mounts=broken.mounts, preload=threaded))
        assert await backend.leftovers() == Leftovers()
