"""`headstart env`: what to set so that an agent goes through Headstart."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headstart.cli.agents import AGENTS, Endpoint, instructions
from headstart.cli.service_file import host_for_url
from headstart.cli.settings import ConfigOption, StateOption, read_settings

__all__ = ["env"]


def env(
    agent: Annotated[str, typer.Argument(help=f"One of: {', '.join(AGENTS)}.")] = "openai",
    *,
    session: Annotated[
        str | None, typer.Option(help="Name the conversation, so that model and tools join at once.")
    ] = None,
    config: ConfigOption = None,
    state_dir: StateOption = None,
) -> None:
    """Print what to set for an agent; it can be given to `eval`.

    Whatever else there is to do is in comments.
    """
    settings = read_settings(config, state_dir)
    service = settings.service
    root = f"http://{host_for_url(service.host)}:{service.port}" + (f"/s/{quote(session, safe='')}" if session else "")
    print(instructions(agent, Endpoint(root=root, upstreams=settings.upstreams, key=bool(service.keys))))
