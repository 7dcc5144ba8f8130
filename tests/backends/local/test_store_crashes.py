"""Stores under kill -9 at any moment: of the service, of its spawner, of the helpers."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.machine import where_files_outlive

from headstart.backends.contract import (
    FileStore,
    Identity,
    Mount,
    MountMode,
    Prepared,
    RunningSandbox,
    Template,
)
from headstart.backends.local.guest import private
from headstart.backends.local.sandbox import LocalSandbox
from headstart.backends.spawner.guest import processes
from headstart.ids import SandboxId

from .driving import backend_in, output, template
from .storing_child import LIMITS

pytestmark = [pytest.mark.anyio, where_files_outlive]

STRIDE = int(os.environ.get("HEADSTART_CRASH_STRIDE", "5"))
FIRST = int(os.environ.get("HEADSTART_CRASH_FIRST", "2"))
"""Every fifth stage is tried, beginning so that it is tried, too, when a tree has been swapped and nobody has noted it."""
ROUNDS = int(os.environ.get("HEADSTART_CRASH_ROUNDS", "4"))
SHOWN = 'cd ~; for f in k*; do [ -e "$f" ] && echo "$f=$(cat $f)"; done; true'
Contents = dict[str, str]


@dataclass
class Known:
    """What has been told to be done, and what may have been: it had begun."""

    boxes: dict[str, Contents] = field(default_factory=dict[str, Contents])
    kept: dict[str, Contents] = field(default_factory=dict[str, Contents])
    begun: dict[str, Any] | None = None
    failed: dict[str, Any] | None = None
    """The first that has failed since anything was done: it may have had its effect before its spawner went."""
    done: Counter[str] = field(default_factory=Counter[str])

    def take(self, line: str) -> None:
        told = json.loads(line)
        if "begin" in told:
            self.begun = told
        elif "done" in told:
            self.done[told["done"]] += 1
            self.apply({"begin": told["done"], **told})
            self.begun = self.failed = None
        elif "failed" in told:
            self.failed = self.failed or self.begun

    def apply(self, told: dict[str, Any]) -> None:
        match told:
            case {"begin": "start", "box": box}:
                self.boxes.setdefault(box, {})
            case {"begin": "write", "box": box, "key": key, "value": value}:
                self.boxes[box][key] = value
            case {"begin": "checkpoint", "box": box, "checkpoint": checkpoint}:
                self.kept[checkpoint] = dict(self.boxes[box])
            case {"begin": "fork", "box": box, "checkpoint": checkpoint}:
                self.boxes[box] = dict(self.kept[checkpoint])
            case {"begin": "forget", "checkpoint": checkpoint}:
                self.kept.pop(checkpoint, None)
            case {"begin": "end", "box": box}:
                self.boxes.pop(box, None)
            case _:
                pass

    def expect(self, boxes: dict[str, Contents], kept: dict[str, Contents]) -> None:
        """Require that what was done is there, and no more than what may have been; know from now on what it is."""
        begun = self.begun or {}
        unsure = {told.get(what) for told in (begun, self.failed or {}) for what in ("box", "checkpoint")}
        if begun.get("begin") == "checkpoint":
            new = [name for name in kept if name not in self.kept and name.startswith(f"{begun['box']}.")]
            unsure |= set(new[:1])
        assert boxes.keys() - unsure == self.boxes.keys() - unsure, self
        assert kept.keys() - unsure == self.kept.keys() - unsure, self
        may_be = [self.after(told) for told in ({}, begun, self.failed or {})]
        for name, contents in boxes.items():
            assert contents in [known.boxes.get(name) for known in may_be], (name, contents, self)
        for name, contents in kept.items():
            had = self.kept.get(name, self.boxes.get(begun.get("box", "")))
            assert contents == had, (name, contents, self)
        self.boxes, self.kept, self.begun, self.failed = boxes, kept, None, None

    def after(self, told: dict[str, Any]) -> Known:
        """Return what is known if something has been done, too."""
        known = Known({name: dict(had) for name, had in self.boxes.items()}, {**self.kept})
        with suppress(KeyError):
            known.apply(told)
        return known


async def shown(sandbox: RunningSandbox) -> Contents:
    return dict(line.split("=", 1) for line in (await output(sandbox, SHOWN)).splitlines())


@asynccontextmanager
async def opened(folder: Path, given: Template | None = None) -> AsyncGenerator[tuple[FileStore, Prepared]]:
    async with backend_in(folder) as backend:
        prepared = await backend.prepare(given or template(limits=LIMITS))
        yield await backend.stores.open("store", limits=LIMITS), prepared


async def look(folder: Path, given: Template | None = None) -> tuple[dict[str, Contents], dict[str, Contents]]:
    """Return what is in each sandbox and checkpoint, once nothing is there any more that none of them needs."""
    boxes, kept = dict[str, Contents](), dict[str, Contents]()
    async with opened(folder, given) as (store, prepared):
        names = list(store.sandboxes)
        looker = await store.start(prepared, Identity(sandbox=SandboxId("looker")))
        for name in names:
            boxes[name] = await shown(await store.start(prepared, Identity(sandbox=name)))
        for checkpoint in store.checkpoints:
            back = await looker.fork(checkpoint, Identity(sandbox=SandboxId("back")))
            kept[checkpoint.id] = await shown(back)
            await back.aclose()
        with anyio.fail_after(10):
            while layers_there(folder, looker) != layers_needed(looker):  # noqa: ASYNC110  helpers delete them
                await anyio.sleep(0.01)
        await looker.aclose()
    return boxes, kept


def layers_there(folder: Path, sandbox: RunningSandbox) -> set[str]:
    assert isinstance(sandbox, LocalSandbox)
    plain = folder / "stores" / "store" / "files" / "layers"
    layers = plain if plain.exists() else Path(f"/proc/{sandbox.pid}/root{private.SCRATCH}")
    return {path.name for path in layers.iterdir()}


def layers_needed(sandbox: RunningSandbox) -> set[str]:
    assert isinstance(sandbox, LocalSandbox)
    return set(sandbox.layered.lineage.held)


def helpers_of(service: int) -> list[int]:
    """Those that the spawner has forked and that are no sandbox's first process."""
    found: list[int] = []
    for spawner in processes.children(service):
        for pid in processes.children(spawner):
            with suppress(OSError):
                if b"headstart-init" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def serve_until_killed(folder: Path, known: Known, *, seed: int, victim: str) -> None:
    """Have a service act, and kill the victim some acts later; note what it tells."""
    chance = random.Random(seed)
    argv = [sys.executable, "-m", "tests.backends.local.storing_child", str(folder), str(seed)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], text=True) as service:
        guard = threading.Timer(60, lambda: kill(service.pid))
        guard.start()
        assert service.stdout is not None
        for lines, line in enumerate(service.stdout):
            known.take(line)
            if victim == "helpers" and chance.random() < 0.5:
                time.sleep(chance.random() * 0.004)
                for helper in helpers_of(service.pid):
                    kill(helper)
            if lines > 10 and chance.random() < 0.04:
                time.sleep(chance.random() * 0.01)
                for pid in processes.children(service.pid) if victim == "spawner" else [service.pid]:
                    kill(pid)
        guard.cancel()


@pytest.mark.parametrize("victim", ["service", "spawner", "helpers"])
async def test_whatever_is_killed_when_every_state_is_the_old_one_or_the_new_one(victim: str, tmp_path: Path) -> None:
    await may_run(tmp_path)
    known = Known()
    for seed in range(1, ROUNDS + 1):
        await anyio.to_thread.run_sync(partial(serve_until_killed, tmp_path, known, seed=seed, victim=victim))
        known.expect(*await look(tmp_path))
    assert known.done.keys() == {"start", "write", "checkpoint", "fork", "forget", "end"}, known.done


async def run_until_stage(state: Path, shared: Path, stage: int, known: Known) -> int:
    """Have a service do everything once, and be killed at a stage; return how many there were if it was not."""
    argv = [sys.executable, "-m", "tests.backends.local.stages_child", str(state), str(shared), str(stage)]
    with anyio.fail_after(60):
        done = await anyio.run_process(argv, cwd=Path(__file__).parents[3], stderr=None, check=False)
    last = "{}"
    for last in done.stdout.decode().splitlines():
        known.take(last)
    return json.loads(last).get("stages", 0)


async def test_whatever_stage_the_service_is_killed_at_nothing_that_was_written_is_lost(tmp_path: Path) -> None:
    await may_run(tmp_path)
    stages = await run_until_stage(*folders(tmp_path / "all"), 0, Known())
    assert stages > 30
    for stage in range(FIRST, stages + 1, STRIDE):
        known, (state, shared) = Known(), folders(tmp_path / str(stage))
        await run_until_stage(state, shared, stage, known)
        given = template(Mount(source=shared, target=shared, mode=MountMode.READ_WRITE), limits=LIMITS)
        known.expect(*await look(state, given))
        counted = int((shared / "counter").read_text()) if (shared / "counter").exists() else 0
        if counted:
            async with opened(state, given) as (store, prepared):
                box = await store.start(prepared, Identity(sandbox=SandboxId("box")))
                assert int(await output(box, "cat ~/counter")) >= counted, stage


def folders(folder: Path) -> tuple[Path, Path]:
    state, shared = folder / "state", folder / "shared"
    for path in (state, shared):
        path.mkdir(parents=True)
    shared.chmod(0o777)
    return state, shared


async def may_run(folder: Path) -> None:
    """Skip where there are no namespaces."""
    async with backend_in(folder):
        pass
