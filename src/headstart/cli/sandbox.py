"""`headstart sandbox …`: isolated environments for anything that is to be run."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headstart.cli.terminal import print_error
from headstart.errors import CommandTimedOut, ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headstart.sandbox import SandboxOptions

__all__ = ["NO_SANDBOX_STATUS", "TIMED_OUT_STATUS", "app"]

TIMED_OUT_STATUS = 124
"""As `timeout` from coreutils tells it."""

NO_SANDBOX_STATUS = 125
"""As `docker run` tells that it is not the command that failed."""

_CHUNK_BYTES = 65_536

app = typer.Typer(help="Run things in isolation.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command("run", context_settings={"allow_interspersed_args": False})
def sandbox_run(  # noqa: PLR0913 (a command's options)
    command: Annotated[list[str], typer.Argument(help="A program and its arguments; or one word, a line for bash.")],
    *,
    mounts: Annotated[
        list[str] | None,
        typer.Option("--mount", metavar="PATH[:MODE]", help="Show a host path: ro (the default), rw or overlay."),
    ] = None,
    cwd: Annotated[str | None, typer.Option(help="Where it runs; the sandbox's home, unless said.")] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Add to its environment.")] = None,
    network: Annotated[str, typer.Option(help="none or host.")] = "none",
    memory_mb: Annotated[int, typer.Option("--memory", metavar="MB", help="The most it may use.")] = 2_000,
    cpu_cores: Annotated[float | None, typer.Option("--cpu", metavar="CORES", help="The most it may use.")] = None,
    timeout_s: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Kill it after this long.")] = None,
) -> None:
    """Run one command in a sandbox of its own, which is gone afterwards.

    Its exit status is the command's; 124 if it took too long, 125 if it could not be run.
    """
    import anyio

    from headstart.sandbox import SandboxOptions

    where = None if cwd is None else str(Path(cwd).expanduser().absolute())
    try:
        options = SandboxOptions(
            mounts=dict(_mount(each) for each in mounts or ()),
            network=network,
            memory_mb=memory_mb,
            cpu_cores=cpu_cores,
            env=dict(_variable(each) for each in env or ()),
        )
        status = anyio.run(lambda: _run(options, command, cwd=where, timeout_s=timeout_s))
    except CommandTimedOut as error:
        print_error(error)
        status = TIMED_OUT_STATUS
    except HeadstartError as error:
        print_error(error)
        status = NO_SANDBOX_STATUS
    raise typer.Exit(status)


async def _run(options: SandboxOptions, command: list[str], *, cwd: str | None, timeout_s: float | None) -> int:
    from headstart.sandbox import Sandboxes

    async with Sandboxes.open() as boxes, boxes.create(options) as box:
        done = await box.run(
            command[0] if len(command) == 1 else command,
            cwd=cwd,
            stdin=b"" if sys.stdin.isatty() else _stdin(),
            timeout_s=timeout_s,
            on_output=_pass_on,
        )
        return done.exit_code


async def _pass_on(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
    stream = sys.stdout.buffer if name == "stdout" else sys.stderr.buffer
    stream.write(chunk)
    stream.flush()


async def _stdin() -> AsyncGenerator[bytes]:
    """Yield what we are given, without a thread that would outlive the command: a pipe may stay open for ever."""
    import anyio

    descriptor = sys.stdin.fileno()
    kind = os.fstat(descriptor).st_mode
    may_stay_open = stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind)
    while True:
        if may_stay_open:
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _mount(written: str) -> tuple[str, str]:
    """Split `PATH[:MODE]`; a path may have colons, so only a known mode counts as one."""
    path, colon, mode = written.rpartition(":")
    return (path, mode) if colon and mode in {"ro", "rw", "overlay"} else (written, "ro")


def _variable(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not name or not equals:
        raise ConfigError(f"{written!r} is no variable", where="--env", hint="write NAME=VALUE")
    return name, value
