"""A service that is busy until it is killed: `BACKEND STATE_DIR MARKER`; the marker is in every command."""

from __future__ import annotations

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio

from headstart.backends.contract import Backend, Command, Identity, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.ids import SandboxId

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


async def main(kind: str, state_dir: Path, marker: str) -> None:
    daemon = f"(setsid sleep {marker} </dev/null >/dev/null 2>&1 &)"
    busy = Command(argv=("sh", "-c", f"{daemon}; exec sleep {marker}"), env=ENV)
    async with open_backend(kind, state_dir) as backend, anyio.create_task_group() as tasks:
        prepared = await backend.prepare(Template(name="load", command=busy))
        for number in range(10):
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sb_{number}")))
            tasks.start_soon(sandbox.run, busy)
        last = await backend.start(prepared, Identity(sandbox=SandboxId("sb_last")))
        await last.run(Command(argv=("sh", "-c", daemon), env=ENV))
        sys.stdout.write("loaded")
        sys.stdout.flush()
        while True:
            churn = await backend.start(prepared, Identity(sandbox=SandboxId("sb_churn")))
            await churn.aclose()


def open_backend(kind: str, state_dir: Path) -> AbstractAsyncContextManager[Backend]:
    return {"process": open_process_backend, "local": open_local_backend}[kind](state_dir)


anyio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
