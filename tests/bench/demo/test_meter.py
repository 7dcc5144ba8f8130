"""What a process tree holds and burns, seen from outside."""

from __future__ import annotations

import os
import sys

import anyio
import pytest

from headstart.bench.demo.meter import TreeMeter

pytestmark = pytest.mark.anyio
_BUSY = (
    "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass\nprint(flush=True)\ninput()"
)


async def test_what_children_burn_and_hold_is_seen_once_and_the_peak_can_be_forgotten() -> None:
    meter = TreeMeter(os.getpid())
    with anyio.fail_after(60):
        await _watch_a_child_burn(meter)


async def _watch_a_child_burn(meter: TreeMeter) -> None:
    async with await anyio.open_process([sys.executable, "-c", _BUSY]) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        await child.stdout.receive()
        async with meter.sampling():
            await meter.sample()
            burnt_s = meter.cpu_s
            await meter.sample()
            assert meter.cpu_s == pytest.approx(burnt_s, abs=0.1)
        await child.stdin.send(b"\n")
        await child.wait()
    assert burnt_s >= 0.15
    assert meter.peak_bytes > 1_000_000
    meter.forget_peak()
    await meter.sample()
    assert meter.peak_bytes < 1_000_000
    assert meter.cpu_s >= burnt_s, "what has ended stays counted"
