"""Commands as a user says them, and running one to its end."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import anyio

from headstart.backends.contract import ByteStreams, Command
from headstart.backends.output import take_output
from headstart.errors import CommandTimedOut
from headstart.sandbox.options import check_words, variables
from headstart.sandbox.output import OnOutput, Taken
from headstart.sandbox.result import CommandResult

__all__ = ["complete_command", "run_to_end"]


def complete_command(command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> Command:
    """Return a command that was given as a line for bash, or as a program and its arguments.

    Raises:
        ConfigError: It can be no command.
    """
    argv = ("bash", "-c", command) if isinstance(command, str) else tuple(command)
    check_words(argv, cwd)
    return Command(argv=argv, env=variables(env or {}), cwd=cwd)


async def run_to_end(
    started: AbstractAsyncContextManager[ByteStreams],
    command: str | Sequence[str],
    *,
    stdin: str | bytes | AsyncIterable[bytes],
    timeout_s: float | None,
    on_output: OnOutput | None,
) -> CommandResult:
    """Feed a command and take what it says until it has ended, or its time is up.

    Raises:
        CommandTimedOut: It took longer; it was killed.
        BackendError: The sandbox is gone, or there is no such program.
    """
    taken = Taken(on_output)
    async with started as streams:
        with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
            status = await take_output(
                streams,
                stdin.encode() if isinstance(stdin, str) else stdin,
                stdout=taken.sinks[0],
                stderr=taken.sinks[1],
            )
            return CommandResult(status=status, stdout=taken.stdout, stderr=taken.stderr, truncated=taken.cut)
        shown = repr(command if isinstance(command, str) else " ".join(command))
        raise CommandTimedOut(f"{shown} had not ended after {timeout_s:g} s, and was killed")
