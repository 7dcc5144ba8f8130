"""`headstart doctor`: what this machine can do, line by line."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.terminal import print_json, show

if TYPE_CHECKING:
    from headstart.backends.probes import Probe

__all__ = ["doctor"]

_STYLES = {"ok": "green", "weak": "yellow", "missing": "red"}


def doctor(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what this machine can do, and what to do about the rest."""
    import anyio

    from headstart.backends.probes import probe_all

    probes = (*anyio.run(probe_all), *_ways_to_upstreams())
    if json:
        print_json({"probes": [{**asdict(probe), "status": probe.status.value} for probe in probes]})
        return
    _print_table(probes)


def _ways_to_upstreams() -> tuple[Probe, ...]:
    """Say which proxy each model server is reached through, as a service started here and now would."""
    from headstart.backends.probes import Probe, ProbeStatus
    from headstart.cli.settings import read_settings
    from headstart.errors import ConfigError

    try:
        upstreams = read_settings(None).upstreams
    except ConfigError as exc:
        return (Probe(name="configuration", status=ProbeStatus.MISSING, found=str(exc), cure=exc.hint),)
    return tuple(
        Probe(name=f"upstream {one.prefix}", status=ProbeStatus.OK, found=f"{one.shown_url}, {one.way}")
        for one in upstreams
    )


def _print_table(probes: tuple[Probe, ...]) -> None:
    from rich.text import Text

    width = max(len(probe.name) for probe in probes)
    for probe in probes:
        line = Text(f"{probe.name:<{width}}  ")
        line.append(f"{probe.status.value:<8}", style=_STYLES[probe.status.value])
        line.append(probe.found)
        show(line)
        if probe.cure:
            show(Text(f"{'':<{width}}  {'':<8}→ {probe.cure}", style="dim"))
