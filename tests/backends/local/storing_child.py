"""A service whose sandboxes write, checkpoint, fork and end at random in a store, until somebody kills it.

    storing_child.py STATE SEED

Each act is told on stdout, one JSON object a line, before it begins and when it is done or has
failed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import anyio
import anyio.lowlevel

from headstart.backends.contract import (
    Checkpoint,
    Command,
    FileStore,
    Identity,
    Limits,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.local import flattening, open_local_backend
from headstart.errors import BackendError
from headstart.ids import SandboxId

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
LIMITS = Limits(scratch_bytes=100_000_000)
MOST_SANDBOXES, MOST_CHECKPOINTS, KEYS = 4, 5, 4


def tell(**what: object) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def flatten_eagerly() -> None:
    """Have every two layers merged that may be."""
    flattening._MANY = 1  # pyright: ignore[reportPrivateUsage]


class Acting:
    def __init__(self, store: FileStore, prepared: Prepared, seed: int) -> None:
        self.store = store
        self.prepared = prepared
        self.random = random.Random(seed)
        self.running: dict[str, RunningSandbox] = {}
        self.kept: dict[str, Checkpoint] = {checkpoint.id: checkpoint for checkpoint in store.checkpoints}
        self.number = seed * 1000

    async def go_on(self) -> None:
        for name in self.store.sandboxes:
            await self.start(name)
        while True:
            act = self.random.choice([self.write, self.write, self.keep, self.keep, self.fork, self.end, self.restart])
            try:
                await act()
            except BackendError as error:
                tell(failed=str(error))
                await anyio.lowlevel.checkpoint()  # the spawner may be gone, and whoever uses it be cancelled

    async def start(self, name: str) -> None:
        tell(begin="start", box=name)
        self.running[name] = await self.store.start(self.prepared, Identity(sandbox=SandboxId(name)))
        tell(done="start", box=name)

    async def write(self) -> None:
        if not self.running:
            return await self.start(self.new_name())
        name = self.random.choice(sorted(self.running))
        self.number += 1
        what = {"box": name, "key": f"k{self.random.randrange(KEYS)}", "value": str(self.number)}
        tell(begin="write", **what)
        script = f"cd ~; echo {what['value']} > new; mv new {what['key']}"
        done = await self.running[name].run(Command(argv=("sh", "-c", script), env=ENV))
        tell(done="write", **what) if done.status.code == 0 else tell(failed=str(done))
        return None

    async def keep(self) -> None:
        if not self.running or len(self.kept) >= MOST_CHECKPOINTS:
            return await self.forget()
        name = self.random.choice(sorted(self.running))
        tell(begin="checkpoint", box=name)
        if self.random.random() < 0.3:
            script = "exec 3>> ~/held; rm ~/held; echo; sleep 60"
            async with self.running[name].start(Command(argv=("sh", "-c", script), env=ENV)) as held:
                await held.stdout.receive()
                checkpoint = await self.running[name].checkpoint(files_only=True)
        else:
            checkpoint = await self.running[name].checkpoint()
        self.kept[checkpoint.id] = checkpoint
        tell(done="checkpoint", box=name, checkpoint=checkpoint.id)
        return None

    async def forget(self) -> None:
        if not self.kept or not self.running:
            return
        checkpoint = self.kept.pop(self.random.choice(sorted(self.kept)))
        tell(begin="forget", checkpoint=checkpoint.id)
        await self.running[min(self.running)].forget(checkpoint)
        tell(done="forget", checkpoint=checkpoint.id)

    async def fork(self) -> None:
        if not self.kept or not self.running or len(self.running) >= MOST_SANDBOXES:
            return
        checkpoint, name = self.kept[self.random.choice(sorted(self.kept))], self.new_name()
        tell(begin="fork", box=name, checkpoint=checkpoint.id)
        self.running[name] = await self.running[min(self.running)].fork(checkpoint, Identity(sandbox=SandboxId(name)))
        tell(done="fork", box=name, checkpoint=checkpoint.id)

    async def end(self) -> None:
        if len(self.running) <= 1:
            return
        name = self.random.choice(sorted(self.running))
        tell(begin="end", box=name)
        await self.running.pop(name).aclose()
        tell(done="end", box=name)

    async def restart(self) -> None:
        if self.running:
            name = self.random.choice(sorted(self.running))
            await self.store.stop(SandboxId(name))
            del self.running[name]
            await self.start(name)

    def new_name(self) -> str:
        self.number += 1
        return f"box-{self.number}"


async def main() -> None:
    flatten_eagerly()
    async with open_local_backend(Path(sys.argv[1])) as backend:
        prepared = await backend.prepare(Template(name="t", command=Command(argv=("cat",), env=ENV), limits=LIMITS))
        await Acting(await backend.stores.open("store", limits=LIMITS), prepared, int(sys.argv[2])).go_on()


if __name__ == "__main__":
    anyio.run(main)
