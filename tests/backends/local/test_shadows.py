"""Programs that fight against being kept, and what is left when somebody kills what keeps them."""

from __future__ import annotations

import os
import platform
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from tests.backends.local.driving import ENV, as_root, backend_in, template

from headstart.backends.contract import (
    REVIVED_FROM,
    Command,
    ForkableProcess,
    Identity,
    Limits,
    Processes,
    ProcessImage,
)
from headstart.backends.local import LocalBackend
from headstart.backends.local.sandbox import LocalSandbox
from headstart.backends.spawner.guest import processes
from headstart.errors import BackendError
from headstart.ids import SandboxId

pytestmark = pytest.mark.anyio

PROGRAM = f"""
import ctypes, os, signal, sys
libc, first, count = ctypes.CDLL(None), 0, 0
def overwrite(code):
    [line] = [line for line in open("/proc/self/maps") if line.endswith("[vdso]\\n")]
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 7) == 0
    text = ctypes.string_at(start, end - start)
    at = text.find(b"\\x0f\\x05")
    while at >= 0:
        ctypes.memmove(start + at, code, len(code))
        at = text.find(b"\\x0f\\x05", at + 1)
def daemon():
    if first == 0 and sys.argv[1:] == ["daemon"] and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "977"])
        os._exit(0)
os.register_at_fork(after_in_child=lambda: daemon() if "forking" in globals() else None)
while True:
    words = os.read(first, 4096).decode().split()
    if not words:
        break
    if words[0] == "overwrite":
        overwrite(bytes.fromhex(words[1]))
    elif words[0] == "fill":
        filled = bytearray(os.urandom(1 << 20)) * int(words[1])
    elif words[0] == "fork":
        os.chdir("/")
        os.kill(os.getpid(), signal.SIGTRAP)
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child == 0:
            first = {REVIVED_FROM}
            for number in range(first, first + 3):
                os.set_inheritable(number, False)
    count += 1
    os.write(first + 1, b"%d\\n" % count)
"""


async def ask(process: ForkableProcess, words: str) -> int:
    await process.streams.stdin.send(words.encode())
    return await hear(process)


async def hear(process: ForkableProcess) -> int:
    with anyio.fail_after(20):
        return int(await process.streams.stdout.receive())


async def keep(process: ForkableProcess) -> ProcessImage | None:
    async def fork() -> bool:
        await ask(process, "fork")
        return True

    image = await process.keep(fork)
    if image is not None:
        await image.settled()
    return image


@asynccontextmanager
async def started(
    folder: Path,
    *arguments: str,
    limits: Limits = Limits(),  # noqa: B008 it is frozen
) -> AsyncGenerator[tuple[LocalBackend, LocalSandbox, ForkableProcess]]:
    async with backend_in(folder) as backend:
        if backend.capabilities.processes is not Processes.KERNELS:
            pytest.skip("nobody may trace processes here")
        prepared = await backend.prepare(template(limits=limits))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("one")))
        assert isinstance(sandbox, LocalSandbox)
        command = Command(argv=("python3", "-c", PROGRAM, *arguments), env=ENV)
        async with sandbox.start_forkable(command) as process:
            yield backend, sandbox, process
        await sandbox.aclose()
        assert (await backend.leftovers()).processes == 0
        with anyio.fail_after(10):
            while (await backend.leftovers()).cgroups:
                await anyio.lowlevel.checkpoint()
        await prepared.aclose()
    await until(lambda: not traced())


async def until(holds: Callable[[], bool]) -> None:
    """Wait for other processes to have it so."""
    with anyio.fail_after(10):
        while not holds():  # noqa: ASYNC110 - other processes do it
            await anyio.sleep(0.01)


def groups_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def parent_of(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def traced() -> list[int]:
    """Return those that somebody traces whom a spawner of ours has forked."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [pid for pid in pids if processes.is_below(processes.tracer_of(pid), os.getpid())]


HOSTILE = {
    "a trap": "cc",
    "no instruction": "0f0b",
    "a loop": "ebfe",
    "another ABI": "cd80",
    "nothing": "9090",
    "a jump to what makes a call of its own": "b83c0000000f05",
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the instructions are those of x86-64")
@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_program_that_replaces_the_instruction_of_its_shadow_gains_nothing(code: str, tmp_path: Path) -> None:
    async with started(tmp_path) as (_, sandbox, process):
        await ask(process, f"overwrite {code}")
        with pytest.raises(BackendError, match=r"cannot be kept|killed|ended"):
            await keep(process)
        async with sandbox.start_forkable(Command(argv=("python3", "-c", PROGRAM), env=ENV)) as other:
            assert await keep(other) is not None, "others are kept"


async def test_who_kills_the_tracer_has_images_lost_and_programs_that_go_on(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, sandbox, process):
        image = await keep(process)
        assert image is not None
        os.kill(parent_of(process.pid), signal.SIGKILL)
        assert await ask(process, "tell") == 2, "it goes on"
        with pytest.raises(BackendError):
            await keep(process)
        with pytest.raises(BackendError, match="cannot go on"):
            async with sandbox.revive(image):
                pass
        async with sandbox.start_forkable(Command(argv=("python3", "-c", PROGRAM), env=ENV)) as other:
            again = await keep(other)
            assert again is not None
            async with sandbox.revive(again) as revived:
                assert await hear(revived) == 1


async def test_who_kills_a_shadow_has_a_program_that_goes_on_and_is_not_kept(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, _, process):
        await until(lambda: bool(traced()))
        for pid in traced():
            with suppress(ProcessLookupError):  # who has helped at its birth ends
                os.kill(pid, signal.SIGKILL)
        await until(lambda: not traced())
        with pytest.raises(BackendError, match="it cannot be kept"):
            await keep(process)
        assert await ask(process, "tell") == 2


async def test_a_program_that_ends_while_it_is_asked_is_told_as_ended(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, _, process):

        async def die() -> bool:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            await process.streams.wait()
            return True

        with pytest.raises(BackendError, match="ended"):
            await process.keep(die)
        assert (await process.streams.wait()).signal == signal.SIGKILL


async def test_who_is_cancelled_while_he_keeps_a_program_leaves_it_as_it_was(tmp_path: Path) -> None:
    async with started(tmp_path) as (_, _, process):
        with anyio.move_on_after(0.2):

            async def never() -> bool:
                await anyio.sleep_forever()
                return True

            await process.keep(never)
        assert await ask(process, "tell") == 1
        assert await keep(process) is not None
        assert await ask(process, "tell") == 3


@as_root
async def test_what_goes_on_and_what_it_starts_at_once_is_in_its_sandboxs_groups(tmp_path: Path) -> None:
    async with started(tmp_path, "daemon") as (backend, sandbox, process):
        if not backend.capabilities.limits:
            pytest.skip("no control groups that this user may use")
        assert groups_of(process.pid) == groups_of(sandbox.pid), "from the beginning"
        image = await keep(process)
        assert image is not None
        fork = await sandbox.fork(await sandbox.checkpoint(beside=[process]), Identity(sandbox=SandboxId("two")))
        assert isinstance(fork, LocalSandbox)
        async with fork.revive(image) as revived:
            await hear(revived)
            await until(lambda: set(groups_of_all_like(fork.pid)) == {groups_of(fork.pid)})
            assert (await fork.usage()).processes >= 1
        await fork.aclose()


def groups_of_all_like(init: int) -> list[str]:
    """Return the control groups of all that are in one PID namespace."""
    found: list[str] = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError):  # it has ended
                if (path / "ns/pid").readlink() == Path(f"/proc/{init}/ns/pid").readlink():
                    found.append(groups_of(int(path.name)))
    return found


@as_root
async def test_memory_of_what_goes_on_is_limited_like_that_of_any_other(tmp_path: Path) -> None:
    async with started(tmp_path, limits=Limits(memory_bytes=80_000_000)) as (backend, sandbox, process):
        if not backend.capabilities.limits:
            pytest.skip("no control groups that this user may use")
        image = await keep(process)
        assert image is not None
        async with sandbox.revive(image) as revived:
            await hear(revived)
            await until(lambda: groups_of(revived.pid) == groups_of(sandbox.pid))
            await revived.streams.stdin.send(b"fill 200")
            with anyio.fail_after(20):
                assert (await revived.streams.wait()).signal == signal.SIGKILL
        assert await ask(process, "tell") == 2, "nobody else is killed"
