"""`headstart forget`: erase what was learned, also by a service that has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from headstart.cli.running import ask
from headstart.cli.service_file import NotRunning, find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import only_one
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import say
from headstart.errors import ConfigError, HeadstartError

__all__ = ["forget"]


def forget(
    *,
    principal: Annotated[str | None, typer.Option(help="Whose; default: everybody's.")] = None,
    state_dir: StateOption = None,
) -> None:
    """Erase what was learned, traces and journals.

    Lists of servers are learned anew. Also what a service that has stopped left behind.
    """
    if principal == "":
        raise ConfigError("is empty", where="--principal", hint="name one, or leave it out to erase everybody's")
    folder = state_dir_of(state_dir)
    try:
        service = find_service(folder)
    except NotRunning:
        answer = _forget_record(folder, principal)
    else:
        query = f"?{urlencode({'principal': principal})}" if principal else ""
        answer = ask(service, "POST", f"/headstart/forget{query}")
    counts = (f"{count} {what.replace('_', ' ')}" for what, count in answer.items())
    print(f"forgotten: {', '.join(counts)}")


def _forget_record(folder: Path, principal: str | None) -> dict[str, Any]:
    """Do what the route would have done, to what a service that has stopped left."""
    if not any((folder / name).exists() for name in ("state.sqlite", "journal")):
        hint = "nothing needs to be done; if it is elsewhere, name its place with --state-dir"
        raise HeadstartError(f"{folder}: there is nothing to forget", hint=hint)
    import anyio

    from headstart.cli.plain import plain
    from headstart.clock import SystemClock
    from headstart.ids import PrincipalId
    from headstart.runtime.record import forget as forget_record

    whose = None if principal is None else PrincipalId(principal)
    with only_one(folder):
        erased: dict[str, Any] = plain(anyio.run(forget_record, folder, whose, SystemClock()))
    say(f"no service is running: this was the record that the last one left in {folder}")
    return erased
