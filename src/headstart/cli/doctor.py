"""`headstart doctor`: what this machine can do, line by line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import anyio
import typer
from rich.text import Text

from headstart.backends.probes import Probe, ProbeStatus, probe_all
from headstart.cli.terminal import print_json, show

__all__ = ["doctor"]

_STYLES = {ProbeStatus.OK: "green", ProbeStatus.WEAK: "yellow", ProbeStatus.MISSING: "red"}


def doctor(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine can do, and what to do about what is missing."""
    probes = anyio.run(probe_all)
    if json:
        print_json({"probes": [{**asdict(probe), "status": probe.status.value} for probe in probes]})
        return
    _print_table(probes)


def _print_table(probes: tuple[Probe, ...]) -> None:
    width = max(len(probe.name) for probe in probes)
    for probe in probes:
        line = Text(f"{probe.name:<{width}}  ")
        line.append(f"{probe.status.value:<8}", style=_STYLES[probe.status])
        line.append(probe.found)
        show(line)
        if probe.cure:
            show(Text(f"{'':<{width}}  {'':<8}→ {probe.cure}", style="dim"))
