"""All commands but the stdio shim, put together, and how all of them fail.

Importing a command is cheap: each imports what it needs when it runs. `stop` and `status`
must not wait for the MCP SDK, nor `serve` for the benches, nor `--help` for any of them.
"""

from __future__ import annotations

import difflib
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.exceptions import Abort, TyperException

from headstart.cli import bench, sandbox, template
from headstart.cli.doctor import doctor
from headstart.cli.env import env
from headstart.cli.forget import forget
from headstart.cli.init import init
from headstart.cli.replay import replay_model
from headstart.cli.serve import serve
from headstart.cli.state import STATE_IN_USE_STATUS, StateInUse
from headstart.cli.status import status
from headstart.cli.stop import stop
from headstart.cli.terminal import fit_encoding, print_error
from headstart.cli.trace import trace
from headstart.errors import ConfigError, HeadstartError
from headstart.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run"]

_INTERRUPTED_STATUS = 130

app = typer.Typer(
    name="headstart",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is read as well, and is there at once
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="The runtime between LLM agents and their tools: sandboxes are warm before the model has finished asking.",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[  # noqa: FBT002 a flag is a flag
        bool, typer.Option("--version", help="Print the version and leave.")
    ] = False,
) -> None:
    if version:
        print(f"headstart {VERSION}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


def _mcp() -> None:
    """Speak MCP over stdio, through the running service."""
    raise AssertionError("`main` has dispatched the shim before anything was imported here")


_COMMANDS: dict[str, Callable[..., Any]] = {
    "init": init,
    "serve": serve,
    "env": env,
    "status": status,
    "trace": trace,
    "stop": stop,
    "doctor": doctor,
    "forget": forget,
    "replay-model": replay_model,
    "mcp": _mcp,
}
"""In the order of `--help`."""

_EXAMPLES = {("headstart init", "Missing option '--from'"): "headstart init --from .mcp.json"}
"""What to type where only an option is missing, by command and what was said."""

for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(template.app, name="template")
app.add_typer(bench.app, name="bench")


def run() -> int:
    """Run one command.

    Returns:
        0; 1 where it failed, 2 where what the user wrote cannot be used, 3 where the state
        directory is in use, 130 where it was interrupted.
    """
    fit_encoding()
    try:
        return cast("int | None", app(prog_name="headstart", standalone_mode=False)) or 0
    except StateInUse as error:
        print_error(error)
        return STATE_IN_USE_STATUS
    except ConfigError as error:
        print_error(error)
        return 2
    except HeadstartError as error:
        print_error(error)
        return 1
    except TyperException as error:
        print_error(_usage_error(error))
        return error.exit_code
    except Abort:
        return _INTERRUPTED_STATUS


def _usage_error(error: TyperException) -> ConfigError:
    """Tell what typer found wrong with the command line the way every other error is told."""
    context: typer.Context | None = getattr(error, "ctx", None)
    command = context.command_path if context else "headstart"
    near = _near(error, context)
    cure = f"did you mean {near}? " if near else ""
    message = error.format_message().partition(" Did you mean")[0].partition(" (Possible options")[0].rstrip(".")
    hint = _EXAMPLES.get((command, message)) or f"{cure}see {command} --help"
    return ConfigError(message[0].lower() + message[1:], where=command, hint=hint)


def _near(error: TyperException, context: typer.Context | None) -> str:
    """Return what was probably meant by a command or an option that does not exist, "" if nothing is near."""
    possible = getattr(error, "possibilities", None)
    if possible:
        return " or ".join(sorted(possible))
    words: dict[str, object] = getattr(context.command, "commands", {}) if context else {}
    missed = next((word for word in sys.argv[1:] if f"'{word}'" in str(error)), "")
    return next(iter(difflib.get_close_matches(missed, words)), "")
