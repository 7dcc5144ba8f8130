"""`headstart status`: the live pool, each predictor's record, and what was passed through unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headstart.cli.running import ask
from headstart.cli.service_file import find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import console, print_json

__all__ = ["status", "trouble"]

Json = Mapping[str, Any]


def status(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Show the live pool, each predictor's record, and what was passed through unread."""
    service = find_service(state_dir_of(state_dir))
    found = ask(service, "GET", "/headstart/status")
    if json:
        print_json(found)
        return
    out = console()
    out.print(Text(f"headstart at {service.url}, pid {service.pid}", style="bold"))
    for part in (
        _summary(found),
        _sandboxes(found["pool"]["sandboxes"], found["runtime"]["sandboxes"]),
        _servers(found["runtime"]["servers"], found["runtime"]["zygotes"]),
        _predictors(found["predictors"]),
        _proxy(found["proxy"]),
    ):
        out.print(part)


def _summary(found: Json) -> RenderableType:
    pool, waste, backend = found["pool"], found["waste"], found["backend"]
    grid = Table.grid(padding=(0, 2))
    grid.add_row("pool", f"{pool['mode']}, {pool['sessions']} sessions, {len(pool['sandboxes'])} sandboxes")
    grid.add_row("memory", f"{_mb(pool['used_bytes'])} of {_mb(pool['memory_bytes'])}")
    grid.add_row("starts", f"{pool['starting']} of {pool['starts_at_once']} slots, {pool['queued']} waiting")
    grid.add_row("waste", ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in waste.items()))
    grid.add_row("isolation", f"{backend['name']}: {backend['isolation']}")
    for line in backend["weaker"]:
        grid.add_row("", Text(line, style="yellow"))
    told = trouble(found["runtime"])
    if told:
        grid.add_row("trouble", Text(told, style="red"))
    return grid


def trouble(runtime: Json) -> str:
    """Tell what the service could not do, "" if there is nothing to tell."""
    counts = {
        "events not handled": runtime["events_broken"],
        "events not journalled": runtime["journal_dropped"],
        "writes of the state failed": runtime["state_writes_failed"],
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _sandboxes(views: Sequence[Json], runtime: Sequence[Json]) -> RenderableType:
    because = {one["id"]: one["because"] for one in runtime}
    table = _table("sandbox", "server", "state", "session", "form", "age", "memory", "calls", "why")
    for view in sorted(views, key=lambda v: (v["resource"], v["id"])):
        table.add_row(
            view["id"],
            view["resource"],
            view["state"],
            view["session"] or "-",
            view["form"],
            f"{view['age_s']:.0f} s",
            _mb(view["memory_bytes"]),
            str(view["served"]),
            because.get(view["id"], ""),
        )
    return table if views else Text("no sandboxes", style="dim")


def _servers(servers: Sequence[Json], zygotes: Sequence[Json]) -> RenderableType:
    held = {one["server"]: one["memory_bytes"] for one in zygotes}
    table = _table("server", "starts from", "why", "zygote holds", "last failure")
    for server in servers:
        form = "remote" if server["remote"] else server["form"]
        holds = _mb(held[server["name"]]) if server["name"] in held else "-"
        table.add_row(server["name"], form, server["reason"], holds, server["last_failure"] or "")
    return table


def _predictors(records: Sequence[Json]) -> RenderableType:
    table = _table("predictor", "proposed", "admitted", "hits / decided", "expected", "hidden", "wasted")
    for record in records:
        decided = record["hits"] + record["misses"]
        wasted = f"{record['wasted_cpu_s']:.1f} CPU-s, {record['wasted_byte_s'] / 1e9:.1f} GB-s"
        table.add_row(
            record["predictor"],
            str(record["proposals"]),
            str(record["admitted"]),
            f"{record['hits']} / {decided}",
            f"{record['expected_hits']:.1f}",
            f"{record['hidden_s']:.2f} s",
            wasted,
        )
    return table if records else Text("no bets yet", style="dim")


def _proxy(proxy: Json) -> RenderableType:
    told = (
        f"proxy: {proxy['requests']} requests, {proxy['read']} generations read, {proxy['active_streams']} streams open"
    )
    unread = [
        f"  passed through unread: {one['count']} times {one['route']} ({one['reason']})" for one in proxy["unread"]
    ]
    return Text("\n".join([told, *unread]))


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:.0f} MB"


def _number(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
