"""What stands in for limits in the process backend (the kernel's own, of each process), and who has to yield."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from headstart.backends.contract import Command, Identity, Limits, Preload, RunningSandbox, Template
from headstart.backends.process import open_process_backend
from headstart.ids import SandboxId

pytestmark = pytest.mark.anyio

PYTHON = "/usr/bin/python3"
BECOME = str(Path(__file__).parents[2] / "contract" / "become.py")
SHOW = Command(argv=("/bin/cat", "/proc/self/limits"), env={"PATH": "/usr/bin:/bin"})
COLD = Template(name="shows its limits", command=SHOW, limits=Limits(memory_bytes=200_000_000, scratch_bytes=3_000_000))
FORKED = replace(
    COLD,
    command=replace(SHOW, argv=(PYTHON, BECOME, *SHOW.argv)),
    preload=Preload(interpreter=PYTHON, modules=("json",), entry=(BECOME,), args=SHOW.argv),
)
WANTED = {"data": ["200000000"] * 2, "file": ["3000000"] * 2, "core": ["0"] * 2}
"""Soft and hard."""


@pytest.mark.parametrize("template", [COLD, FORKED], ids=["cold", "forked"])
async def test_memory_files_and_core_dumps_of_every_process_are_limited(template: Template, tmp_path: Path) -> None:
    async with open_process_backend(tmp_path) as backend:
        prepared = await backend.prepare(template)
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")))
        assert limits_in(await said_by_entry(sandbox)) == WANTED
        assert limits_in((await sandbox.run(SHOW)).stdout) == WANTED
        await sandbox.aclose()
        await prepared.aclose()


async def said_by_entry(sandbox: RunningSandbox) -> bytes:
    said = b""
    with anyio.fail_after(30):
        async with sandbox.attach() as stdio:
            async for chunk in stdio.stdout:
                said += chunk
    return said


def limits_in(told: bytes) -> dict[str, list[str]]:
    """Read lines such as `Max core file size   0   0   bytes`."""
    rows = [line.split() for line in told.decode().splitlines() if line.split()[1] in WANTED and "size" in line]
    return {row[1]: row[row.index("size") + 1 : -1] for row in rows}


def may_take_niceness_back() -> bool:
    """Say it from what the kernel goes by: a capability, in the first user namespace."""
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    return bool(int(status["CapEff"], 16) >> 23 & 1) and "4294967295" in Path("/proc/self/uid_map").read_text()


@pytest.mark.skipif(not may_take_niceness_back(), reason="needs CAP_SYS_NICE")
async def test_a_background_sandbox_yields_until_somebody_waits(tmp_path: Path) -> None:
    nice = Command(argv=("nice",), env=SHOW.env)
    async with open_process_backend(tmp_path) as backend:
        prepared = await backend.prepare(COLD)
        sandbox = await backend.start(prepared, Identity(sandbox=SandboxId("sb_1")), background=True)
        before = int((await sandbox.run(nice)).stdout)
        await sandbox.raise_priority()
        after = int((await sandbox.run(nice)).stdout)
        await sandbox.aclose()
    assert (before, after) == (after + 10, os.getpriority(os.PRIO_PROCESS, 0))


AS_IN_A_CONTAINER = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


async def test_nobody_is_made_to_yield_whose_priority_could_not_be_given_back() -> None:
    tests = Path(BECOME).with_name("test_backends.py")
    command = [sys.executable, "-c", AS_IN_A_CONTAINER, "-m", "pytest", "-p", "no:cacheprovider", str(tests)]
    done = await anyio.run_process([*command, "-k", "hurried and process"], check=False, cwd=tests.parents[2])
    assert (done.returncode, done.stdout.split()[0]) == (0, b".."), done.stdout.decode()
