"""Every error that Headstart raises on purpose.

The tree; one class per fact, flat where it can be::

    HeadstartError
    ├── ConfigError              a file, key or value the user wrote cannot be used
    ├── InvalidTransition        a state machine met an event it has no row for (our bug)
    ├── CatalogueUnavailable     a server's lists are not known and could not be learned
    ├── ServerUnavailable        an MCP server cannot be started, or died, or is backing off
    │   └── StartTimedOut        … it did not answer its handshake in time (also TimeoutError)
    ├── UnauthorizedUpstream     a remote MCP server wants credentials; its challenge is carried along
    ├── SandboxLost              a sandbox that owned state is gone; the state went with it
    ├── BudgetExceeded           a memory, start or waste budget leaves no room
    ├── NotCapturable            a checkpoint cannot hold what runs in a sandbox
    ├── Conflict                 a branch was forked from a state that is not the sandbox's any more
    ├── TransactionRefused       a checkpoint, rollback, fork or commit that cannot be begun
    ├── BuildFailed              a set-up or readiness command of a template did not do its work
    ├── CommandTimedOut          a command in a sandbox took too long and was killed (also TimeoutError)
    ├── BackendError             a backend failed at its own work
    │   ├── BackendUnavailable   … because this machine cannot run it
    │   └── SandboxPaused        … because the sandbox stands still until it is resumed
    ├── SandboxUnknown           no such sandbox in the service (or it has ended)
    └── SessionUnknown           no such session (or it has ended)

A message names what, where and the cure. `hint` is the cure alone, so that the CLI
can put it on its own line. Both are told to models; what only the operator may see is `detail`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BackendError",
    "BackendUnavailable",
    "BudgetExceeded",
    "BuildFailed",
    "CatalogueUnavailable",
    "CommandTimedOut",
    "ConfigError",
    "Conflict",
    "HeadstartError",
    "InvalidTransition",
    "NotCapturable",
    "SandboxLost",
    "SandboxPaused",
    "SandboxUnknown",
    "ServerUnavailable",
    "SessionUnknown",
    "StartTimedOut",
    "TransactionRefused",
    "UnauthorizedUpstream",
]


class HeadstartError(Exception):
    """Base of all deliberate errors.

    Attributes:
        hint: What the reader can do about it, or None.
        detail: What a server wrote last, or that it wrote nothing; "" where that is not the matter. It may hold
            secrets and other sessions' data.
    """

    def __init__(self, message: str, *, hint: str | None = None, detail: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.detail = detail
        if hint:
            self.add_note(f"hint: {hint}")  # so that a traceback has it, too

    @property
    def in_full(self) -> str:
        """The message and the detail, for the operator's eyes."""
        return f"{self}; {self.detail}" if self.detail else str(self)


class ConfigError(HeadstartError):
    """A configuration file or option cannot be used.

    Attributes:
        where: `file:line` or the option's name.
        key: The dotted key at fault, or None for the file as a whole.
    """

    def __init__(self, message: str, *, where: str, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(": ".join(part for part in (where, key, message) if part), hint=hint)
        self.where = where
        self.key = key


class InvalidTransition(HeadstartError):
    """A state machine was handed an event that its state has no row for.

    Attributes:
        subject: The id of the sandbox or call concerned.
        state: The state that it was in.
        event: The event's class name.
        story: Its transitions so far, oldest first, one line each.
    """

    def __init__(self, *, subject: str, state: str, event: str, story: tuple[str, ...]) -> None:
        told = "".join(f"\n  {line}" for line in story)
        super().__init__(f"{subject}: {event} is not possible in state {state!r}; its story:{told}")
        self.subject = subject
        self.state = state
        self.event = event
        self.story = story


class CatalogueUnavailable(HeadstartError):
    """A server's tools, prompts and resources are unknown and could not be learned in time."""


class ServerUnavailable(HeadstartError):
    """An MCP server cannot serve: it did not start, died, or is backing off after failures.

    Attributes:
        server: Its name in the config.
        retry_after_s: Seconds until the next start will be tried, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        server: str,
        retry_after_s: float | None = None,
        hint: str | None = None,
        detail: str = "",
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.server = server
        self.retry_after_s = retry_after_s


class StartTimedOut(ServerUnavailable, TimeoutError):
    """A server did not answer its handshake within its start deadline."""


class UnauthorizedUpstream(HeadstartError):
    """A remote MCP server answered 401 or 403; the client must see the challenge itself.

    Attributes:
        status: The HTTP status.
        challenge: Its `WWW-Authenticate` value, "" if it sent none.
    """

    def __init__(self, message: str, *, status: int, challenge: str) -> None:
        super().__init__(message)
        self.status = status
        self.challenge = challenge


class SandboxLost(HeadstartError):
    """The sandbox that held this session's state is gone; a new one starts empty.

    Attributes:
        server: The server whose sandbox was lost.
    """

    def __init__(self, message: str, *, server: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.server = server


class BudgetExceeded(HeadstartError):
    """A budget (memory, starts, waste) leaves no room for what was asked."""


class NotCapturable(HeadstartError):
    """A checkpoint cannot hold what runs in a sandbox; nothing was done to it.

    Attributes:
        held: Who runs, or holds what, for people: `python3 (41): /home/sandbox/log`.
    """

    def __init__(self, message: str, *, hint: str | None = None, held: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint)
        self.held = tuple(held)


class Conflict(HeadstartError):
    """A branch was forked from a state that is not the sandbox's any more; both are as they were.

    Attributes:
        origin: The state version that it was forked from.
        canonical: The sandbox's own.
    """

    def __init__(self, message: str, *, origin: str, canonical: str) -> None:
        super().__init__(
            message,
            hint="something has run there since, or another branch was committed: take from this one what is wanted, or fork again",
        )
        self.origin = origin
        self.canonical = canonical


class TransactionRefused(HeadstartError):
    """A checkpoint, rollback, fork or commit that cannot be begun, or not now; nothing was done."""


class BuildFailed(HeadstartError):
    """A template could not be built, because of what runs in it; an earlier one of its name is as it was.

    Attributes:
        output: What the command said last.
    """

    def __init__(self, message: str, *, hint: str | None = None, output: str = "") -> None:
        super().__init__(message, hint=hint)
        self.output = output


class CommandTimedOut(HeadstartError, TimeoutError):
    """A command in a sandbox had not ended in its time; it was killed, the sandbox lives on."""


class BackendError(HeadstartError):
    """A backend failed at its own work (not: a command that it ran failed)."""


class BackendUnavailable(BackendError):
    """This machine cannot run the backend; the message says what is missing."""


class SandboxPaused(BackendError):
    """A sandbox stands still, so what was asked for cannot be done until it is resumed."""

    def __init__(self, sandbox: str) -> None:
        super().__init__(f"{sandbox} is paused, and nothing can be done in it", hint="resume it first")


class SandboxUnknown(HeadstartError):
    """No such sandbox lives in the service: it never did, or has ended; the message says which."""


class SessionUnknown(HeadstartError):
    """No such session: it never was, or has ended."""
