"""Sandboxes forked from a zygote, in both backends that have them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
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
            for pid in _zygotes_below(os.getpid(), tmp_path):
                os.kill(pid, signal.SIGKILL)
            assert await ask(stdio, "1 + 1") == "2"
            with pytest.raises(BackendError):
                await backend.start(prepared, identity("sb-2"))
            await prepared.aclose()
            assert await ask(stdio, "2 + 2") == "4"
        await sandbox.aclose()
        assert await backend.leftovers() == Leftovers()


def _zygotes_below(pid: int, _folder: Path) -> list[int]:
    """The preloader's processes apart from keepers (which have children that preload)."""
    preloaders = [p for p in processes.descendants(pid) if b"boot.py\0preload" in _cmdline(p)]
    return [p for p in preloaders if not any(child in preloaders for child in processes.children(p)) and _idle(p)]


def _idle(pid: int) -> bool:
    """A server's output is a pipe; an init has pipes though its input is none; a zygote has a socket."""
    names = {entry.name: entry.readlink().name for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()}
    pipes = [fd for fd, name in names.items() if name.startswith("pipe:")]
    sockets = sum(name.startswith("socket:") for name in names.values())
    return names["1"] == "null" and sockets == 1 and (not pipes or "0" in pipes)


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_what_a_fork_started_ends_with_it(tmp_path: Path, kind: str) -> None:
    async with zygote_in(tmp_path, kind) as (backend, prepared):
        before = (await backend.leftovers()).processes
        sandbox: RunningSandbox = await backend.start(prepared, identity("sb-1"))
        await sandbox.run(Command(argv=("sh", "-c", "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)")))
        assert (await backend.leftovers()).processes >= before + 3  # init, server, sleep
        await sandbox.aclose()
        left = await backend.leftovers()
        assert (left.processes, left.cgroups <= 1) == (before, True)


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
