"""A service under load, to be killed: eight sandboxes whose servers leave daemons behind.

Stand-alone: `python load.py KIND STATE_DIR BEATS_DIR`, where KIND is `local` or `process`, or
either with `-forked` for forks of one zygote each. Prints one JSON line when all runs:
the pids of this process, of its spawner, and of the sandboxes' inits. Then it goes on
starting and closing further sandboxes until it is killed. With `-checking` it is in the
middle of finding out whether one server can fork, which it will never know.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path

import anyio

from headstart.backends.contract import Backend, Command, Identity, Mount, MountMode, Network, Preload, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.ids import SandboxId
from headstart.runtime.zygotes import FormCheck, choose_form

SANDBOXES = 8
MOUNTS = 100
PYTHON = "/usr/bin/python3"

SERVER = """
import os, subprocess, sys, time
beats, name = sys.argv[1], sys.argv[2]

def beat(kind):
    deadline = time.monotonic() + 60
    with open(f"{beats}/{name}-{kind}", "a", buffering=1) as file:
        while time.monotonic() < deadline:
            file.write("x")
            file.flush()
            time.sleep(0.02)
    os._exit(0)

if os.fork() == 0:                      # a child in a session of its own
    os.setsid()
    beat("session")
if os.fork() == 0:                      # a daemon: forked twice, its parent gone
    os.setsid()
    if os.fork() == 0:
        for number in (1, 2, 15):
            __import__("signal").signal(number, __import__("signal").SIG_IGN)
        beat("daemon")
    os._exit(0)
beat("server")
"""


def opened(kind: str, state: Path) -> AbstractAsyncContextManager[Backend]:
    return open_local_backend(state) if kind.startswith("local") else open_process_backend(state)


def template(kind: str, beats: Path, name: str, network: Network) -> Template:
    argv = (PYTHON, "-I", "-S", "-c", SERVER, str(beats), name)
    become = Path(__file__).parents[1] / "contract" / "become.py"
    forked = "-" in kind
    return Template(
        name=name,
        command=Command(argv=(PYTHON, str(become), *argv) if forked else argv, env={"PATH": "/usr/bin:/bin"}),
        mounts=(Mount(source=beats, target=beats, mode=MountMode.READ_WRITE), Mount(source=become, target=become)),
        network=network,
        preload=Preload(interpreter=PYTHON, modules=("json",), entry=(str(become),), args=argv) if forked else None,
    )


async def serve(kind: str, state: Path, beats: Path) -> None:
    async with opened(kind, state) as backend, AsyncExitStack() as stack:
        for index in range(SANDBOXES):
            network = Network.NONE if kind.startswith("local") and index % 2 else Network.HOST
            prepared = await backend.prepare(template(kind, beats, f"server-{index}", network))
            sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"sbx_{index}")))
            await stack.enter_async_context(sandbox.attach())
        await all_beating(beats, SANDBOXES)
        tell_facts(kind)
        await churn(backend, kind, beats)


async def check(kind: str, state: Path, beats: Path) -> None:
    """Be in the middle of a check: its server beats, and says nothing."""
    async with opened(kind, state) as backend, anyio.create_task_group() as tasks:
        tasks.start_soon(choose_form, template(kind, beats, "server-0", Network.HOST), FormCheck(backend=backend))
        await all_beating(beats, 1)
        tell_facts(kind)


async def all_beating(beats: Path, sandboxes: int) -> None:
    with anyio.fail_after(30):
        while hearts(beats) < 3 * sandboxes:  # noqa: ASYNC110 - other processes write there
            await anyio.sleep(0.02)


def tell_facts(kind: str) -> None:
    sys.stdout.write(json.dumps(facts(kind)) + "\n")
    sys.stdout.flush()


def hearts(beats: Path) -> int:
    return len([path for path in beats.iterdir() if path.stat().st_size])


async def churn(backend: Backend, kind: str, beats: Path) -> None:
    """Be in the middle of something whenever the end comes: of preparing, most of the time."""
    many = tuple(Mount(source=beats, target=Path(f"/many/{index}")) for index in range(MOUNTS))
    for index in range(1_000):
        plain = template(kind, beats, f"churn-{index}", Network.HOST)
        prepared = await backend.prepare(replace(plain, mounts=(*plain.mounts, *many)))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId(f"churn_{index}")))
        await sandbox.run(Command(argv=("/bin/true",)))
        await sandbox.aclose()
        await prepared.aclose()


def facts(kind: str) -> dict[str, object]:
    own = os.getpid()
    children = Path(f"/proc/self/task/{own}/children").read_text().split()
    spawner = int(children[0])
    inits = Path(f"/proc/{spawner}/task/{spawner}/children").read_text().split()
    return {"kind": kind, "pid": own, "spawner": spawner, "inits": [int(pid) for pid in inits]}


if __name__ == "__main__":
    main = check if sys.argv[1].endswith("-checking") else serve
    anyio.run(main, sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
