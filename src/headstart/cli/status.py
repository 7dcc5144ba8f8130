"""`headstart status`: the live pool, each predictor's record, and what was passed through unread."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headstart.cli.running import ask
from headstart.cli.service_file import find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_json, show, table
from headstart.cli.weaker import terse, without_network

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

__all__ = ["report", "status", "trouble"]

Json = Mapping[str, Any]


def status(
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Show the live pool, and how guesses fared.

    Also from what servers start, and what was passed through unread.
    """
    service = find_service(state_dir_of(state_dir))
    found = ask(service, "GET", "/headstart/status")
    if json:
        print_json(found)
        return
    show(_heading(f"headstart at {service.url}, pid {service.pid}"), *report(found))


def report(found: Json) -> Iterator[RenderableType]:
    """Yield what the status route told, section by section."""
    runtime = found["runtime"]
    sections = {
        "Service": _rows(_service(found)),
        "Sandboxes": _sandboxes(found["pool"]["sandboxes"], runtime["sandboxes"]),
        "Servers": _servers(runtime["servers"], runtime["zygotes"]),
        "Guesses": _predictors(found["predictors"]),
        "Models": _rows((*_upstreams(found["upstreams"]), *_models(found["proxy"]))),
    }
    for heading, section in sections.items():
        yield ""
        yield _heading(heading)
        yield section


def _service(found: Json) -> Iterator[tuple[str, str]]:
    pool, waste, backend = found["pool"], found["waste"], found["backend"]
    yield "pool", f"{pool['mode']}; {_count(pool['sessions'], 'session')}, {_count(len(pool['sandboxes']), 'sandbox')}"
    aside = f"; {_mb(pool['set_aside_bytes'])} more are set aside for zygotes" if pool["set_aside_bytes"] else ""
    beside = f", and another {_mb(pool['hosted_bytes'])} by hosted sandboxes" if pool["hosted_bytes"] else ""
    yield "memory", f"{_mb(pool['used_bytes'])} of {_mb(pool['memory_bytes'])} in use{beside}{aside}"
    yield "hosted", _hosted(found["hosted"])
    for told in pool["too_large"]:
        yield "too large", told
    besides = ", besides guesses and what takes too long" if pool["starting"] > pool["starts_at_once"] else ""
    at_once = f"at most {pool['starts_at_once']} at once{besides}"
    yield "starting", f"{pool['starting']} now ({at_once}), {pool['queued']} more are waiting"
    yield "wasted", f"{waste['wasted_cpu_s']:.1f} CPU-seconds so far, on guesses that nobody came for"
    open_guesses = _count(waste["open_bets"], "guess")
    held = f" with {_mb(waste['reserved_memory_bytes'])} and {waste['reserved_cpu_s']:.2f} CPU-seconds set aside"
    left = f"{waste['available_cpu_s']:.1f} CPU-seconds may be wasted now"
    yield "undecided", f"{open_guesses}{held if waste['open_bets'] else ''}; {left}"
    yield "isolation", f"{backend['isolation']} (backend {backend['name']})"
    if weaker := terse(backend["weaker"]):
        yield "weaker here", f"{'; '.join(weaker)} (headstart doctor: what to do)"
    if told := without_network(found["offline"]):
        yield "no network", told
    if told := trouble(found["runtime"]):
        yield "trouble", told


def _hosted(hosted: Json) -> str:
    """Tell how many sandboxes live in the service, by what they are at."""
    states = [f"{hosted[state]} {state}" for state in ("running", "paused", "hibernated", "broken") if hosted[state]]
    if not states:
        return "no sandboxes"
    branches = f"; {_count(hosted['branches'], 'branch')}" if hosted["branches"] else ""
    return f"{', '.join(states)}{branches}; {_mb(hosted['memory_bytes'])}"


def trouble(runtime: Json) -> str:
    """Tell what the service could not do, "" if there is nothing to tell."""
    counts = {
        "events not handled": runtime["events_broken"],
        "events not journalled": runtime["journal_dropped"],
        "writes of the state failed": runtime["state_writes_failed"],
    }
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def _sandboxes(views: Sequence[Json], runtime: Sequence[Json]) -> RenderableType:
    if not views:
        return "  none"
    because = {one["id"]: one["because"] for one in runtime}
    still = {one["id"] for one in runtime if one["stands_still"]}
    made = table("server", "state", "session", "from", "age", "memory", "calls", "started because of")
    for view in sorted(views, key=_by_server_oldest_first):
        made.add_row(
            view["resource"],
            view["state"] + (", stands still" if view["id"] in still else ""),
            view["session"] or "-",
            view["form"],
            f"{view['age_s']:.0f} s",
            _mb(view["memory_bytes"]),
            str(view["served"]),
            because.get(view["id"], ""),
        )
    return made


def _by_server_oldest_first(view: Json) -> tuple[str, float]:
    return view["resource"], -view["age_s"]


def _servers(servers: Sequence[Json], zygotes: Sequence[Json]) -> RenderableType:
    if not servers:
        return "  none"
    held = {(one["principal"], one["server"]): one["memory_bytes"] for one in zygotes}
    several = len({server["principal"] for server in servers}) > 1
    failing = any(server["last_failure"] for server in servers)
    whose, failed = (["principal"] if several else []), (["last failure"] if failing else [])
    made = table("server", *whose, "starts from", "zygote holds", "because", *failed)
    for server in servers:
        key = (server["principal"], server["name"])
        made.add_row(
            server["name"],
            *([server["principal"]] if several else []),
            "remote" if server["remote"] else "the service" if server["built_in"] else server["form"],
            _mb(held[key]) if key in held else "-",
            server["reason"],
            *([server["last_failure"] or ""] if failing else []),
        )
    return made


def _predictors(records: Sequence[Json]) -> RenderableType:
    if not records:
        return "  none yet"
    made = table("predictor", "proposed", "tried", "right", "expected", "saved", "wasted")
    for record in records:
        decided = record["hits"] + record["misses"]
        made.add_row(
            record["predictor"],
            str(record["proposals"]),
            str(record["admitted"]),
            f"{record['hits']} of {decided}",
            f"{record['expected_hits']:.1f}",
            f"{record['hidden_s']:.2f} s",
            f"{record['wasted_cpu_s']:.1f} CPU-s, {record['wasted_byte_s'] / 1e9:.1f} GB-s",
        )
    return made


def _upstreams(upstreams: Sequence[Json]) -> Iterator[tuple[str, str]]:
    for one in upstreams:
        yield one["prefix"], f"{one['base_url']}, {one['way']}"


def _models(proxy: Json) -> Iterator[tuple[str, str]]:
    yield (
        "requests",
        f"{proxy['requests']}, of which {proxy['read']} were read; {proxy['active_streams']} streaming now",
    )
    for one in proxy["unread"]:
        yield "passed unread", f"{one['count']} times {one['route']} ({one['reason']})"


def _rows(rows: Iterable[tuple[str, str]]) -> Table:
    made = table("", "", header=False)
    made.columns[0].style = "dim"
    for name, told in rows:
        made.add_row(name, told, style="red" if name == "trouble" else None)
    return made


def _heading(text: str) -> RenderableType:
    from rich.text import Text

    return Text(text, style="bold")


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f} MB"


def _count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith(("s", "x", "ch")) else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
