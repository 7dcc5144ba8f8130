"""`headstart init`: read an `mcpServers` file, write `headstart.toml`, learn every server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headstart.cli.settings import StateOption
from headstart.cli.state import only_one
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_json, show
from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.config.model import ServerSettings, Settings

__all__ = ["init"]

_BACKENDS = ("auto", "local", "process")


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
    """Write headstart.toml, and learn every server.

    Each is started once; then it is known which fork from a zygote and which start cold, and why.
    """
    from headstart.config.load import check_upstream_url, read_mcp_file

    if upstream is not None:
        check_upstream_url(upstream, where="--upstream", key=None)
    if backend not in _BACKENDS:
        raise ConfigError(f"{backend!r} is not possible here", where="--backend", hint=f"use {_one_of(_BACKENDS)}")
    servers = read_mcp_file(source, variables=os.environ)
    if not servers:
        raise ConfigError("no servers in it", where=str(source), hint='"mcpServers": {"git": {"command": …}}')
    folder = state_dir_of(state_dir)
    with only_one(folder):  # before anything is written: with a service running, nothing has happened yet
        settings = _configure(source, servers, upstream=upstream, backend=backend, state_dir=folder)
        from headstart.cli.learning import learn_all, report

        learned = learn_all(settings)
    if json:
        print_json({"servers": {one["name"]: one for one in learned}})
    else:
        show(*report(learned))
    if any(one["problem"] for one in learned):
        raise typer.Exit(1)


def _configure(
    source: Path, servers: Sequence[ServerSettings], *, upstream: str | None, backend: str, state_dir: Path
) -> Settings:
    from headstart.cli.first_config import CONFIG_NAME, write_config
    from headstart.config.load import load_settings

    written = write_config(source, servers, upstream=upstream, backend=backend)
    try:
        return load_settings(config=CONFIG_NAME, variables=os.environ, state_dir=state_dir)
    except ConfigError:
        if written:
            CONFIG_NAME.unlink()  # or the next try, with better options, would find it and stop there
        raise


def _one_of(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
