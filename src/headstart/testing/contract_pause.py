"""Promises about pausing: what stands still, what is refused meanwhile, and that nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from headstart.backends.contract import ByteStreams, Capabilities
from headstart.errors import BackendError, SandboxPaused
from headstart.testing.contract_trial import (
    DAEMON,
    QUIET_S,
    Check,
    Trial,
    check,
    expect,
    expect_beating,
    expect_silence,
)

__all__ = ["PAUSE_CHECKS"]

_AT_ONCE_S = 2.0
_COUNTS = "i=0; while :; do i=$((i+1)); echo $i; done"


def _pausing(capabilities: Capabilities) -> bool:
    return capabilities.pausing


async def _drained(streams: ByteStreams) -> bytes:
    """Return what a command has said, until it says no more for a while."""
    said = b""
    with anyio.move_on_after(10) as patience:
        while True:
            with anyio.move_on_after(QUIET_S) as quiet:
                said += await streams.stdout.receive()
            if quiet.cancelled_caught:
                return said
    expect(not patience.cancelled_caught, "output stops", said[-80:])
    return said


@check("what is paused stands still, daemons too, uses no CPU, and goes on where it was", claimed=_pausing)
async def stands_still(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox() as sandbox, sandbox.start(trial.shell(_COUNTS)) as counter:
        await trial.sh(sandbox, DAEMON.format(beat=beat))
        await expect_beating(beat)
        said = await counter.stdout.receive()
        await sandbox.pause()
        expect(sandbox.paused, "it is told", sandbox.paused)
        size = beat.stat().st_size
        said += await _drained(counter)
        before = await sandbox.usage()
        await anyio.sleep(QUIET_S)
        after = await sandbox.usage()
        expect(beat.stat().st_size == size, "a daemon stands still", beat.stat().st_size - size)
        expect(after.cpu_s - before.cpu_s < QUIET_S / 10, "no CPU is used", after.cpu_s - before.cpu_s)
        await sandbox.resume()
        expect(not sandbox.paused, "it is told", sandbox.paused)
        seen = said.count(b"\n")
        with anyio.fail_after(10):
            while said.count(b"\n") < seen + 10_000:
                said += await counter.stdout.receive()
        numbers = said.rpartition(b"\n")[0].split()
        expect(numbers == [b"%d" % n for n in range(1, len(numbers) + 1)], "nothing it said is lost", numbers[:5])
        size = beat.stat().st_size
        with anyio.fail_after(10):
            while beat.stat().st_size == size:  # noqa: ASYNC110 - it is another process that writes
                await anyio.sleep(0.02)


@check("pausing and resuming are idempotent, and what cannot be done meanwhile is refused at once", claimed=_pausing)
async def refused(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        await sandbox.resume()
        await sandbox.files.write("a", b"1")
        kept = await sandbox.checkpoint() if _has_layers(trial) else None
        await sandbox.pause()
        await sandbox.pause()
        async with _refused_at_once("run"):
            await trial.sh(sandbox, "true")
        for name, entered in (("start", sandbox.start(trial.shell("true"))), ("attach", sandbox.attach())):
            async with _refused_at_once(name), entered:
                pass
        files = sandbox.files
        acts: list[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("read", lambda: files.read("a")),
            ("write", lambda: files.write("a", b"2")),
            ("list", files.list),
            ("stat", lambda: files.stat("a")),
            ("make_folder", lambda: files.make_folder("b")),
            ("rename", lambda: files.rename("a", "b")),
            ("remove", lambda: files.remove("a")),
        ]
        if kept is not None:
            acts.append(("checkpoint", lambda: sandbox.checkpoint(files_only=True)))
            acts.append(("fork", lambda: sandbox.fork(kept, trial.identity())))
        for name, act in acts:
            async with _refused_at_once(name):
                await act()
        with anyio.fail_after(10):
            await sandbox.usage()  # of an init alone that may be nothing: to look is what must be possible
        await sandbox.resume()
        await sandbox.resume()
        expect(await sandbox.files.read("a") == b"1", "what was refused was not done", "else")
        async with sandbox.attach():
            done = await trial.sh(sandbox, "echo works")
        expect(done.stdout == b"works\n", "and then all works", done)


def _has_layers(trial: Trial) -> bool:
    return trial.backend.capabilities.layers and not _is_forked(trial)


def _is_forked(trial: Trial) -> bool:
    return trial.subject.adapt(trial.template()).preload is not None


@asynccontextmanager
async def _refused_at_once(name: str) -> AsyncGenerator[None]:
    with anyio.move_on_after(_AT_ONCE_S):
        try:
            yield
        except SandboxPaused as refusal:
            expect(bool(refusal.hint), "the cure is told", refusal)
            return
        expect(kept=False, promise=f"{name} is refused", seen="it worked")
    expect(kept=False, promise=f"{name} is refused at once", seen="it hangs")


@check("what was stopped before stays so when the sandbox is resumed", claimed=_pausing)
async def stopped_before(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox() as sandbox:
        script = (
            f"{DAEMON.format(beat=beat)} sleep 60 & kill -STOP $!; echo $!;"
            " until grep -q '^State:.T' /proc/$!/status; do sleep 0.01; done; cat"
        )
        async with sandbox.start(trial.shell(script)) as streams:
            with anyio.fail_after(10):
                stopped = int(await streams.stdout.receive())
            await expect_beating(beat)
            await sandbox.pause()
            await sandbox.resume()
            seen = await trial.sh(sandbox, f"grep '^State' /proc/{stopped}/status")
            expect(b"T" in seen.stdout, "it stays stopped", seen)


@check("a paused sandbox can be closed, and its daemons die with it", claimed=_pausing)
async def closed(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox() as sandbox:
        async with sandbox.start(trial.shell("sleep 600")):
            await trial.sh(sandbox, DAEMON.format(beat=beat))
            await expect_beating(beat)
            await sandbox.pause()
            await sandbox.aclose()
        await expect_silence(beat, "a daemon dies")
        left = await trial.backend.leftovers()
        expect(left.processes == 0 or _is_forked(trial), "none is left", left)
        for act in (sandbox.pause, sandbox.resume):
            try:
                await act()
            except BackendError as error:
                expect(not isinstance(error, SandboxPaused), "it is gone, not paused", error)
            else:
                expect(kept=False, promise="BackendError once it is gone", seen="it worked")


PAUSE_CHECKS: Final[tuple[Check, ...]] = (stands_still, refused, stopped_before, closed)
