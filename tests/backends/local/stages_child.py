"""A service that does everything once that a store can do, and is killed at one stage of it.

    stages_child.py STATE SHARED STAGE

A stage is a moment right before or after a request to the spawner, or before or after the manifest is
written; they are counted. A program in the sandbox counts meanwhile, in its home and then in SHARED. It
is waited for at the stage: whatever has been changed, it has written since. Each act is told on stdout as in
`storing_child`. With stage 0 it is never killed, and tells how many stages there were.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from headstart.backends.contract import (
    Command,
    FileStore,
    Identity,
    Mount,
    MountMode,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.local import open_local_backend, stored
from headstart.backends.local.sandbox import LocalSandbox
from headstart.backends.spawner.client import SpawnerClient
from headstart.ids import SandboxId

from .storing_child import ENV, LIMITS, flatten_eagerly, tell

COUNTING = (
    'n=0; while :; do n=$((n+1)); echo $n > ~/n.new; mv ~/n.new ~/counter; echo $n > "$0/n"; mv "$0/n" "$0/counter";'
    " sleep 0.005; done"
)
BOX, FORK, LATER = (Identity(sandbox=SandboxId(name)) for name in ("box", "fork", "later"))


class Stages:
    def __init__(self, shared: Path, wanted: int) -> None:
        self.shared = shared
        self.wanted = wanted
        self.reached = 0
        self.counts = False

    def around(self, act: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def staged(*arguments: Any, **details: Any) -> Any:
            await self.reach()
            done = await act(*arguments, **details)
            await self.reach()
            return done

        return staged

    async def reach(self) -> None:
        self.reached += 1
        if self.reached == self.wanted:
            await anyio.to_thread.run_sync(self.die)

    def die(self) -> None:
        before, give_up = self.counted(), time.monotonic() + 2
        while self.counts and self.counted() < before + 3 and time.monotonic() < give_up:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(self) -> int:
        try:
            return int((self.shared / "counter").read_text())
        except FileNotFoundError:
            return 0


async def merged(box: RunningSandbox) -> None:
    assert isinstance(box, LocalSandbox)
    flattening = box.layered.lineage.flattening
    assert flattening is not None
    await flattening.wait()


async def act(store: FileStore, prepared: Prepared, stages: Stages) -> None:
    tell(begin="start", box="box")
    box = await store.start(prepared, BOX)
    tell(done="start", box="box")
    counting = Command(argv=("sh", "-c", COUNTING, str(stages.shared)), env=ENV, cwd="/")
    async with box.start(counting):
        with anyio.fail_after(10):
            while not stages.counted():  # noqa: ASYNC110  it is another process that counts
                await anyio.sleep(0.005)
        stages.counts = True
        tell(begin="checkpoint", box="box")
        first = await box.checkpoint(files_only=True)
        tell(done="checkpoint", box="box", checkpoint=first.id)
        tell(begin="fork", box="fork", checkpoint=first.id)
        fork = await box.fork(first, FORK)
        tell(done="fork", box="fork", checkpoint=first.id)
        async with box.start(Command(argv=("sh", "-c", "exec 3> ~/held; echo; sleep 60"), env=ENV)) as held:
            await held.stdout.receive()
            tell(begin="checkpoint", box="box")
            second = await box.checkpoint(files_only=True)
            tell(done="checkpoint", box="box", checkpoint=second.id)
        tell(begin="forget", checkpoint=first.id)
        await box.forget(first)
        tell(done="forget", checkpoint=first.id)
        for _ in range(2):  # what lies between them and the second one is merged
            tell(begin="checkpoint", box="box")
            dropped = await box.checkpoint(files_only=True)
            tell(done="checkpoint", box="box", checkpoint=dropped.id)
            tell(begin="forget", checkpoint=dropped.id)
            await box.forget(dropped)
            tell(done="forget", checkpoint=dropped.id)
        await merged(box)
        tell(begin="end", box="fork")
        await fork.aclose()
        tell(done="end", box="fork")
        await store.flush()
        await store.keep_only([BOX.sandbox], [second.id])


async def main() -> None:
    state, shared, wanted = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    stages = Stages(shared, wanted)
    flatten_eagerly()
    async with open_local_backend(state) as backend:
        template = Template(name="t", command=Command(argv=("cat",), env=ENV), limits=LIMITS)
        mount = Mount(source=shared, target=shared, mode=MountMode.READ_WRITE)
        prepared = await backend.prepare(replace(template, mounts=(mount,)))
        for owner, name in (
            (SpawnerClient, "start"),
            (SpawnerClient, "errand"),
            (SpawnerClient, "store_errand"),
            (SpawnerClient, "close"),
            (stored.StoredLayers, "_note"),
        ):
            setattr(owner, name, stages.around(getattr(owner, name)))
        store = await backend.stores.open("store", limits=LIMITS)
        await act(store, prepared, stages)
        await store.aclose()
        tell(stages=stages.reached)


if __name__ == "__main__":
    anyio.run(main)
