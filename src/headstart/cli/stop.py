"""`headstart stop`: end the service, and count what is left of it."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from headstart.cli.remains import Watched, watch
from headstart.cli.running import ask
from headstart.cli.service_file import find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_json, say
from headstart.errors import HeadstartError

__all__ = ["stop"]

_LONGEST_S = 30.0


def stop(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Stop the service, and count what is left of it."""
    folder = state_dir_of(state_dir)
    service = find_service(folder)
    watched = watch(service.pid, state_dir=folder)
    ask(service, "POST", "/headstart/stop")
    say(f"stopping the service (pid {service.pid}); calls that are running may take up to {_LONGEST_S:.0f} s")
    _wait_gone(watched, service.pid)
    left = watched.remains()
    if json:
        print_json({"processes": len(left.processes), "mounts": len(left.mounts), "cgroups": len(left.cgroups)})
    else:
        print(f"stopped; left: {left}")
    if not left.clean:
        for what in (*(f"process {pid}" for pid in left.processes), *left.mounts, *left.cgroups):
            say(f"  {what}")
        raise typer.Exit(1)


def _wait_gone(watched: Watched, pid: int) -> None:
    deadline = time.monotonic() + _LONGEST_S
    while pid in watched.remains().processes:
        if time.monotonic() > deadline:
            hint = f"look at its log; end it with: kill -9 {pid} (everything it started ends with it)"
            raise HeadstartError(f"the service (pid {pid}) did not end within {_LONGEST_S:.0f} s", hint=hint)
        time.sleep(0.05)
