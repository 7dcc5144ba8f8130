"""Promises about programs whose state is kept by a fork, and goes on in a fork of their sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from headstart.backends.contract import (
    REVIVED_FROM,
    Capabilities,
    Command,
    ForkableProcess,
    Processes,
    ProcessImage,
    RunningSandbox,
)
from headstart.errors import BackendError, NotCapturable
from headstart.testing.contract_trial import Check, NotClaimed, Trial, check, expect

__all__ = ["PROGRAM_CHECKS"]

_ANSWERS_S = 20.0

_PROGRAM = f"""
import os, signal, subprocess, threading, time
number, first, kept = 0, 0, threading.Event()
def facts():
    wanted = ("Uid:", "Gid:", "Groups:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:", "NoNewPrivs:", "Seccomp:")
    status = [" ".join(line.split()) for line in open("/proc/self/status") if line.startswith(wanted)]
    limits = [" ".join(line.split()) for line in open("/proc/self/limits") if "file locks" not in line]
    spaces = [os.readlink("/proc/self/ns/" + name) for name in ("mnt", "pid", "net", "ipc", "uts", "user", "cgroup")]
    return "|".join(status + limits + spaces)
while True:
    words = os.read(first, 1000).decode().split()
    if not words:
        break
    if words[0] == "add":
        number += 1
    elif words[0] == "thread":
        threading.Thread(target=kept.wait, daemon=True).start()
    elif words[0] == "start":
        subprocess.Popen(["setsid", "sleep", "973"])
    elif words[0] == "fork":
        os.chdir("/")
        os.kill(os.getpid(), signal.SIGTRAP)
        try:
            child = os.fork()
        except OSError:
            child = -1
        if child == 0:
            first = {REVIVED_FROM}
    answer = {{"facts": facts, "pid": os.getpid, "folder": os.getcwd}}.get(words[0], lambda: number)()
    os.write(first + 1, f"{{words[0]}} {{answer}}\\n".encode())
"""


def _kernels(capabilities: Capabilities) -> bool:
    return capabilities.processes is not Processes.NONE


class _Program:
    """Talks with it, a word at a time."""

    def __init__(self, process: ForkableProcess) -> None:
        self.process = process
        self._rest = b""

    async def ask(self, word: str) -> str:
        await self.process.streams.stdin.send(word.encode())
        return await self.hear(word)

    async def hear(self, word: str) -> str:
        with anyio.fail_after(_ANSWERS_S):
            while b"\n" not in self._rest:
                self._rest += await self.process.streams.stdout.receive()
        line, _, self._rest = self._rest.partition(b"\n")
        asked, _, answer = line.decode().partition(" ")
        expect(asked == word, "a program answers what it was asked", line)
        return answer

    async def keep(self) -> ProcessImage | None:
        async def ask() -> bool:
            await self.ask("fork")
            return True

        return await self.process.keep(ask)

    async def image(self) -> ProcessImage:
        image = await self.keep()
        if image is None:
            raise AssertionError("it forked")
        await image.settled()
        return image


@asynccontextmanager
async def _started(trial: Trial) -> AsyncGenerator[tuple[RunningSandbox, _Program]]:
    if trial.subject.adapt(trial.template()).preload is not None:
        raise NotClaimed("programs in forks of a zygote are not kept")
    async with trial.sandbox() as sandbox, sandbox.start_forkable(trial.python(_PROGRAM)) as process:
        yield sandbox, _Program(process)


@asynccontextmanager
async def _forked(trial: Trial, sandbox: RunningSandbox, program: _Program) -> AsyncGenerator[RunningSandbox]:
    fork = await sandbox.fork(await sandbox.checkpoint(beside=[program.process]), trial.identity())
    try:
        yield fork
    finally:
        await fork.aclose()


@asynccontextmanager
async def _revived(sandbox: RunningSandbox, image: ProcessImage) -> AsyncGenerator[_Program]:
    async with sandbox.revive(image) as process:
        program = _Program(process)
        await program.hear("fork")
        yield program


@check("a program that forks when it is asked to goes on in a fork as it was then, and where it is", claimed=_kernels)
async def there_and_here(trial: Trial) -> None:
    async with _started(trial) as (sandbox, program):
        await program.ask("add")
        image = await program.image()
        expect(await program.ask("add") == "2", "it goes on", "else")
        async with _forked(trial, sandbox, program) as fork:
            async with _revived(fork, image) as one, _revived(fork, image) as other:
                expect(await one.ask("tell") == "1", "a fork has what it had", "else")
                expect(await one.ask("add") == "2" and await one.ask("add") == "3", "and goes on", "else")
                expect(await other.ask("add") == "2", "neither sees what the other does", "else")
                expect(await program.ask("add") == "3", "nor does who was kept", "else")
                grandchild = await one.image()
            async with _revived(fork, grandchild) as again:
                expect(await again.ask("tell") == "3", "what goes on can be kept itself", "else")
            async with _revived(sandbox, image) as back:
                expect(await back.ask("tell") == "1", "it can go on where it was, too", "else")


@check("a program that goes on is in its sandbox like any other, and has nothing of where it was", claimed=_kernels)
async def like_others(trial: Trial) -> None:
    async with _started(trial) as (sandbox, program):
        await sandbox.files.write("mine", b"x")
        await trial.sh(sandbox, "mkdir ~/d")
        here = (await trial.sh(sandbox, "pwd")).stdout.decode().rstrip("\n")
        expect(await program.ask("folder") == here, "it begins where a command does", await program.ask("folder"))
        wanted = await program.ask("facts")
        async with sandbox.start(trial.python(_PROGRAM)) as streams:
            await streams.stdin.send(b"facts")
            plain = (await streams.stdout.receive()).decode().removeprefix("facts ").rstrip("\n")
        expect(wanted == plain, "it has the rights, limits and namespaces of a command", (wanted, plain))
        image = await program.image()
        async with _forked(trial, sandbox, program) as fork, _revived(fork, image) as other:
            facts = await other.ask("facts")
            async with fork.start(trial.python(_PROGRAM)) as streams:
                await streams.stdin.send(b"facts")
                plain = (await streams.stdout.receive()).decode().removeprefix("facts ").rstrip("\n")
            expect(facts == plain, "also where it goes on", (facts, plain))
            pid = await other.ask("pid")
            listed = await trial.sh(fork, f"ls -l /proc/{pid}/fd | tail -n +2 | wc -l; readlink /proc/{pid}/cwd")
            expect(listed.stdout == b"3\n/\n", "it has its descriptors and no others", listed)
            seen = await trial.sh(fork, f"kill -0 {pid} && ls /proc/{pid}/root$HOME")
            expect(seen.stdout == b"d\nmine\n", "it is one of its processes, and sees its files", seen)


@check("a program that is kept does not count as running, whatever else runs does", claimed=_kernels)
async def counted(trial: Trial) -> None:
    async with _started(trial) as (sandbox, program):
        image = await program.image()
        kept = await sandbox.checkpoint(beside=[program.process])
        expect(kept.left_out == (), "who is kept is not left out", kept)
        try:
            await sandbox.files.write("a", b"1")
            await sandbox.checkpoint()
        except NotCapturable as refusal:
            expect("python" in refusal.held[0], "who runs is named", refusal.held)
        else:
            expect(kept=False, promise="a program that nobody says is kept runs", seen="a checkpoint")
        await program.ask("start")
        try:
            await sandbox.checkpoint(beside=[program.process])
        except NotCapturable as refusal:
            expect("sleep" in refusal.held[0], "what it has started runs", refusal.held)
        else:
            expect(kept=False, promise="what it has started runs", seen="a checkpoint")
        expect((await sandbox.usage()).processes == 2, "only what runs is counted", await sandbox.usage())
        del image


@check("a program with threads is not kept, and goes on; nor is one that does not fork", claimed=_kernels)
async def not_kept(trial: Trial) -> None:
    async with _started(trial) as (_, program):

        async def only_tell() -> bool:
            await program.ask("tell")
            return False

        expect(await program.process.keep(only_tell) is None, "who does not fork is not kept", "an image")
        await program.ask("thread")
        try:
            await program.keep()
        except NotCapturable as refusal:
            expect(len(refusal.held) == 1, "threads are named", refusal.held)
        else:
            expect(kept=False, promise="no fork has threads", seen="an image")
        expect(await program.ask("add") == "1", "it goes on", "else")


@check("a program whose block is left is killed, with what it started; so is one that goes on", claimed=_kernels)
async def killed(trial: Trial) -> None:
    left = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c -e 'import os[,] signal' -e 'sleep[ ]973'"
    async with trial.sandbox() as sandbox:
        if trial.subject.adapt(trial.template()).preload is not None:
            raise NotClaimed("programs in forks of a zygote are not kept")
        async with sandbox.start_forkable(trial.python(_PROGRAM)) as process:
            program = _Program(process)
            image = await program.image()
            await program.ask("start")
        seen = await trial.sh(sandbox, left)
        expect(seen.stdout == b"0\n", "nothing of it is left", seen)
        async with _revived(sandbox, image) as again:
            await again.ask("start")
        seen = await trial.sh(sandbox, left)
        expect(seen.stdout == b"0\n", "nothing of it is left", seen)
        async with sandbox.start_forkable(trial.python("raise SystemExit(7)")) as process:
            status = await process.streams.wait()
            expect(status.code == 7, "it is told how it ended", status)
        try:
            async with sandbox.start_forkable(Command(argv=("no-such-program",))):
                pass
        except BackendError as error:
            expect("no-such-program" in str(error), "what is not there is named", error)
        else:
            expect(kept=False, promise="what is not there does not start", seen="it did")


PROGRAM_CHECKS: Final[tuple[Check, ...]] = (there_and_here, like_others, counted, not_kept, killed)
