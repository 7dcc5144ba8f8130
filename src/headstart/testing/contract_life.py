"""Promises about sandboxes: starting many, closing, dying, and what is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import anyio

from headstart.backends.contract import Leftovers, Mount, RunningSandbox
from headstart.errors import BackendError
from headstart.testing.contract_trial import (
    DAEMON,
    Check,
    ContractViolation,
    NotClaimed,
    Trial,
    check,
    expect,
    expect_beating,
    expect_silence,
)

__all__ = ["LIFE_CHECKS"]

AT_ONCE: Final = 8


@check("sandboxes start concurrently and are not confused")
async def concurrent_starts(trial: Trial) -> None:
    answers: dict[str, bytes] = {}

    async def one() -> None:
        identity = trial.identity()
        async with trial.sandbox(identity=replace(identity, env={"WHO": identity.sandbox})) as sandbox:
            command = replace(trial.shell("echo $WHO"), env={"WHO": identity.sandbox, "PATH": trial.subject.path})
            answers[sandbox.id] = (await sandbox.run(command, timeout_s=30)).stdout

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(one)
    expect(len(answers) == AT_ONCE, "all of them start", answers)
    expect(all(said == f"{who}\n".encode() for who, said in answers.items()), "each is itself", answers)


@check("commands of one sandbox run at the same time")
async def concurrent_commands(trial: Trial) -> None:
    async with trial.sandbox() as sandbox:
        meet = trial.beat()
        script = f"echo x >> {meet}; while [ $(wc -l < {meet}) -lt 2 ]; do sleep 0.02; done"
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(trial.sh, sandbox, script)


@check("closing kills daemons, is idempotent, completes under cancellation, and is final")
async def closing(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox(trial.template(DAEMON.format(beat=beat) + " exec cat")) as sandbox:
        async with sandbox.attach():
            await expect_beating(beat)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await sandbox.aclose()
            await expect_silence(beat, "a daemon dies with its sandbox")
        await sandbox.aclose()
        await _expect_gone(trial, sandbox)


@check("a daemon of one sandbox survives the end of another")
async def independence(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.sandbox(trial.template(DAEMON.format(beat=beat) + " exec cat")) as first, first.attach():
        async with trial.sandbox() as second:
            await trial.sh(second, "true")
        beat.write_bytes(b"")
        await expect_beating(beat)


@check("nothing is left when the backend has ended, whatever was still running")
async def nothing_left(trial: Trial) -> None:
    beat = trial.beat()
    async with trial.another_backend() as backend:
        prepared = await backend.prepare(trial.subject.adapt(trial.template()))
        sandboxes = [await backend.start(prepared, trial.identity()) for _ in range(3)]
        await trial.sh(sandboxes[0], DAEMON.format(beat=beat) + " true")
        await expect_beating(beat)
        busy = await backend.leftovers()
        expect(busy.processes > 0, "while it runs, its processes are counted", busy)
        for sandbox in sandboxes[1:]:
            await sandbox.aclose()  # the first is left to the backend
    expect(await backend.leftovers() == Leftovers(), "nothing is left", await backend.leftovers())
    await expect_silence(beat, "no daemon outlives the backend")


@check("usage is sane: memory charged once, CPU counted, processes seen")
async def usage(trial: Trial) -> None:
    async with trial.sandbox() as sandbox, sandbox.attach():
        idle = await sandbox.usage()
        expect(0 < idle.memory_bytes < 500_000_000, "an idle shell holds some memory and not much", idle)
        expect(idle.processes >= 1, "its processes are counted", idle)
        burn = "import time\nwhile time.process_time() < 0.5: pass"
        await sandbox.run(trial.python(burn), timeout_s=30)
        busy = await sandbox.usage()
        burnt = busy.cpu_s - idle.cpu_s
        expect(0.4 <= burnt <= 5.0, "half a CPU-second shows as that", burnt)
        alone_s = await sandbox.cpu_s()
        expect(abs(alone_s - busy.cpu_s) <= 0.2, "and the same when only that is asked", (alone_s, busy.cpu_s))


@check("what runs in the background can be hurried")
async def priority(trial: Trial) -> None:
    async with trial.sandbox(background=True) as sandbox, trial.sandbox() as other:
        expect((await trial.sh(sandbox, "echo slow")).stdout == b"slow\n", "it runs in the background", "it does not")
        await sandbox.raise_priority()
        await sandbox.raise_priority()
        niceness, full = [(await trial.sh(each, "nice")).stdout for each in (sandbox, other)]
        expect(niceness == full, "and then at its full share", "niced")


@check("a mount whose source is missing fails at prepare, by name")
async def missing_mount(trial: Trial) -> None:
    if not trial.isolated:
        raise NotClaimed("without isolation there are no mounts")
    gone = trial.shared / "not-there"
    template = replace(trial.template(), mounts=(Mount(source=gone, target=gone),))
    try:
        await trial.backend.prepare(template)
    except BackendError as error:
        expect(str(gone) in str(error), "the message names the path", str(error))
    else:
        expect(kept=False, promise="BackendError", seen="prepared")


async def _expect_gone(trial: Trial, sandbox: RunningSandbox) -> None:
    try:
        done = await trial.sh(sandbox, "echo alive")
    except BackendError:
        return
    raise ContractViolation(f"a closed sandbox raises BackendError; seen: {done!r}")


LIFE_CHECKS: Final[tuple[Check, ...]] = (
    concurrent_starts,
    concurrent_commands,
    closing,
    independence,
    nothing_left,
    usage,
    priority,
    missing_mount,
)
