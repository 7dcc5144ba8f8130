"""Promises about commands: how they start, what they are given, how they end."""

from __future__ import annotations

import os
import select
import signal
import termios
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

import anyio

from headstart.backends.contract import (
    ByteStreams,
    Capabilities,
    Command,
    ExitStatus,
    Process,
    TerminalProcess,
    TerminalSize,
)
from headstart.errors import BackendError
from headstart.testing.contract_trial import (
    DAEMON,
    HEARTBEAT,
    Check,
    Trial,
    check,
    expect,
    expect_beating,
    expect_silence,
)

__all__ = ["COMMAND_CHECKS"]

CANARY: Final = "HEADSTART_CONTRACT_CANARY"
PRIVATE_PLACES: Final = {"HOME", "TMPDIR", "PATH"}
MEBIBYTE: Final = 1 << 20


def _takes_descriptors(capabilities: Capabilities) -> bool:
    return capabilities.descriptors


@check("a failing command is data")
async def failing_command(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        done = await trial.sh(sandbox, "echo out; echo err >&2; exit 7")
        expect(done.status == ExitStatus(code=7), "the exit code is reported", done)
        expect((done.stdout, done.stderr) == (b"out\n", b"err\n"), "stdout and stderr come apart", done)
        done = await trial.sh(sandbox, "kill -9 $$")
        expect(done.status.signal == 9 and done.status.code is None, "a signal is reported as a signal", done)
        done = await trial.sh(sandbox, "echo still here")
        expect(done.stdout == b"still here\n", "the sandbox survives its commands", done)


@check("a program that is not there raises, and the sandbox lives on")
async def missing_program(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        try:
            done = await sandbox.run(Command(argv=("/no/such/program",)), timeout_s=20)
        except BackendError as error:
            expect("/no/such/program" in str(error), "the message names the program", str(error))
        else:
            expect(kept=False, promise="BackendError", seen=done)
        expect((await trial.sh(sandbox, "exit 3")).status.code == 3, "the sandbox lives on", "it does not")


@check("the environment is the given one and nothing of the service's")
async def environment(trial: Trial) -> None:
    given = {"PATH": trial.subject.path, "A": "1", "EMPTY": "", "UMLAUT": "ä b\nc"}
    secrets = {"SECRET": "s3cret", "A": "identity wins"}
    identity = replace(trial.identity(), env=secrets)
    template = replace(trial.template("env -0"), command=Command(argv=("env", "-0"), env=given))
    os.environ[CANARY] = "leaked"
    try:
        async with trial.sandbox(template, identity=identity) as sandbox, sandbox.attach() as streams:
            seen = _environment_in(await _read_all(streams))
    finally:
        del os.environ[CANARY]
    expected = {**given, **secrets}
    expect({name: seen.get(name) for name in expected} == expected, "what was given arrives", seen)
    extra = seen.keys() - expected.keys() - PRIVATE_PLACES
    expect(not extra, "nothing else does, except where its private places are", sorted(extra))


@check("a command can be started on given descriptors", claimed=_takes_descriptors)
async def given_descriptors(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        with _pipe() as (told, tell), _pipe() as (read, write):
            os.write(tell, b"hello\n")
            async with sandbox.start_on(
                trial.shell("read line; echo $line; echo >&2 apart"), (told, write, write)
            ) as process:
                status = await _status_within(20, process)
            said = os.read(read, 100) if select.select([read], [], [], 0)[0] else b""
            expect(said == b"hello\napart\n", "what it says goes straight to them", said)
            expect(status == ExitStatus(code=0), "its end is told", status)
            async with sandbox.start_on(trial.shell("echo up; exec sleep 60"), (told, write, write)) as process:
                await anyio.wait_readable(read)
                os.read(read, 100)
                await process.interrupt()
                status = await _status_within(20, process)
            expect(status == ExitStatus(signal=signal.SIGINT), "it can be interrupted", status)
        with _pipe() as (read, write):
            line = trial.shell("while :; do echo x; sleep 0.05; done")
            async with sandbox.start_on(line, (read, write, write)):
                await anyio.wait_readable(read)
            os.set_blocking(read, False)
            os.read(read, 65_536)
            done = await trial.sh(sandbox, "sleep 0.2")
            expect(not select.select([read], [], [], 0)[0], "it is killed when it is left", done)


@check("a command can be started on a terminal of the sandbox's own", claimed=_takes_descriptors)
async def terminal(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        size = TerminalSize(rows=11, columns=77)
        async with sandbox.start_on_terminal(trial.shell("tty; stty size"), size) as shown:
            said = await _all_shown(shown)
            expect(b"/dev/pts/" in said, "it has a name inside", said)
            expect(b"11 77" in said, "it has the size that was asked for", said)
        async with sandbox.start_on_terminal(trial.shell("echo up; exec sleep 60"), size) as shown:
            await anyio.wait_readable(shown.descriptor)
            os.write(shown.descriptor, b"\x03")
            status = await _status_within(20, shown)
            expect(status == ExitStatus(signal=signal.SIGINT), "Ctrl-C interrupts what runs on it", status)
        async with sandbox.start_on_terminal(
            trial.shell("trap 'stty size; exit 3' WINCH; echo up; while :; do sleep 0.05; done"), size
        ) as shown:
            await anyio.wait_readable(shown.descriptor)
            termios.tcsetwinsize(shown.descriptor, (30, 100))
            said = await _all_shown(shown)
            expect(b"30 100" in said, "who runs on it is told that it has another size", said)
            expect(await shown.wait() == ExitStatus(code=3), "its end is told", said)


async def _status_within(seconds: float, process: Process) -> ExitStatus | None:
    with anyio.move_on_after(seconds):
        return await process.wait()
    return None


async def _all_shown(shown: TerminalProcess) -> bytes:
    """Return what comes until nobody has the terminal any more."""
    os.set_blocking(shown.descriptor, False)
    said = b""
    with anyio.fail_after(20):
        while True:
            await anyio.wait_readable(shown.descriptor)
            try:
                said += os.read(shown.descriptor, 65_536)
            except OSError:  # EIO: how a terminal tells its end
                return said


@contextmanager
def _pipe() -> Generator[tuple[int, int]]:
    ends = os.pipe2(os.O_CLOEXEC)
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@check("stdin ends: a command that reads it gets what was given, then end of file")
async def stdin(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        done = await sandbox.run(trial.shell("cat; echo end"), timeout_s=20)
        expect(done.stdout == b"end\n", "without stdin there is end of file at once", done)
        payload = bytes(range(256)) * 1024
        done = await sandbox.run(trial.shell("cat"), stdin=payload, timeout_s=20)
        expect(done.stdout == payload, "every byte of stdin arrives", len(done.stdout))
        done = await sandbox.run(trial.shell("exit 0"), stdin=payload, timeout_s=20)
        expect(done.status.code == 0, "a command need not read its stdin", done)


_C_LIBRARYS_OWN: Final = 1 << 31 | 1 << 32
"""Signals 32 and 33, which glibc ignores in what it spawns, and takes for itself where it has threads."""


@check("a command starts with default signals, no foreign descriptors and the given directory")
async def clean_start(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        script = "import os; print(sorted(int(f) for f in os.listdir('/proc/self/fd')), os.getcwd())"
        done = await sandbox.run(replace(trial.python(script), cwd="/usr"), timeout_s=20)
        expect(done.stdout.strip() == b"[0, 1, 2, 3] /usr", "descriptors 0, 1, 2 (3 is the listing), cwd", done)
        done = await trial.sh(sandbox, "grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -d ' \\t'")
        masks = done.stdout.decode().split()
        held = [int(mask.split(":")[1], 16) & ~_C_LIBRARYS_OWN for mask in masks]
        expect(held == [0, 0], "no signal is held", masks)


@check("a started command gets further descriptors, which stay open outside")
async def descriptors(trial: Trial) -> None:
    received, sent = os.pipe()
    try:
        async with (
            trial.sandbox() as sandbox,
            sandbox.start(trial.shell("echo told >&3"), descriptors=[sent]) as streams,
        ):
            with anyio.fail_after(20):
                expect((await streams.wait()).code == 0, "it has the descriptor as its 3", await streams.wait())
        expect(os.read(received, 100) == b"told\n", "what it writes there arrives", "something else")
        expect(os.write(sent, b"x") == 1, "the descriptor is open here", "it is not")
    finally:
        os.close(received)
        os.close(sent)


@check("an interrupt reaches the command's whole process group, before anything that is started later")
async def interrupt(trial: Trial) -> None:
    script = "trap 'echo heard' INT; sh -c 'echo ready; exec sleep 60'; echo on; sleep 60"
    async with trial.sandbox() as sandbox, sandbox.start(trial.shell(script)) as streams:
        with anyio.fail_after(20):
            expect(await streams.stdout.receive() == b"ready\n", "it runs", "something else")
            await streams.interrupt()
            said = b""
            while not said.endswith(b"on\n"):
                said += await streams.stdout.receive()
            expect(said == b"heard\non\n", "the shell heard it, and its child ended", said)
    script = f"{trial.subject.python} -c 'import os, time; os.write(1, b\"ready\"); time.sleep(60)'"
    async with trial.sandbox() as sandbox, sandbox.start(trial.shell("exec " + script)) as streams:
        with anyio.fail_after(20):
            await streams.stdout.receive()
            await streams.interrupt()
            await streams.wait()
            await streams.interrupt()  # harmless now


@check("output beyond 1 MiB is cut and said so")
async def long_output(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        done = await trial.sh(sandbox, f"head -c {3 * MEBIBYTE} /dev/zero; echo tail >&2")
        expect(done.truncated and len(done.stdout) == MEBIBYTE, "cut at 1 MiB", (len(done.stdout), done.truncated))
        expect(done.stderr == b"tail\n" and done.status.code == 0, "the command runs to its end", done.stderr)
        done = await trial.sh(sandbox, "echo short")
        expect(not done.truncated, "what is short is whole", done)


@check("64 MB of output arrive whole, and undrained they hold up nobody")
async def flood(trial: Trial) -> None:
    size = 64 * MEBIBYTE
    template = trial.template(f"exec head -c {size} /dev/zero")
    async with trial.sandbox(template) as first, first.attach() as streams:
        received = 0
        async for chunk in streams.stdout:
            received += len(chunk)
        expect(received == size, "every byte arrives", received)
        expect((await streams.wait()).code == 0, "and the command ends well", await streams.wait())
    async with (
        trial.sandbox(template) as stuck,
        stuck.attach(),
        trial.sandbox() as other,
    ):
        done = await trial.sh(other, "echo free", timeout_s=10)
        expect(done.stdout == b"free\n", "another sandbox goes on", done)
        done = await trial.sh(stuck, "echo too", timeout_s=10)
        expect(done.stdout == b"too\n", "and so does the same one", done)


@check("a command that takes too long is killed with all that it started")
async def timeout(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox() as sandbox:
        try:
            await sandbox.run(trial.shell(DAEMON.format(beat=beat) + " sleep 60"), timeout_s=1)
        except TimeoutError:
            pass
        else:
            expect(kept=False, promise="TimeoutError", seen="the command returned")
        await expect_beating(beat)
        await expect_silence(beat, "a daemon dies with the command that was timed out")
        expect((await trial.sh(sandbox, "echo ok")).stdout == b"ok\n", "the sandbox lives on", "it does not")


@check("cancelling a command kills it with all that it started")
async def cancellation(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox() as sandbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sandbox.run, trial.shell(DAEMON.format(beat=beat) + " sleep 60"))
            await expect_beating(beat)
            tasks.cancel_scope.cancel()
        await expect_silence(beat, "a daemon dies with the command that was cancelled")
        expect((await trial.sh(sandbox, "echo ok")).stdout == b"ok\n", "the sandbox lives on", "it does not")


@check("the entry command talks over raw pipes until its stdin closes, and starts once")
async def entry(trial: Trial) -> None:
    async with trial.sandbox(trial.template("echo hello >&2; cat; exit 5")) as sandbox:
        async with sandbox.attach() as streams:
            expect(await streams.stderr.receive() == b"hello\n", "stderr is its own pipe", "something else")
            for message in (b"\x00\xff", b"second\n"):
                await streams.stdin.send(message)
                expect(await streams.stdout.receive() == message, "bytes pass as they are, at once", message)
            await streams.stdin.aclose()
            with anyio.fail_after(10):
                expect(await _read_all(streams) == b"", "after its end there is end of file", "more bytes")
                expect(await streams.wait() == ExitStatus(code=5), "its end is reported", await streams.wait())
            await streams.terminate()  # harmless now
        expect(streams.forced_by is None, "it is told that its closed stdin was enough", streams.forced_by)
        try:
            async with sandbox.attach():
                expect(kept=False, promise="a second attach raises BackendError", seen="it started again")
        except BackendError:
            pass


@check("terminating the entry command is SIGTERM, and giving up waiting leaves it running")
async def terminating(trial: Trial) -> None:
    script = "trap 'echo bye; exit 4' TERM; echo ready; while :; do sleep 0.05; done"
    async with trial.sandbox(trial.template(script)) as sandbox, sandbox.attach() as streams:
        expect(await streams.stdout.receive() == b"ready\n", "it runs", "something else")
        with anyio.move_on_after(0.1):
            await streams.wait()
        await streams.terminate()
        with anyio.fail_after(10):
            expect(await _read_all(streams) == b"bye\n", "it was still there, and heard SIGTERM", "it did not")
            expect((await streams.wait()).code == 4, "it ended by itself", await streams.wait())


@check("leaving ends even an entry command that listens to nothing")
async def stubborn_entry(trial: Trial) -> None:
    beat = trial.beat()
    script = "trap '' TERM INT HUP; " + HEARTBEAT.format(beat=beat)
    async with trial.sandbox(trial.template(script)) as sandbox:
        async with _bounded(20), sandbox.attach() as streams:
            await expect_beating(beat)
        await expect_silence(beat, "it is dead when attach has been left")
        expect(streams.forced_by == signal.SIGKILL, "and it is told what it took", streams.forced_by)


COMMAND_CHECKS: Final[tuple[Check, ...]] = (
    failing_command,
    missing_program,
    given_descriptors,
    terminal,
    environment,
    stdin,
    clean_start,
    descriptors,
    interrupt,
    long_output,
    flood,
    timeout,
    cancellation,
    entry,
    terminating,
    stubborn_entry,
)


@asynccontextmanager
async def _bounded(seconds: float) -> AsyncGenerator[None]:
    with anyio.fail_after(seconds):
        yield


async def _read_all(streams: ByteStreams) -> bytes:
    return b"".join([chunk async for chunk in streams.stdout])


def _environment_in(output: bytes) -> dict[str, str]:
    return dict(entry.decode().split("=", 1) for entry in output.split(b"\0") if entry)
