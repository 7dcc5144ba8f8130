"""What the local backend's tests start, and as whom."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine import may_make_namespaces

from headstart.backends.contract import (
    Command,
    Identity,
    Limits,
    Mount,
    Network,
    Preload,
    RunningSandbox,
    Template,
)
from headstart.backends.local import LocalBackend, open_local_backend
from headstart.errors import BackendUnavailable
from headstart.ids import SandboxId

__all__ = [
    "ENTRY",
    "ENV",
    "ORDINARY",
    "ROOT",
    "as_root",
    "as_zygote",
    "backend_in",
    "output",
    "sandbox_in",
    "shell",
    "template",
]

ROOT = os.geteuid() == 0
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
ENTRY = Command(argv=("cat",), env=ENV)
ORDINARY = Limits()
as_root = pytest.mark.skipif(not ROOT, reason="needs root")


def shell(script: str) -> Command:
    return Command(argv=("sh", "-c", script), env=ENV)


def template(
    *mounts: Mount, network: Network = Network.NONE, limits: Limits = ORDINARY, command: Command = ENTRY
) -> Template:
    return Template(name="test", command=command, mounts=mounts, network=network, limits=limits)


def as_zygote(plain: Template) -> Template:
    """The same template, forked from a preloaded Python that then becomes its command."""
    become = Path(__file__).parents[2] / "contract" / "become.py"
    python, argv = "/usr/bin/python3", plain.command.argv
    return replace(
        plain,
        command=replace(plain.command, argv=(python, str(become), *argv)),
        preload=Preload(interpreter=python, modules=("json",), entry=(str(become),), args=argv),
        mounts=(*plain.mounts, Mount(source=become, target=become)),
    )


@asynccontextmanager
async def backend_in(folder: Path, *, own_ports: Collection[int] = ()) -> AsyncGenerator[LocalBackend]:
    """Yield a backend, and skip where this machine has no namespaces for this user."""
    async with AsyncExitStack() as stack:
        try:
            backend = await stack.enter_async_context(open_local_backend(folder, own_ports=own_ports))
        except BackendUnavailable as gap:
            if may_make_namespaces():
                raise
            pytest.skip(f"the local backend cannot run here: {gap}")
        yield backend


@asynccontextmanager
async def sandbox_in(
    folder: Path, given: Template | None = None, *, identity: Identity | None = None
) -> AsyncGenerator[RunningSandbox]:
    async with backend_in(folder) as backend:
        prepared = await backend.prepare(given or template())
        sandbox = await backend.start(prepared, identity or Identity(sandbox=SandboxId("sb_1")))
        try:
            yield sandbox
        finally:
            await sandbox.aclose()
            await prepared.aclose()


async def output(sandbox: RunningSandbox, script: str) -> str:
    done = await sandbox.run(shell(script))
    assert done.status.code == 0, done
    return done.stdout.decode().strip()
