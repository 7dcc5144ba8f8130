"""`headstart trace`: the waterfall of a session."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from headstart.cli.running import ask
from headstart.cli.service_file import find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import console, print_json
from headstart.cli.waterfall import waterfall

__all__ = ["trace"]


def trace(
    session: Annotated[str, typer.Argument(help="A session's id, or `last`.")] = "last",
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Print the waterfall of a session: model time, preparations, waits, waste, savings."""
    found = ask(find_service(state_dir_of(state_dir)), "GET", f"/headstart/trace/{quote(session)}")
    if json:
        print_json(found)
        return
    out = console()
    for line in waterfall(found):
        out.print(line)
