"""kill -9 of the service, or of its spawner, while sandboxes are paused: they end all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from tests.left_behind import keepers, noted_namespaces
from tests.machine import may_make_namespaces

import headstart
from headstart.backends.spawner.guest.processes import children, descendants, is_alive

WITHIN_S = 10.0
SERVICE = """
import anyio, sys
import headstart
from headstart.backends.local.sandbox import LocalSandbox
if sys.argv[3] == "signals":
    LocalSandbox._group_folders = lambda self: []
async def main():
    async with headstart.Sandboxes.open(backend=sys.argv[1], state_dir=sys.argv[2]) as boxes, boxes.create() as box:
        await box.run_in_shell("sleep 600 & sleep 601 &")
        await box.run("setsid sleep 602 </dev/null >/dev/null 2>&1 &")
        async with box.start("while :; do :; done"):
            await box.pause()
            print("paused", flush=True)
            await anyio.sleep_forever()
anyio.run(main)
"""


async def clean_up(backend: str, state: Path) -> None:
    """Start again: it removes the control groups of a run whose spawner was killed."""
    async with headstart.Sandboxes.open(backend=backend, state_dir=state):
        pass


@pytest.mark.parametrize("victim", ["service", "spawner"])
@pytest.mark.parametrize(("backend", "by"), [("local", "groups"), ("local", "signals"), ("process", "signals")])
def test_nothing_is_left_of_a_paused_sandbox(victim: str, backend: str, by: str, tmp_path: Path) -> None:
    if backend == "local" and not may_make_namespaces():
        pytest.skip("the local backend cannot run here: no namespaces")
    argv = [sys.executable, "-c", SERVICE, backend, str(tmp_path / "state"), by]
    service = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert service.stdout is not None
        assert service.stdout.readline() == "paused\n"
        below = descendants(service.pid)
        assert len(below) >= 6, "spawner, init, shell, loop, sleepers"
        with noted_namespaces(below) as namespaces:
            os.kill(service.pid if victim == "service" else children(service.pid)[0], signal.SIGKILL)
            give_up = time.monotonic() + WITHIN_S
            while left := [pid for pid in below if is_alive(pid)]:
                assert time.monotonic() < give_up, left
                time.sleep(0.01)
        assert keepers(namespaces) == []
        anyio.run(clean_up, backend, tmp_path / "state")
    finally:
        service.kill()
        service.communicate()
