"""Promises about checkpoints: what is kept, what is gone back to, and who sees what of whom."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import anyio

from headstart.backends.contract import Capabilities, Capture, Checkpoint, RunningSandbox
from headstart.errors import BackendError, NotCapturable
from headstart.testing.contract_trial import Check, NotClaimed, Trial, check, expect

__all__ = ["LAYER_CHECKS"]


def _layers(capabilities: Capabilities) -> bool:
    return capabilities.layers


@asynccontextmanager
async def _layered(trial: Trial) -> AsyncGenerator[RunningSandbox]:
    if trial.subject.adapt(trial.template()).preload is not None:
        raise NotClaimed("forks of a zygote have no layers")
    async with trial.sandbox() as sandbox:
        yield sandbox


@asynccontextmanager
async def _forked(trial: Trial, sandbox: RunningSandbox, at: Checkpoint) -> AsyncGenerator[RunningSandbox]:
    fork = await sandbox.fork(at, trial.identity())
    try:
        yield fork
    finally:
        await fork.aclose()


async def _tree(trial: Trial, sandbox: RunningSandbox) -> bytes:
    """Return everything in the home and /tmp, for comparing: names, kinds, modes, targets, contents."""
    script = 'cd "$HOME" && find . /tmp ! -type s -printf "%p %y %m %l\\n" | sort; find . /tmp -type f -exec cat {} +'
    return (await trial.sh(sandbox, script)).stdout


@check("a checkpoint keeps files as they were: changed, new, removed, renamed, modes, links", claimed=_layers)
async def there_and_back(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        await trial.sh(
            sandbox,
            "cd ~; mkdir -p a/b gone full/x; echo 1 > a/b/c; echo 2 > changed; echo 3 > /tmp/t; chmod 750 a;"
            " ln -s changed link; echo 4 > gone/f; echo 5 > full/x/y",
        )
        before, checkpoint = await _tree(trial, sandbox), await sandbox.checkpoint()
        expect(await _tree(trial, sandbox) == before, "a checkpoint changes nothing", checkpoint)
        await trial.sh(
            sandbox,
            "cd ~; echo new > changed; echo more >> a/b/c; rm -r gone; mv a moved; chmod 700 full; rm link /tmp/t;"
            " mkdir link; echo 6 > link/f; rm -r full; mkdir full; echo 7 > full/z",
        )
        after, later = await _tree(trial, sandbox), await sandbox.checkpoint()
        await trial.sh(sandbox, "cd ~; rm -rf * /tmp/t")
        for kept, wanted in ((checkpoint, before), (later, after), (checkpoint, before)):
            async with _forked(trial, sandbox, kept) as fork:
                seen = await _tree(trial, fork)
                expect(seen == wanted, "whoever goes back finds all as it was", seen)
                await trial.sh(fork, "cd ~; rm -rf *")


@check("a fork begins with the state, and neither sees what the other does", claimed=_layers)
async def apart(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        await sandbox.files.write("shared", b"before")
        checkpoint = await sandbox.checkpoint()
        await sandbox.files.write("mine", b"x")
        async with _forked(trial, sandbox, checkpoint) as one, _forked(trial, sandbox, checkpoint) as other:
            expect(await one.files.read("shared") == b"before", "it begins with the state", "else")
            expect([info.name for info in await one.files.list()] == ["shared"], "as it was then", "else")
            await one.files.write("shared", b"one")
            await other.files.remove("shared")
            await trial.sh(one, "echo hidden > /tmp/hidden")
            expect(await sandbox.files.read("shared") == b"before", "a fork's writes are its own", "else")
            expect(await other.files.list() == [], "also from other forks", await other.files.list())
            expect(await one.files.read("shared") == b"one", "and stay", "else")
            async with _forked(trial, sandbox, await one.checkpoint()) as nephew:
                expect(await nephew.files.read("shared") == b"one", "what a fork keeps is there for its origin", "else")
            seen = await trial.sh(sandbox, "test ! -e /tmp/hidden")
            expect(seen.status.code == 0, "nothing of a fork shows", seen)


@check("a fork outlives its origin, and can be checkpointed and forked itself", claimed=_layers)
async def on_its_own(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        await sandbox.files.write("a", b"1")
        first = await sandbox.checkpoint()
        async with _forked(trial, sandbox, first) as fork:
            await sandbox.aclose()
            await fork.files.write("b", b"2")
            second = await fork.checkpoint()
            async with _forked(trial, fork, second) as grandchild:
                names = [info.name for info in await grandchild.files.list()]
                expect(names == ["a", "b"], "it has both", names)
            async with _forked(trial, fork, first) as back:
                names = [info.name for info in await back.files.list()]
                expect(names == ["a"], "a fork can go back to what its origin kept", names)


@check("nothing changed is told so, and is the same state", claimed=_layers)
async def unchanged(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        await sandbox.files.write("a", b"1")
        await sandbox.checkpoint()
        again = await sandbox.checkpoint()
        expect(again.capture is Capture.UNCHANGED, "nothing was written", again)
        await sandbox.files.write("a", b"2")
        async with _forked(trial, sandbox, again) as fork:
            expect(await fork.files.read("a") == b"1", "it is a state to go back to", "else")


@check(
    "what runs is not captured unless only files are asked for, and then goes on writing to the live side",
    claimed=_layers,
)
async def what_runs(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        line = "cd ~; exec 3>> log; echo 1 >&3; echo ready; read x; echo 2 >&3; cat log; exec sleep 60"
        async with sandbox.start(trial.shell(line)) as streams:
            await streams.stdout.receive()
            try:
                await sandbox.checkpoint()
            except NotCapturable as refusal:
                expect(bool(refusal.held), "who runs is named", refusal)
            else:
                expect(kept=False, promise="it is refused", seen="a checkpoint")
            kept = await sandbox.checkpoint(files_only=True)
            await streams.stdin.send(b"go on\n")
            seen = b""
            with anyio.fail_after(10):
                while b"2" not in seen:
                    seen += await streams.stdout.receive()
            expect(seen == b"1\n2\n", "it goes on where it was", seen)
            expect(await sandbox.files.read("log") == b"1\n2\n", "and everybody sees that", "else")
            async with _forked(trial, sandbox, kept) as fork:
                expect(await fork.files.read("log") == b"1\n", "the checkpoint does not change", "else")


@check(
    "a checkpoint that was forgotten, or is another sandbox's, is a BackendError; forks of it go on", claimed=_layers
)
async def forgotten(trial: Trial) -> None:
    async with _layered(trial) as sandbox, _layered(trial) as stranger:
        await sandbox.files.write("a", b"1")
        checkpoint = await sandbox.checkpoint()
        async with _forked(trial, sandbox, checkpoint) as fork:
            await sandbox.forget(checkpoint)
            await sandbox.forget(checkpoint)
            await sandbox.files.write("a", b"2")
            for other in (sandbox, stranger):
                try:
                    await other.fork(checkpoint, trial.identity())
                except BackendError:
                    continue
                expect(kept=False, promise="BackendError", seen="it worked")
            expect(await fork.files.read("a") == b"1", "a fork of it goes on", "else")
            expect(await sandbox.files.read("a") == b"2", "a refusal changes nothing", "else")


@check("many checkpoints keep every state", claimed=_layers)
async def many(trial: Trial) -> None:
    async with _layered(trial) as sandbox:
        kept: list[Checkpoint] = []
        for number in range(8):
            await trial.sh(sandbox, f"cd ~; echo {number} > n; echo {number} > only-{number}; rm -f only-{number - 1}")
            kept.append(await sandbox.checkpoint())
        for number in (3, 7, 0, 5):
            async with _forked(trial, sandbox, kept[number]) as fork:
                seen = await trial.sh(fork, "cd ~; cat n; ls")
                expect(seen.stdout == b"%d\nn\nonly-%d\n" % (number, number), "each is what it was", seen)


LAYER_CHECKS: Final[tuple[Check, ...]] = (
    there_and_back,
    apart,
    on_its_own,
    unchanged,
    what_runs,
    forgotten,
    many,
)
