"""`headstart serve`: the service, in the foreground, until it is told to stop."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from headstart.cli.settings import ConfigOption, StateOption, read_settings

__all__ = ["serve"]


def serve(
    *,
    mcp: Annotated[
        list[Path] | None, typer.Option("--mcp", help="An mcpServers file, beside those in the config.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65_535, help="Port to listen on; 0 takes a free one.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what is decided.")] = False,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Run the gateway and the proxy on one port, and host sandboxes.

    It runs until it is interrupted, or told to end by `headstart stop`.
    """
    import logging

    from headstart.config.load import check_port_safety

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    if verbose:  # of ours alone: what HTTP libraries tell has URLs in it, and URLs have credentials in them
        logging.getLogger("headstart").setLevel(logging.INFO)
    settings = read_settings(config, state_dir, mcp_files=tuple(mcp or ()))
    changed = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
    settings = replace(settings, service=replace(settings.service, **changed))
    check_port_safety(settings, where="--host" if host is not None else "headstart serve")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the service catches it there is nothing to tidy up
    from headstart.cli.serving import run_service

    run_service(settings)
