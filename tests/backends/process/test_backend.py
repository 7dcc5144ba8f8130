"""The process backend, as whatever user runs the tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import Command, Identity, Leftovers, Template
from headstart.backends.process import ProcessBackend, open_process_backend
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.errors import BackendError
from headstart.ids import SandboxId

pytestmark = pytest.mark.anyio

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
CAT = Template(name="cat", command=Command(argv=("cat",), env=ENV))


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script), env=ENV)


async def start(backend: ProcessBackend, name: str = "sb_1", template: Template = CAT) -> SpawnedSandbox:
    return await backend.start(await backend.prepare(template), Identity(sandbox=SandboxId(name)))


@asynccontextmanager
async def sandbox_in(folder: Path) -> AsyncGenerator[SpawnedSandbox]:
    async with open_process_backend(folder) as backend:
        sandbox = await start(backend)
        try:
            yield sandbox
        finally:
            await sandbox.aclose()


async def test_a_command_runs_to_its_end_and_a_failing_one_is_data(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        done = await sandbox.run(shell("cat; echo trouble >&2; exit 3"), stdin=b"given")
    assert (done.status.code, done.stdout, done.stderr) == (3, b"given", b"trouble\n")


async def test_a_command_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        with pytest.raises(BackendError, match="'no-such-program': No such file"):
            await sandbox.run(Command(argv=("no-such-program",), env=ENV))
        assert (await sandbox.run(shell("true"))).status.code == 0


async def test_commands_that_cannot_be_started_cost_their_init_no_descriptor(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        before = _descriptors_of(sandbox.pid)
        for argv in (("no-such-program",), ("/etc/passwd",), ("/bin/true", "a\0b")) * 5:
            with pytest.raises(BackendError, match="cannot run"):
                await sandbox.run(Command(argv=argv, env=ENV))
        assert _descriptors_of(sandbox.pid) == before


def _descriptors_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_a_command_killed_by_a_signal_says_which(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        done = await sandbox.run(shell("kill -TERM $$"))
    assert (done.status.code, done.status.signal) == (None, 15)


async def test_home_and_tmp_are_private_empty_and_removed(tmp_path: Path) -> None:
    async with open_process_backend(tmp_path) as backend:
        first, second = await start(backend, "sb_1"), await start(backend, "sb_2")
        homes = [(await s.run(shell('cd && pwd && ls -A && ls -A "$TMPDIR"'))).stdout for s in (first, second)]
        assert homes[0] != homes[1]
        assert all(home.count(b"\n") == 1 for home in homes)
        await first.run(shell("mkdir -p ~/a && touch ~/a/b && chmod 0 ~/a"))
        await first.aclose()
        await second.aclose()
        assert await backend.leftovers() == Leftovers()


async def test_the_environment_is_only_what_was_given(tmp_path: Path) -> None:
    os.environ["HEADSTART_TEST_LEAK"] = "1"
    try:
        async with sandbox_in(tmp_path) as sandbox:
            names = {line.split(b"=")[0] for line in (await sandbox.run(shell("env"))).stdout.splitlines()}
    finally:
        del os.environ["HEADSTART_TEST_LEAK"]
    assert names - {b"PWD", b"SHLVL", b"_", b"OLDPWD"} == {b"PATH", b"HOME", b"TMPDIR"}


async def test_a_timeout_kills_the_command_and_daemons_that_it_started(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        with pytest.raises(TimeoutError):
            await sandbox.run(shell("(setsid sleep 1000 &) ; setsid sleep 1000 & sleep 1000"), timeout_s=0.5)
        with anyio.fail_after(30):
            while (await sandbox.usage()).processes:  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)


async def test_output_beyond_the_limit_is_cut_and_said_so(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        done = await sandbox.run(shell("head -c 3000000 /dev/zero"))
    assert (len(done.stdout), done.truncated) == (1 << 20, True)


async def test_a_command_that_leaves_a_child_on_its_stdout_still_ends(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        with anyio.fail_after(30):
            done = await sandbox.run(shell("sleep 1000 & echo done"))
    assert done.stdout == b"done\n"


async def test_the_entry_command_talks_over_raw_pipes_and_ends_when_stdin_closes(tmp_path: Path) -> None:
    async with sandbox_in(tmp_path) as sandbox:
        async with sandbox.attach() as stdio:
            await stdio.stdin.send(b"ping")
            assert await stdio.stdout.receive() == b"ping"
            await stdio.stdin.aclose()
            assert (await stdio.wait()).code == 0
        with pytest.raises(BackendError, match="already"):
            async with sandbox.attach():
                pass


async def test_an_entry_command_that_ignores_everything_is_killed(tmp_path: Path) -> None:
    stubborn = Template(name="stubborn", command=shell("trap '' TERM; while :; do sleep 1000; done"))
    async with open_process_backend(tmp_path) as backend:
        sandbox = await start(backend, template=stubborn)
        with anyio.fail_after(30):
            async with sandbox.attach() as stdio:
                pass
        assert (await stdio.wait()).signal == 9
        await sandbox.aclose()


async def test_commands_start_with_default_signals_however_the_service_was_started(tmp_path: Path) -> None:
    ignored = (signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)  # as after nohup, or a shell's &
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        async with sandbox_in(tmp_path) as sandbox:
            done = await sandbox.run(Command(argv=("grep", "SigIgn", "/proc/self/status"), env=ENV))
    finally:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
    assert done.stdout.split() == [b"SigIgn:", b"0" * 16]


async def test_an_undrained_pipe_holds_up_nobody_else(tmp_path: Path) -> None:
    flood = Template(name="flood", command=shell("exec cat /dev/zero"))
    async with open_process_backend(tmp_path) as backend:
        sandbox = await start(backend, template=flood)
        async with sandbox.attach():
            with anyio.fail_after(30):
                assert (await sandbox.run(shell("echo there"))).stdout == b"there\n"
                other = await start(backend, "sb_2")
                assert (await other.run(shell("echo here"))).stdout == b"here\n"


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with open_process_backend(tmp_path) as backend:
        for step in range(12):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_after_steps, scope, step)
                    sandbox = await start(backend, f"sb_{step}")
                    await sandbox.aclose()
                    tasks.cancel_scope.cancel()
        assert await backend.leftovers() == Leftovers()


async def _cancel_after_steps(scope: anyio.CancelScope, steps: int) -> None:
    for _ in range(steps):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


async def test_when_the_spawner_is_killed_every_sandbox_is_lost_and_what_uses_it_is_ended(tmp_path: Path) -> None:
    sandboxes: list[SpawnedSandbox] = []

    async def use() -> None:
        async with open_process_backend(tmp_path) as backend:
            sandboxes.append(await start(backend))
            os.kill(parent_of(parent_of(sandboxes[0].pid)), 9)  # past its guard
            await anyio.sleep_forever()

    with anyio.fail_after(30), pytest.raises(BackendError, match="was killed by SIGKILL") as caught:
        await use()
    assert caught.value.hint is not None
    with pytest.raises(BackendError, match="gone"):
        await sandboxes[0].run(shell("true"))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_the_service_killed_in_the_middle_of_a_load_leaves_no_process(tmp_path: Path) -> None:
    marker = f"{987_000_000 + os.getpid()}"
    service = Path(__file__).parents[1] / "loaded_service.py"
    async with await anyio.open_process(
        [sys.executable, str(service), "process", str(tmp_path), marker], stderr=None
    ) as process:
        assert process.stdout is not None
        with anyio.fail_after(30):
            assert b"loaded" in await process.stdout.receive()
        assert _processes_with(marker)
        process.kill()
        with anyio.fail_after(30):
            while _processes_with(marker):  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)
    async with open_process_backend(tmp_path) as backend:
        with anyio.fail_after(30):  # the killed one's spawner may still be removing its own
            while len(list((tmp_path / "process").glob("run-*"))) > 1:  # noqa: ASYNC110  the kernel tells no event
                await anyio.sleep(0.01)
        assert await backend.leftovers() == Leftovers()


def _processes_with(marker: str) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if marker.encode() in line and b"loaded_service" not in line:
                found.append(entry.name)
    return found
