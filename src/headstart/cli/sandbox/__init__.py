"""`headstart sandbox …`: isolated environments for anything that is to be run.

`run` and `shell` can do without a service; what is made with `create` lives in one.
"""

from __future__ import annotations

import typer

from headstart.cli.sandbox.files import cp, ls
from headstart.cli.sandbox.life import create, events, hibernate, kill, list_, pause, resume, show
from headstart.cli.sandbox.run import run
from headstart.cli.sandbox.shell import shell
from headstart.cli.sandbox.state import checkpoint, commit, drop, fork, rollback

__all__ = ["app"]

app = typer.Typer(help="Run things in isolation.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


app.command("run", context_settings={"allow_interspersed_args": False})(run)
app.command("shell")(shell)
for _name, _command in {
    "create": create,
    "list": list_,
    "show": show,
    "ls": ls,
    "cp": cp,
    "checkpoint": checkpoint,
    "rollback": rollback,
    "drop": drop,
    "fork": fork,
    "commit": commit,
    "pause": pause,
    "hibernate": hibernate,
    "resume": resume,
    "kill": kill,
    "events": events,
}.items():
    app.command(_name)(_command)
