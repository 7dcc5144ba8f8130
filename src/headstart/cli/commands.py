"""All commands but the stdio shim, put together.

A command imports what it needs and no other command's needs: `stop` and `status` must not
wait for the MCP SDK, nor `serve` for the benches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from headstart import __version__
from headstart.cli.state import STATE_IN_USE_STATUS, StateInUse
from headstart.cli.terminal import print_error
from headstart.errors import ConfigError, HeadstartError

__all__ = ["run"]

_MODULES = {
    "init": "init",
    "serve": "serve",
    "env": "env",
    "status": "status",
    "trace": "trace",
    "stop": "stop",
    "doctor": "doctor",
    "forget": "forget",
    "replay-model": "replay",
    "bench": "bench",
}
"""Where each command is, in the order of `--help`."""

app = typer.Typer(
    name="headstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The runtime between LLM agents and their tools: sandboxes are warm before the model has finished asking.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[  # noqa: FBT002 a flag is a flag
        bool, typer.Option("--version", help="Print the version and leave.")
    ] = False,
) -> None:
    if version:
        print(f"headstart {__version__}")
        raise typer.Exit


def _add(names: Iterable[str]) -> None:
    for name in names:
        module = import_module(f"headstart.cli.{_MODULES[name]}")
        if name == "bench":
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name.replace("-", "_")))
    # Only for the help: `main` has dispatched the shim before anything was imported here.
    app.command("mcp", help="Speak MCP over stdio, through the running service (starts one if there is none).")(
        lambda: None
    )


def run() -> int:
    """Run one command; usage errors leave with 2 by themselves.

    Returns:
        0; 1 where it failed, 2 where what the user wrote cannot be used, 3 where the state
        directory is in use.
    """
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    _add([asked] if asked in _MODULES else _MODULES)  # help, and a wrong name, need all
    try:
        app()
    except StateInUse as error:
        print_error(error)
        return STATE_IN_USE_STATUS
    except ConfigError as error:
        print_error(error)
        return 2
    except HeadstartError as error:
        print_error(error)
        return 1
    return 0
