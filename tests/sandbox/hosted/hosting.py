"""A host of sandboxes on the real local backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from headstart.backends.local import open_local_backend
from headstart.clock import SystemClock
from headstart.ids import IdSource, RandomIds
from headstart.sandbox.hosted import SandboxHost
from headstart.sandbox.sandbox import Sandbox
from headstart.sandbox.templates import TemplateStore

__all__ = ["it_can_go_on", "killed", "on_disk", "open_host"]

_CHILD = Path(__file__).with_name("killed_child.py")


@asynccontextmanager
async def open_host(
    tmp_path: Path, *, ids: IdSource | None = None, node: str | None = None
) -> AsyncGenerator[SandboxHost]:
    """Host sandboxes of the local backend, those of an earlier host in this folder first."""
    async with (
        open_local_backend(tmp_path / "backend") as backend,
        SandboxHost.open(
            backend,
            templates=TemplateStore(tmp_path / "templates"),
            folder=tmp_path / "hosted",
            clock=SystemClock(),
            ids=ids or RandomIds(),
            node=node,
        ) as opened,
    ):
        yield opened


def on_disk(state: Path) -> tuple[set[str], set[str]]:
    """Return what is remembered, and the stores that there are."""
    stores = [path for path in state.rglob("stores/*") if path.is_dir() and not path.name.startswith(".")]
    return {path.name for path in (state / "hosted").iterdir()}, {path.name for path in stores}


def killed(state: Path, act: str, moment: str) -> None:
    """Run a service until it is killed at that moment."""
    run = subprocess.run(
        [sys.executable, str(_CHILD), str(state), act, moment],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(_CHILD.parent), *sys.path))},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == -signal.SIGKILL, run.stderr.decode()[-2000:]


async def it_can_go_on(host: SandboxHost, box: Sandbox, content: bytes) -> None:
    """It is as good as one that was never killed."""
    for each in box.checkpoints:
        await host.rollback(box.id, each.id)
        assert await box.files.read("f") in {b"1", b"2"}
    kept = await host.checkpoint(box.id)
    await box.files.write("f", b"9")
    branch = await host.fork(box.id)
    await branch.files.write("f", b"8")
    await host.commit(branch.id)
    assert await box.files.read("f") == b"8"
    await host.rollback(box.id, kept.id)
    assert await box.files.read("f") == (b"1" if len(box.checkpoints) > 1 else content) or content
