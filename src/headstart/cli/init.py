"""`headstart init`: read an `mcpServers` file, write `headstart.toml`, learn every server."""

from __future__ import annotations

import json as json_module
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import anyio
import typer
from rich.table import Table

from headstart.cli.backends import open_backend
from headstart.cli.settings import StateOption
from headstart.cli.state import only_one
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import console, print_json, say
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
    written = _write_config(source, servers, upstream=upstream, backend=backend)
    try:
        settings = load_settings(config=CONFIG_NAME, variables=os.environ, state_dir=state_dir_of(state_dir))
    except ConfigError:
        if written:
            CONFIG_NAME.unlink()  # or the next try, with better options, would find it and stop there
        raise
    with only_one(settings.state_dir):
        learned = anyio.run(_learn_all, settings, say)
    if json:
        print_json({"servers": {one["name"]: one for one in learned}})
    else:
        console().print(_table(learned))
    if any(one["problem"] for one in learned):
        raise typer.Exit(1)


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
    say(f"wrote {CONFIG_NAME}")
    return True


def _suggestions(server: ServerSettings) -> list[str]:
    """What the launch spec gives away, written down where the user can see and change it."""
    if server.remote:
        return []
    lines: list[str] = []
    mounts = () if server.mounts else suggest_mounts(server)
    if mounts:
        listed = ", ".join(f"{{ path = {_text(m.path)}, mode = {_text(m.mode)} }}" for m in mounts)
        lines.append(f"mounts = [{listed}]")
    if server.network == "none" and suggest_network(server) == "host":
        lines.append('network = "host"')
    return ["", f"[servers.{_text(server.name)}]", *lines] if lines else []


def _text(value: object) -> str:
    return json_module.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string


async def _learn_all(settings: Settings, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    async with (
        open_backend(settings) as backend,
        Service.open(settings=settings, backend=backend, clock=SystemClock(), ids=RandomIds()) as service,
    ):
        for line in backend.capabilities.weaker:
            tell(f"note: {line}")
        found: list[dict[str, Any]] = []
        for server in settings.servers:
            tell(f"learning {server.name}")
            found.append(await _learn(service, server))
        return found


async def _learn(service: Service, server: ServerSettings) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": server.name, "tools": 0, "form": "", "reason": "", "problem": ""}
    try:
        status = await service.learn(server.name, LOCAL_PRINCIPAL)
        scope = SessionScope(session=SessionId("init"), principal=LOCAL_PRINCIPAL)
        catalogue = await service.catalogue(server.name, scope)
    except HeadstartError as error:
        return {**entry, "problem": f"{error}" + (f" (hint: {error.hint})" if error.hint else "")}
    form = "remote" if status.remote else status.form.value
    return {**entry, "tools": len(catalogue.tools), "form": form, "reason": status.reason}


def _table(learned: Sequence[dict[str, Any]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("server", "tools", "starts from", "why"):
        table.add_column(column, overflow="fold")
    for one in learned:
        if one["problem"]:
            table.add_row(one["name"], "-", "[red]does not start[/]", one["problem"])
        else:
            table.add_row(one["name"], str(one["tools"]), one["form"], one["reason"])
    return table
