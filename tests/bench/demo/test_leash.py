"""What the demo starts ends with it, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headstart.bench.demo.meter import is_alive
from headstart.bench.demo.world import __file__ as demo

DEMO = """
import subprocess, sys
from headstart.bench.demo.leash import leashed

model = subprocess.Popen(leashed("replay-model", sys.argv[1], "--port", "0"), stderr=subprocess.PIPE)
model.stderr.readline()  # it answers now
print(model.pid, flush=True)
sys.stdin.read()
"""


def test_a_model_ends_with_a_demo_that_is_killed() -> None:
    recordings = Path(demo).with_name("training.toml")
    pipe = subprocess.PIPE
    with subprocess.Popen((sys.executable, "-c", DEMO, recordings), stdin=pipe, stdout=pipe, text=True) as killed:
        assert killed.stdout is not None
        model = int(killed.stdout.readline())
        try:
            assert is_alive(model)
            killed.kill()
            deadline_s = time.monotonic() + 20
            while is_alive(model):
                assert time.monotonic() < deadline_s, "the model lives on"
                time.sleep(0.01)
        finally:
            with suppress(ProcessLookupError):
                os.kill(model, signal.SIGKILL)
