"""What a command in a sandbox left: how it ended, and what it said."""

from __future__ import annotations

from dataclasses import dataclass

from headstart.backends.contract import ExitStatus

__all__ = ["CommandResult"]

_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command that has ended, however.

    Attributes:
        stdout / stderr: At most 1 MiB each; bytes that are no UTF-8 show as U+FFFD. Empty where a
            callback has taken it.
        truncated: There was more of it.
    """

    status: ExitStatus
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False

    @property
    def ok(self) -> bool:
        """Whether it ended with status 0."""
        return self.status.code == 0

    @property
    def exit_code(self) -> int:
        """As a shell tells it: 128 and the signal's number for one that was killed."""
        return self.status.code if self.status.code is not None else _SIGNALLED + (self.status.signal or 0)

    @property
    def out_of_memory(self) -> bool:
        """Whether it was killed because its sandbox had used up its memory."""
        return self.status.out_of_memory
