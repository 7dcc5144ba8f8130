"""What a piece of code left that ran in an interpreter which keeps its state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CellError", "CellResult", "ShellResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellError:
    """Why a cell did not get to its end.

    Attributes:
        type: The exception's, as `json.decoder.JSONDecodeError`; `KernelLost` if the kernel ended instead.
        message: What it says.
        traceback: As Python prints it, without the kernel's own part; "" if the kernel ended.
    """

    type: str
    message: str
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell of Python that has ended, however.

    Attributes:
        text: `repr` of the last expression's value; None if there is none, or it is None.
        error: What was raised, or that the kernel ended; None if all went well.
        stdout / stderr: At most 1 MiB each; bytes that are no UTF-8 show as U+FFFD. Empty where a callback has
            taken it. What threads and processes of earlier cells said since then comes first.
        truncated: There was more of one of these, or of `text` (1 Mi characters).
        timed_out: It took longer than it was given: it was interrupted (`KeyboardInterrupt`), or the kernel killed.
        lost: The kernel ended, and its state with it. The next cell gets a new one.
        restarted: This kernel was new: variables of the cells before are gone.
    """

    text: str | None = None
    error: CellError | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    timed_out: bool = False
    lost: bool = False
    restarted: bool = False

    @property
    def ok(self) -> bool:
        """Whether it got to its end."""
        return self.error is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellResult:
    """A command of a bash session that has ended, however.

    Attributes:
        exit_code: Its status; 130 if it was interrupted. If bash ended: bash's own, 128 and the signal's number if
            it was killed.
        cwd: Where the session is now; None if bash ended.
        stdout / stderr: As in `CellResult`.
        truncated: There was more of one of these.
        timed_out: It took longer than it was given: it was interrupted, or the session killed.
        lost: Why bash ended (`exit`, a crash), and its state with it; None if it did not. The next command gets a
            new one.
        restarted: This session was new: folder, variables and functions of the commands before are gone.
        out_of_memory: It, or what it ran last, was killed (137) because the sandbox's memory was used up.
    """

    exit_code: int
    cwd: str | None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    timed_out: bool = False
    lost: str | None = None
    restarted: bool = False
    out_of_memory: bool = False

    @property
    def ok(self) -> bool:
        """Whether its status is 0."""
        return self.exit_code == 0
