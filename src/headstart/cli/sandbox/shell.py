"""`headstart sandbox shell`: an interactive terminal in a sandbox."""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from headstart.errors import ConfigError, HeadstartError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headstart.backends.contract import TerminalProcess
    from headstart.sandbox import HostedSandbox, Sandbox, SandboxOptions

__all__ = ["shell"]

_CHUNK_BYTES = 65_536
_SIGNALLED = 128


def shell(  # noqa: PLR0913 (a command's options)
    sandbox: Annotated[
        str | None,
        typer.Argument(metavar="[SANDBOX]", help="One that lives in the service; without it, one of its own."),
    ] = None,
    *,
    template: TemplateOption = "host",
    mounts: MountOption = None,
    cwd: Annotated[str | None, typer.Option(help="Where it begins; the sandbox's home, unless said.")] = None,
    env: EnvOption = None,
    network: NetworkOption = "none",
    memory_mb: MemoryOption = 2_000,
    cpu_cores: CpuOption = None,
    disk_mb: DiskOption = 1_000,
    pids: PidsOption = 512,
    state_dir: StateOption = None,
) -> None:
    """Open a terminal in a sandbox; its exit status is the shell's."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "this is no terminal", where="headstart sandbox shell", hint="headstart sandbox run runs a command without"
        )
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
    variables = {"TERM": os.environ.get("TERM", "xterm-256color"), **dict(variable(each) for each in env or ())}
    raise typer.Exit(run_interruptible(lambda: _shell(sandbox, state_dir, options, cwd, variables)))


async def _shell(
    sandbox: str | None, state_dir: Path | None, options: SandboxOptions, cwd: str | None, env: Mapping[str, str]
) -> int:
    from headstart.backends.contract import TerminalSize
    from headstart.sandbox import Sandboxes, connect

    async with AsyncExitStack() as stack:
        box: Sandbox | HostedSandbox
        if sandbox is None:
            boxes = await stack.enter_async_context(Sandboxes.open(state_dir=state_dir_of(state_dir)))
            box = await stack.enter_async_context(boxes.create(options))
        else:
            box = await (await stack.enter_async_context(connect(state_dir))).get(sandbox)
        columns, rows = os.get_terminal_size()
        size = TerminalSize(rows=rows, columns=columns)
        async with box.start_on_terminal(("bash", "-i"), size, cwd=cwd, env=env) as shown:
            with _raw(sys.stdin.fileno()):
                told_to_end = await _pass_between(shown)
            if told_to_end is not None:
                return _SIGNALLED + told_to_end
            status = await shown.wait()
    return status.code if status.code is not None else _SIGNALLED + (status.signal or 0)


async def _pass_between(shown: TerminalProcess) -> signal.Signals | None:
    """Show what the sandbox's terminal shows, and type there what is typed here, until its shell has ended.

    Returns:
        The signal that we were told to end by, if that came first.
    """
    import anyio

    ended_by: list[signal.Signals] = []

    async def type_on() -> None:
        while True:
            await anyio.wait_readable(sys.stdin.fileno())
            typed = os.read(sys.stdin.fileno(), _CHUNK_BYTES)
            if not typed:
                return
            await _type(shown.descriptor, typed)

    async def heed_signals() -> None:
        with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                if number is not signal.SIGWINCH:
                    ended_by.append(number)
                    scope.cancel()
                    return
                columns, rows = os.get_terminal_size()
                termios.tcsetwinsize(shown.descriptor, (rows, columns))

    async def until_end() -> None:
        with suppress(HeadstartError):  # who has called us waits as well, and is told
            await shown.wait()
        scope.cancel()

    os.set_blocking(shown.descriptor, False)
    async with anyio.create_task_group() as working:
        scope = anyio.CancelScope()
        for task in (type_on, heed_signals, until_end):
            working.start_soon(task)
        with scope:
            await _show_all(shown.descriptor)
        working.cancel_scope.cancel()
    return ended_by[0] if ended_by else None


async def _type(descriptor: int, typed: bytes) -> None:
    """Type it, as fast as it is read; what is typed when nobody has the terminal any more is lost."""
    import anyio

    while typed:
        await anyio.wait_writable(descriptor)
        try:
            typed = typed[os.write(descriptor, typed) :]
        except BlockingIOError:
            continue
        except OSError:
            return


async def _show_all(descriptor: int) -> None:
    """Show what comes, until nobody has the terminal any more."""
    import anyio

    while True:
        await anyio.wait_readable(descriptor)
        try:
            said = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:  # EIO: how a terminal tells its end
            return
        sys.stdout.buffer.write(said)
        sys.stdout.buffer.flush()


@contextmanager
def _raw(descriptor: int) -> Generator[None]:
    """Have every key passed on as it is, Ctrl-C too."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # what has been typed meanwhile is meant for it
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
