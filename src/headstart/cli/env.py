"""`headstart env`: what to set so that an agent goes through Headstart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from headstart.cli.agents import AGENTS, Endpoint, instructions
from headstart.cli.service_file import NotRunning, find_service, host_for_url
from headstart.cli.settings import ConfigOption, StateOption, read_settings
from headstart.errors import ConfigError
from headstart.ids import SESSION_NAME_RULE, is_session_name

if TYPE_CHECKING:
    from headstart.config.model import Settings

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
    if session is not None and not is_session_name(session):
        raise ConfigError(SESSION_NAME_RULE, where="--session", hint="choose a name such as my-run")
    settings = read_settings(config, state_dir)
    root = _url(settings) + ("" if session is None else f"/s/{quote(session, safe='')}")
    print(instructions(agent, Endpoint(root=root, upstreams=settings.upstreams, key=bool(settings.service.keys))))


def _url(settings: Settings) -> str:
    """Where the service runs; where it would, if it does not: `serve --port` stands over the config."""
    try:
        return find_service(settings.state_dir).url
    except NotRunning:
        return f"http://{host_for_url(settings.service.host)}:{settings.service.port}"
