"""`headstart doctor`: what this machine can do, line by line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import anyio
import typer

from headstart.backends.probes import Probe, ProbeStatus, probe_all
from headstart.cli.terminal import console, print_json

__all__ = ["doctor"]

_MARKS = {ProbeStatus.OK: "[green]ok[/]", ProbeStatus.WEAK: "[yellow]weak[/]", ProbeStatus.MISSING: "[red]missing[/]"}


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
    out = console()
    width = max(len(probe.name) for probe in probes)
    for probe in probes:
        mark = _MARKS[probe.status]
        pad = " " * (8 - len(probe.status.value))
        out.print(f"{probe.name:<{width}}  {mark}{pad}{probe.found}")
        if probe.cure:
            out.print(f"{'':<{width}}  {'':<8}[dim]→ {probe.cure}[/]")
