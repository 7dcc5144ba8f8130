"""`headstart trace`: the waterfall of a session, also of a service that has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from headstart.cli.running import ask
from headstart.cli.service_file import NotRunning, find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import console, print_json, say, show
from headstart.errors import HeadstartError

__all__ = ["trace"]


def trace(
    session: Annotated[str, typer.Argument(help="A session's id, or `last`.")] = "last",
    *,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    state_dir: StateOption = None,
) -> None:
    """Print the waterfall of a session.

    Model time, what was prepared and why, waits, waste, savings; also of a service that has stopped.
    """
    folder = state_dir_of(state_dir)
    try:
        service = find_service(folder)
    except NotRunning:
        found = _recorded(folder, session)
    else:
        found = ask(service, "GET", f"/headstart/trace/{quote(session)}")
    if json:
        print_json(found)
        return
    from headstart.cli.waterfall import waterfall

    show(*waterfall(found, width=console().width))


def _recorded(folder: Path, session: str) -> dict[str, Any]:
    """Return what the route would have answered, from the record of a service that has stopped."""
    if not (folder / "state.sqlite").exists():
        raise _no_trace(folder, "last")
    from headstart.cli.plain import plain
    from headstart.runtime.record import read_trace

    found = read_trace(folder, session)
    if found is None:
        raise _no_trace(folder, session)
    say(f"no service is running: this is the record that the last one left in {folder}")
    recorded: dict[str, Any] = plain(found)
    return recorded


def _no_trace(folder: Path, session: str) -> HeadstartError:
    if session == "last":
        hint = "start a service (headstart serve) and let an agent call tools through it (headstart env)"
        return HeadstartError(f"no service is running, and no session is recorded in {folder}", hint=hint)
    hint = "headstart trace last shows the newest; the last 200 are kept"
    return HeadstartError(f"no service is running, and no session {session!r} is recorded in {folder}", hint=hint)
