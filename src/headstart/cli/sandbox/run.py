"""`headstart sandbox run`: one command, in a sandbox of its own or in one that lives."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headstart.cli.interrupts import run_interruptible
from headstart.cli.sandbox.options import (
    CpuOption,
    DiskOption,
    EnvOption,
    MemoryOption,
    MountOption,
    NetworkOption,
    PidsOption,
    TemplateOption,
    sandbox_options,
    variable,
)
from headstart.cli.settings import StateOption
from headstart.cli.state import state_dir as state_dir_of
from headstart.cli.terminal import print_error, say
from headstart.errors import CommandTimedOut, ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from headstart.sandbox import HostedSandbox, Sandbox, SandboxOptions

__all__ = ["NO_SANDBOX_STATUS", "TIMED_OUT_STATUS", "run"]

TIMED_OUT_STATUS = 124
"""As `timeout` from coreutils tells it."""

NO_SANDBOX_STATUS = 125
"""As `docker run` tells that it is not the command that failed."""

_CHUNK_BYTES = 65_536

_OF_A_NEW_ONE = ("template", "mounts", "network", "memory_mb", "cpu_cores", "disk_mb", "pids")


def run(  # noqa: PLR0913 (a command's options)
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="A program and its arguments; or one word, a line for bash.")],
    *,
    sandbox: Annotated[
        str | None, typer.Option("--in", metavar="SANDBOX", help="Run it in this one, which lives in the service.")
    ] = None,
    template: TemplateOption = "host",
    mounts: MountOption = None,
    cwd: Annotated[str | None, typer.Option(help="Where it runs; the sandbox's home, unless said.")] = None,
    env: EnvOption = None,
    network: NetworkOption = "none",
    memory_mb: MemoryOption = 2_000,
    cpu_cores: CpuOption = None,
    disk_mb: DiskOption = 1_000,
    pids: PidsOption = 512,
    timeout_s: Annotated[float | None, typer.Option("--timeout", metavar="S", help="Kill it after this long.")] = None,
    state_dir: StateOption = None,
) -> None:
    """Run one command in a sandbox of its own, which is gone afterwards; or in one that lives.

    Its exit status is the command's; 124 if it took too long, 125 if it could not be run.
    """
    if timeout_s is not None and not timeout_s > 0:
        hint = "say seconds above 0, or nothing to wait for as long as it takes"
        raise ConfigError(f"{timeout_s:g} is no time", where="--timeout", hint=hint)
    try:
        if sandbox is None:
            options = sandbox_options(
                template=template,
                mounts=mounts,
                env=env,
                network=network,
                memory_mb=memory_mb,
                cpu_cores=cpu_cores,
                disk_mb=disk_mb,
                pids=pids,
            )
            where = None if cwd is None else str(Path(cwd).expanduser().absolute())
            state = state_dir_of(state_dir)
            status = run_interruptible(lambda: _run_in_new(options, state, command, cwd=where, timeout_s=timeout_s))
        else:
            _refuse_options_of_a_new_one(context, sandbox)
            variables = dict(variable(each) for each in env or ())
            status = run_interruptible(
                lambda: _run_in_living(sandbox, state_dir, command, cwd=cwd, env=variables, timeout_s=timeout_s)
            )
    except CommandTimedOut as error:
        print_error(error)
        status = TIMED_OUT_STATUS
    except HeadstartError as error:
        print_error(error)
        status = NO_SANDBOX_STATUS
    raise typer.Exit(status)


def _refuse_options_of_a_new_one(context: typer.Context, sandbox: str) -> None:
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if parameter.name in _OF_A_NEW_ONE and source is not None and source.name == "COMMANDLINE":
            hint = "say it when you create one: headstart sandbox create"
            raise ConfigError(f"{sandbox} has been made already", where=parameter.opts[0], hint=hint)


async def _run_in_new(
    options: SandboxOptions, state: Path, command: list[str], *, cwd: str | None, timeout_s: float | None
) -> int:
    from headstart.sandbox import Sandboxes

    async with Sandboxes.open(state_dir=state) as boxes, boxes.create(options) as box:
        more = f"it may use {options.memory_mb:,} MB; --memory gives it more"
        return await _run(box, command, cwd=cwd, env={}, timeout_s=timeout_s, more_memory=more)


async def _run_in_living(
    sandbox: str,
    state_dir: Path | None,
    command: list[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    timeout_s: float | None,
) -> int:
    from headstart.sandbox import connect

    async with connect(state_dir) as service:
        more = "headstart sandbox create --memory gives one more; branches and checkpoints that are dropped make room"
        box = await service.get(sandbox)
        return await _run(box, command, cwd=cwd, env=env, timeout_s=timeout_s, more_memory=more)


async def _run(
    box: Sandbox | HostedSandbox,
    command: list[str],
    *,
    cwd: str | None,
    env: Mapping[str, str],
    timeout_s: float | None,
    more_memory: str,
) -> int:
    done = await box.run(
        command[0] if len(command) == 1 else command,
        cwd=cwd,
        env=env,
        stdin=b"" if sys.stdin.isatty() else _stdin(),
        timeout_s=timeout_s,
        on_output=_pass_on,
    )
    if done.out_of_memory:
        say(f"out of memory: it was killed at the limit of its sandbox ({more_memory})")
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
