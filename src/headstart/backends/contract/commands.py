"""Commands that run in a sandbox: how they end, and what they are given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from anyio.abc import ByteReceiveStream, ByteSendStream

from headstart.errors import ConfigError

__all__ = [
    "REVIVED_FROM",
    "ByteStreams",
    "Completed",
    "ExitStatus",
    "ForkableProcess",
    "Process",
    "ProcessImage",
    "TerminalProcess",
    "TerminalSize",
]

REVIVED_FROM = 9
"""Where a program finds its descriptors when it goes on as a fork: so much higher than it had them before."""

_MOST_CHARACTERS = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: an exit code, or the signal that killed it."""

    code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A command's end and its output (each at most 1 MiB here; more is cut and said so)."""

    status: ExitStatus
    stdout: bytes
    stderr: bytes
    truncated: bool = False


class Process(Protocol):
    """A command that was started."""

    async def wait(self) -> ExitStatus:
        """Return when the command has ended. Cancelling leaves it running."""
        ...

    async def terminate(self) -> None:
        """Send SIGTERM to the command; harmless when it has ended."""
        ...

    async def interrupt(self) -> None:
        """Send SIGINT to the command's process group, as Ctrl-C does; harmless when it has ended.

        It arrives before any command begins that is started in the sandbox later.
        """
        ...


class ByteStreams(Process, Protocol):
    """A command with its stdio, as raw pipes."""

    @property
    def stdin(self) -> ByteSendStream: ...
    @property
    def stdout(self) -> ByteReceiveStream: ...
    @property
    def stderr(self) -> ByteReceiveStream: ...
    @property
    def forced_by(self) -> int | None:
        """The signal that it took to end the command once it was detached; None: its closed stdin was enough."""
        ...


class ProcessImage(Protocol):
    """A program as it was when it forked; kept for as long as somebody refers to it."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def is_gone(self) -> bool:
        """Whether it is known that it could not be made, or kept."""
        ...

    async def settled(self) -> None:
        """Return when it is there for sure.

        Raises:
            BackendError: It is not: it could not be made, or what would have made it was killed.
        """
        ...


class ForkableProcess(Protocol):
    """A program that forks when it is asked to, so that its state can be kept."""

    @property
    def streams(self) -> ByteStreams:
        """The program itself, with its stdio."""
        ...

    @property
    def pid(self) -> int | None:
        """As this machine numbers it; None if the backend keeps no programs."""
        ...

    async def keep(self, ask: Callable[[], Awaitable[bool]]) -> ProcessImage | None:
        """Keep its state as it is when it forks; it goes on, and its `fork()` returns 0x7FFFFFFF.

        Args:
            ask: Has it do that, as it understands it, and returns whether it will, or has. It sends itself SIGTRAP, and
                forks then; or it does neither. What `RunningSandbox.revive` makes of it goes on from there.

        Returns:
            Its state, as soon as that changes no more: it stands at its fork, which `ProcessImage.settled` waits for.
            None: It did not.

        Raises:
            NotCapturable: It has other threads, which no fork has; or the backend keeps no programs.
            BackendError: It, or what would have kept it, has ended; or it did not fork in time, and was killed.
            Exception: What `ask` raises.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    """In characters.

    Raises:
        ConfigError: No terminal can have it.
    """

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        if not (0 <= self.rows <= _MOST_CHARACTERS and 0 <= self.columns <= _MOST_CHARACTERS):
            hint = f"say whole numbers from 0 to {_MOST_CHARACTERS}"
            raise ConfigError(f"{self.rows} by {self.columns} is no terminal's", where="size", hint=hint)


class TerminalProcess(Process, Protocol):
    """A command on a terminal of its own."""

    @property
    def descriptor(self) -> int:
        """The terminal's other side: what is written there was typed, what is read there is shown.

        It is closed when the command's block is left.
        """
        ...
