"""Pausing the local backend's sandboxes: by control groups, and by signals where there are none for it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import ByteStreams, Command, Identity, RunningSandbox
from headstart.backends.local.sandbox import LocalSandbox
from headstart.backends.spawner import sandbox as spawner_sandbox
from headstart.backends.spawner.guest import freezing
from headstart.errors import BackendError, SandboxPaused
from headstart.ids import SandboxId

from .driving import ENV, backend_in, output, sandbox_in, shell, template

pytestmark = pytest.mark.anyio

FORKS_AND_ENDS = "import os\nwhile True:\n    if os.fork(): os._exit(0)\n"
FIRST_THREAD_ENDS = """
import ctypes, itertools, threading
threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()
ctypes.CDLL(None).pthread_exit(None)
"""
TREES = {
    "many that fork": "for i in 1 2 3; do (while :; do /bin/true; done) & done; wait",
    "one that forks and ends, again and again": f"exec python3 -c '{FORKS_AND_ENDS}'",
    "one whose first thread has ended": f"exec python3 -c '{FIRST_THREAD_ENDS}'",
    "one that vforks": "exec python3 -c 'import subprocess\nwhile True: subprocess.run([\"true\"])'",
    "one that waits for a child that it has vforked": (
        "exec python3 -c 'import ctypes\nc = ctypes.CDLL(None)\nif c.vfork() == 0: c.sleep(600)\n'"
    ),
}


@pytest.fixture(params=["by its control group", "by signals to its control group", "by signals to its tree"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How it is made to stand still, on a machine that can do all; else some of these are the same."""
    all_folders = LocalSandbox._group_folders  # pyright: ignore[reportPrivateUsage]

    def folders(sandbox: LocalSandbox) -> list[str]:
        if request.param.endswith("tree"):
            return []
        without_freezer = [each for each in all_folders(sandbox) if not Path(each, "cgroup.freeze").exists()]
        return without_freezer if "signals" in request.param else all_folders(sandbox)

    monkeypatch.setattr(LocalSandbox, "_group_folders", folders)
    return request.param


@asynccontextmanager
async def paused(sandbox: RunningSandbox) -> AsyncGenerator[None]:
    with anyio.fail_after(10):
        await sandbox.pause()
    yield
    await sandbox.resume()


async def line(streams: ByteStreams) -> bytes:
    with anyio.fail_after(20):
        return await streams.stdout.receive()


@pytest.mark.parametrize("tree", TREES)
async def test_what_forks_as_fast_as_it_can_stands_still(tree: str, by: str, tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox, sandbox.start(shell(TREES[tree])):
        with anyio.fail_after(20):
            while (await sandbox.usage()).processes < 1:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        for _ in range(5):
            async with paused(sandbox):
                before = await sandbox.usage()
                await anyio.sleep(0.05)
                after = await sandbox.usage()
                assert after.processes == before.processes
                assert after.cpu_s - before.cpu_s < 0.01
        assert await output(sandbox, "echo works") == "works"


async def test_a_shell_with_job_control_does_not_notice(by: str, tmp_path: Path) -> None:
    """One that did would take its job for stopped, and go on to the next line."""
    script = 'set -m; i=0; while [ $i -lt 40 ]; do i=$((i+1)); sleep 0.02 || exit 1; done; echo "$i $(jobs)"'
    command = Command(argv=("bash", "-c", script), env=ENV)
    async with sandbox_in(tmp_path) as sandbox, sandbox.start(command) as streams:
        for _ in range(40):
            async with paused(sandbox):
                pass
        assert await line(streams) == b"40 \n"


async def test_what_does_not_stand_still_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(freezing, "_ROUNDS", 0)
    async with sandbox_in(tmp_path) as sandbox:
        with pytest.raises(BackendError, match=r"sb_1 was not paused, and goes on: .* does not stand still"):
            await sandbox.pause()
        assert not sandbox.paused
        assert await output(sandbox, "echo works") == "works"


async def test_a_command_whose_time_is_up_meanwhile_is_killed(by: str, tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox, anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def run() -> None:
            with pytest.raises(TimeoutError):
                await sandbox.run(shell("sleep 612"), timeout_s=0.3)
            ended.set()

        tasks.start_soon(run)
        with anyio.fail_after(10):
            while not (await sandbox.usage()).processes:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        async with paused(sandbox):
            with anyio.fail_after(10):
                await ended.wait()
        with anyio.fail_after(10):
            while (await sandbox.usage()).processes:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_pausing_holds_up_neither_others_nor_the_spawner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    may_stand, reached = threading.Event(), threading.Event()

    def slowly(init: int, groups: Sequence[str], apart: Sequence[int]) -> freezing.Still:
        reached.set()
        assert may_stand.wait(20)
        return freezing.freeze(init, groups, apart)

    monkeypatch.setattr(spawner_sandbox, "freeze", slowly)
    async with backend_in(tmp_path) as backend, anyio.create_task_group() as tasks:
        prepared = await backend.prepare(template())
        one = await backend.start(prepared, Identity(sandbox=SandboxId("one")))
        tasks.start_soon(one.pause)
        with anyio.fail_after(10):
            while not reached.is_set():  # noqa: ASYNC110 - a thread tells
                await anyio.sleep(0.01)
            other = await backend.start(prepared, Identity(sandbox=SandboxId("other")))
            assert await output(other, "echo works") == "works"
            await other.aclose()
        may_stand.set()
        with anyio.fail_after(10):
            while not one.paused:  # noqa: ASYNC110 - a thread tells
                await anyio.sleep(0.01)
        await one.aclose()
        await prepared.aclose()


async def test_a_sandbox_that_is_lost_while_it_is_paused_is_gone(by: str, tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        assert isinstance(sandbox, LocalSandbox)
        await sandbox.pause()
        os.kill(sandbox.pid, signal.SIGKILL)
        with anyio.fail_after(10):
            await sandbox.wait_lost()
        assert not sandbox.paused
        for act in (sandbox.resume, sandbox.pause, sandbox.checkpoint, sandbox.files.list):
            with pytest.raises(BackendError, match="gone") as failure:
                await act()
            assert not isinstance(failure.value, SandboxPaused)


async def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    content = b"x" * 20_000_000
    async with sandbox_in(tmp_path) as sandbox, anyio.create_task_group() as tasks:
        tasks.start_soon(sandbox.files.write, "big", content)
        while not (await output(sandbox, "ls -A")):
            await anyio.lowlevel.checkpoint()
        async with paused(sandbox):
            pass
        assert await sandbox.files.read("big") == content


@pytest.mark.parametrize("after", range(4))
async def test_who_cancels_a_pause_can_resume_and_go_on(after: int, by: str, tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        for _ in range(5):
            pausing = asyncio.create_task(sandbox.pause())
            for _ in range(after):
                await asyncio.sleep(0)
            pausing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pausing
            await sandbox.resume()
            assert await output(sandbox, "echo works") == "works"


async def test_a_sandbox_that_is_closed_while_it_is_being_paused_is_gone(by: str, tmp_path: Path) -> None:
    async with backend_in(tmp_path) as backend:
        prepared = await backend.prepare(template())
        for number in range(5):
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_{number}")))
            failures: list[BackendError] = []
            async with anyio.create_task_group() as tasks:

                async def pause(sandbox: RunningSandbox = sandbox, failures: list[BackendError] = failures) -> None:
                    try:
                        await sandbox.pause()
                    except BackendError as error:
                        failures.append(error)

                tasks.start_soon(pause)
                for _ in range(number):
                    await anyio.lowlevel.checkpoint()
                await sandbox.aclose()
            assert not any(isinstance(failure, SandboxPaused) for failure in failures)
        await prepared.aclose()
        left = await backend.leftovers()
        assert (left.processes, left.cgroups, left.directories) == (0, 0, 0)
