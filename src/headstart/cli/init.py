"""`headstart init`: read an `mcpServers` file, write `headstart.toml`, learn every server."""

from __future__ import annotations

import json as json_module
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from headstart.backends.contract import Backend
from headstart.cli.backends import open_backend
from headstart.cli.settings import StateOption
from headstart.cli.state import only_one
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_json, say, show, table
from headstart.cli.weaker import by_usefulness
from headstart.clock import SystemClock
from headstart.config.load import load_settings, read_mcp_file
from headstart.config.model import ServerSettings, Settings
from headstart.config.suggest import suggest_mounts, suggest_network
from headstart.errors import ConfigError, HeadstartError
from headstart.ids import LOCAL_PRINCIPAL, RandomIds, SessionId
from headstart.runtime.contract import SessionScope
from headstart.runtime.service import Service

__all__ = ["init"]

CONFIG_NAME = Path("headstart.toml")


def init(
    *,
    source: Annotated[Path, typer.Option("--from", help="The mcpServers file; it is read, never written.")],
    upstream: Annotated[
        str | None, typer.Option("--upstream", help="The model server's base URL, as its SDK takes it.")
    ] = None,
    backend: Annotated[str, typer.Option(help="auto, local, or process (no isolation).")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Write headstart.toml, start every server once, and say which fork from a zygote and which start cold."""
    servers = read_mcp_file(source, variables=os.environ)
    if not servers:
        raise ConfigError("no servers in it", where=str(source), hint='"mcpServers": {"git": {"command": …}}')
    folder = state_dir_of(state_dir)
    with only_one(folder):  # before anything is written: with a service running, nothing has happened yet
        settings = _configure(source, servers, upstream=upstream, backend=backend, state_dir=folder)
        learned = _learn_all(settings)
    if json:
        print_json({"servers": {one["name"]: one for one in learned}})
    else:
        show(_table(learned), *_failures(learned))
    if any(one["problem"] for one in learned):
        raise typer.Exit(1)


def _configure(
    source: Path, servers: Sequence[ServerSettings], *, upstream: str | None, backend: str, state_dir: Path
) -> Settings:
    written = _write_config(source, servers, upstream=upstream, backend=backend)
    try:
        return load_settings(config=CONFIG_NAME, variables=os.environ, state_dir=state_dir)
    except ConfigError:
        if written:
            CONFIG_NAME.unlink()  # or the next try, with better options, would find it and stop there
        raise


def _write_config(source: Path, servers: Sequence[ServerSettings], *, upstream: str | None, backend: str) -> bool:
    """Write the file unless there is one; says whether it did."""
    if CONFIG_NAME.exists():
        unused = ["--from", *(["--upstream"] if upstream else []), *(["--backend"] if backend != "auto" else [])]
        say(
            f"{CONFIG_NAME} is there already and stays as it is; not used: {', '.join(unused)} (move it away to begin anew)"
        )
        return False
    lines = [f"mcp = {_text(source)}", ""]
    lines += ["[upstreams]", f"default = {_text(upstream)}" if upstream else '# default = "http://127.0.0.1:8000/v1"']
    if backend != "auto":
        lines += ["", "[service]", f"backend = {_text(backend)}"]
    for server in servers:
        lines += _suggestions(server)
    CONFIG_NAME.write_text("\n".join(lines) + "\n", encoding="utf-8")
    say(f"wrote {CONFIG_NAME}; its mounts and networks are what your launch specs name: look whether you mean them")
    return True


def _suggestions(server: ServerSettings) -> list[str]:
    """What the launch spec gives away, written down where the user can see and change it."""
    if server.remote:
        return []
    lines = [] if server.mounts else _mounts(server)
    if server.network == "none" and suggest_network(server) == "host":
        lines.append('network = "host"')
    return ["", f"[servers.{_text(server.name)}]", *lines] if lines else []


def _mounts(server: ServerSettings) -> list[str]:
    suggested = suggest_mounts(server)
    refused = [one.because for one in suggested if one.mount is None]
    for because in refused:
        say(f"{server.name}: {because}")
    rows = [
        f"  {{ path = {_text(one.mount.path)}, mode = {_text(one.mount.mode)} }},"
        + (f"  # {one.because}" if one.because else "")
        for one in suggested
        if one.mount is not None
    ]
    return [*(f"# {because}" for because in refused), *(["mounts = [", *rows, "]"] if rows else [])]


def _text(value: object) -> str:
    return json_module.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string


def _learn_all(settings: Settings) -> list[dict[str, Any]]:
    logging.getLogger("headstart.backends").setLevel(logging.ERROR)  # what it notes is told below, once
    return anyio.run(_learn_each, settings)


async def _learn_each(settings: Settings) -> list[dict[str, Any]]:
    async with (
        open_backend(settings) as backend,
        Service.open(settings=settings, backend=backend, clock=SystemClock(), ids=RandomIds()) as service,
    ):
        found: list[dict[str, Any]] = []
        for server in settings.servers:
            say(f"learning {server.name}")
            found.append(await _learn(service, server))
        _tell_weaker(backend)
        return found


def _tell_weaker(backend: Backend) -> None:
    lines = by_usefulness(backend.capabilities.weaker)
    if lines:
        say(f"isolation: {backend.capabilities.isolation}. Weaker here than it can be:")
    for line in lines:
        say(f"  - {line}")


async def _learn(service: Service, server: ServerSettings) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": server.name, "tools": 0, "form": "", "reason": "", "problem": "", "hint": ""}
    try:
        status = await service.learn(server.name, LOCAL_PRINCIPAL)
        scope = SessionScope(session=SessionId("init"), principal=LOCAL_PRINCIPAL)
        catalogue = await service.catalogue(server.name, scope)
    except HeadstartError as error:
        return {**entry, "problem": str(error), "hint": error.hint or ""}
    form = "remote" if status.remote else status.form.value
    return {**entry, "tools": len(catalogue.tools), "form": form, "reason": status.reason}


def _table(learned: Sequence[dict[str, Any]]) -> RenderableType:
    made = table("server", "tools", "starts from", "because")
    for one in learned:
        if one["problem"]:
            made.add_row(one["name"], "-", "does not start", "told below", style="red")
        else:
            made.add_row(one["name"], str(one["tools"]), one["form"], one["reason"])
    return made


def _failures(learned: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    """What is wrong with each server that cannot start, each with its cure; outside of the table, for it is long."""
    for one in learned:
        if one["problem"]:
            yield ""
            yield Text(f"{one['name']} does not start", style="bold red")
            yield Padding(one["problem"], (0, 0, 0, 2))
            if one["hint"]:
                yield Padding(f"hint: {one['hint']}", (0, 0, 0, 2))
