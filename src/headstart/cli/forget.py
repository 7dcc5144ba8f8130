"""`headstart forget`: erase what was learned."""

from __future__ import annotations

from typing import Annotated

import typer

from headstart.cli.running import ask
from headstart.cli.service_file import find_service
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of

__all__ = ["forget"]


def forget(
    *,
    principal: Annotated[str | None, typer.Option(help="Whose; default: everybody's.")] = None,
    state_dir: StateOption = None,
) -> None:
    """Erase what was learned, traces and journals.

    Lists of servers are learned anew.
    """
    query = f"?principal={principal}" if principal else ""
    answer = ask(find_service(state_dir_of(state_dir)), "POST", f"/headstart/forget{query}")
    print(f"forgotten: {', '.join(f'{count} {what}' for what, count in answer.items())}")
