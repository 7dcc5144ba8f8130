"""Runs a `headstart` command that ends when the process that started it does, however that ends.

Stand-alone: `python -m headstart.bench.demo.leash PARENT COMMAND…`, where PARENT is the pid of
the process that starts it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys

from headstart.backends.spawner.guest.syscalls import PR_SET_PDEATHSIG, prctl

__all__ = ["leashed", "main"]


def leashed(*command: str) -> tuple[str, ...]:
    """Return what runs `headstart COMMAND…` until it ends, or this process does."""
    return (sys.executable, "-m", "headstart.bench.demo.leash", str(os.getpid()), *command)


def main() -> None:
    """Become the command; it gets a SIGTERM when its parent is gone."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv.pop(1)):
        raise SystemExit("whoever started this has ended already")
    runpy.run_module("headstart", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
