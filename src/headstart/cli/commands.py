"""All commands but the stdio shim, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from headstart import __version__
from headstart.cli import bench, doctor, env, forget, init, replay, serve, status, stop, trace
from headstart.cli.terminal import print_error
from headstart.errors import ConfigError, HeadstartError

__all__ = ["run"]

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


app.command("init")(init.init)
app.command("serve")(serve.serve)
app.command("env")(env.env)
app.command("status")(status.status)
app.command("trace")(trace.trace)
app.command("stop")(stop.stop)
app.command("doctor")(doctor.doctor)
app.command("forget")(forget.forget)
app.command("replay-model")(replay.replay_model)
app.add_typer(bench.app, name="bench")
app.command("mcp", help="Speak MCP over stdio, through the running service (starts one if there is none).")(
    lambda: None
)


def run() -> int:
    """Run one command; usage errors leave with 2 by themselves.

    Returns:
        0; 1 where it failed, 2 where what the user wrote cannot be used.
    """
    try:
        app()
    except ConfigError as error:
        print_error(error)
        return 2
    except HeadstartError as error:
        print_error(error)
        return 1
    return 0
