"""What nobody has claimed uses no more CPU than it may; seen on real processes that would use all there is."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from headstart.backends.contract import Backend, Command, Identity, Mount, Network, Preload, RunningSandbox, Template
from headstart.backends.local import open_local_backend
from headstart.backends.process import open_process_backend
from headstart.errors import BackendUnavailable
from headstart.ids import SandboxId
from headstart.runtime.allowance import Allowance

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import may_make_namespaces

pytestmark = pytest.mark.anyio

LIMIT_S = 0.6
LATE_S = 0.5
"""How much a look may come too late on a machine that has other things to do."""

PYTHON = "/usr/bin/python3"
BURNS = "import json\nwhile True: json.dumps(list(range(100)))\n"


@asynccontextmanager
async def _backend(kind: str, folder: Path) -> AsyncGenerator[Backend]:
    async with AsyncExitStack() as stack:
        if kind == "process":
            yield await stack.enter_async_context(open_process_backend(folder))
            return
        try:
            backend = await stack.enter_async_context(open_local_backend(folder))
        except BackendUnavailable as gap:
            if may_make_namespaces():
                raise
            pytest.skip(f"the local backend cannot run here: {gap}")
        yield backend


def _template(kind: str, folder: Path) -> Template:
    folder.chmod(0o755)
    script = folder / "burns.py"
    script.write_text(BURNS)
    plain = Template(
        name="burns",
        command=Command(argv=(PYTHON, str(script)), env={"PATH": "/usr/bin:/bin"}),
        mounts=(Mount(source=script, target=script),),
        network=Network.HOST if kind == "process" else Network.NONE,
    )
    if kind != "zygote":
        return plain
    return replace(plain, preload=Preload(interpreter=PYTHON, modules=("json",), entry=(str(script),)))


class Asked:
    """Is asked for more CPU, and wakes who waits for that."""

    def __init__(self) -> None:
        self._again = anyio.Event()

    async def __call__(self, sandbox: RunningSandbox) -> None:
        self._again.set()
        self._again = anyio.Event()

    async def again(self) -> None:
        with anyio.fail_after(60):
            await self._again.wait()

    async def until_paused(self, sandbox: RunningSandbox) -> None:
        while not sandbox.paused:
            await self.again()


async def _goes_on(allowance: Allowance) -> None:
    with anyio.fail_after(60):
        while allowance.holds:
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("kind", ["process", "local", "zygote"])
async def test_it_stands_still_at_its_limit_goes_on_when_it_may_use_more_and_without_one_when_somebody_comes(
    kind: str, tmp_path: Path
) -> None:
    asked = Asked()
    allowance = Allowance(LIMIT_S, cores=1, ask=asked, may_stand=lambda: True, standing=nullcontext)
    async with _backend(kind, tmp_path / "state") as backend, anyio.create_task_group() as tasks:
        prepared = await backend.prepare(_template(kind, tmp_path))
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        async with sandbox.attach():
            tasks.start_soon(allowance.keep, sandbox)
            await asked.until_paused(sandbox)
            assert allowance.holds
            used_s = await sandbox.cpu_s()
            assert 0.0 < used_s <= LIMIT_S + LATE_S

            await asked.again()  # a second later
            assert await sandbox.cpu_s() == pytest.approx(used_s, abs=0.011), "it uses nothing meanwhile"

            allowance.change(used_s + LIMIT_S)
            await _goes_on(allowance)
            await asked.until_paused(sandbox)
            more_s = await sandbox.cpu_s()
            assert used_s < more_s <= used_s + LIMIT_S + LATE_S

            allowance.change(None)
            await _goes_on(allowance)
            with anyio.fail_after(60):
                while await sandbox.cpu_s() < more_s + 2 * LIMIT_S:
                    await anyio.lowlevel.checkpoint()
            await sandbox.aclose()
        await prepared.aclose()
