"""One sandbox, and what it is started from."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from headstart.backends.contract.commands import (
    ByteStreams,
    Completed,
    ForkableProcess,
    Process,
    ProcessImage,
    TerminalProcess,
    TerminalSize,
)
from headstart.backends.contract.files import Checkpoint, Files
from headstart.backends.contract.template import Command, Identity, Template
from headstart.core.forms import PrepareForm
from headstart.ids import SandboxId

__all__ = ["Prepared", "RunningSandbox", "Usage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a sandbox has used: PSS or its cgroup's charge (never a sum of RSS), and CPU time."""

    memory_bytes: int
    cpu_s: float
    processes: int


class Prepared(Protocol):
    """A template made ready to start from. Owned by the backend; closed with `aclose`."""

    @property
    def template(self) -> Template: ...
    @property
    def form(self) -> PrepareForm: ...

    @property
    def preload_cpu_s(self) -> float:
        """CPU-seconds that preparing took (0 for cold)."""
        ...

    async def usage(self) -> Usage:
        """What the prepared form itself holds (the zygote's own memory; zero for cold)."""
        ...

    async def aclose(self) -> None:
        """Let go of it. Sandboxes that were started from it live on."""
        ...


class RunningSandbox(Protocol):
    """One sandbox. Owned by one task; everyone else holds its id."""

    @property
    def id(self) -> SandboxId: ...
    @property
    def files(self) -> Files: ...

    async def run(self, command: Command, *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end. Cancelling kills it and what it started.

        Raises:
            TimeoutError: `timeout_s` passed; the command was killed.
            BackendError: The sandbox failed (it is gone, or could not start the command).
        """
        ...

    def start(self, command: Command, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        """Start a command and yield its stdio, for output of any size and for talking with it.

        Who does not read its output holds it up. On leaving, which another task may do, it is killed with all
        that it started, unless it has ended; what it left running then goes on.

        Args:
            command: What is run.
            descriptors: What it gets as its 3, 4, …; they stay open here. A backend may be unable to.

        Raises:
            BackendError: The sandbox failed (it is gone, or could not start the command), or takes no descriptors.
        """
        ...

    def start_forkable(
        self, command: Command, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """As `start`, but the program's state can be kept (`ForkableProcess.keep`), if this backend can do that at all.

        It is no child of anything in the sandbox, and what runs there cannot signal it.
        """
        ...

    def revive(
        self, image: ProcessImage, *, descriptors: Sequence[int] = ()
    ) -> AbstractAsyncContextManager[ForkableProcess]:
        """Let a program go on as it was kept: its fork, in this sandbox; the image stays.

        It has a stdin, stdout and stderr of its own, what is given here as 3, 4, …, and no other descriptors. All of
        them are `REVIVED_FROM` higher. Its folder is `/`. The rest is as for `start_forkable`.

        Raises:
            BackendError: The image is gone, or it is no program of this sandbox or one that this was forked from; or as
                for `start`.
        """
        ...

    def start_on(self, command: Command, descriptors: Sequence[int]) -> AbstractAsyncContextManager[Process]:
        """As `start`, but the command's 0, 1, 2, … are given; they stay open here.

        Raises:
            BackendError: As `start`, or this backend cannot (`Capabilities.descriptors`).
        """
        ...

    def start_on_terminal(self, command: Command, size: TerminalSize) -> AbstractAsyncContextManager[TerminalProcess]:
        """As `start`, on a terminal that is the sandbox's own and the command's controlling one.

        Raises:
            BackendError: As `start_on`.
        """
        ...

    def attach(self, *, descriptors: Sequence[int] = ()) -> AbstractAsyncContextManager[ByteStreams]:
        """Start the template's entry command (once per sandbox) and yield its stdio.

        On leaving: stdin is closed, then the command gets SIGTERM, then SIGKILL, each
        after a bounded wait. A backend that isolates need not wait for a command whose
        template does not reach out: nobody could see what it still does.

        Args:
            descriptors: What the command gets as its 3, 4, …; they stay open here. For cold
                sandboxes of backends with `Capabilities.zygotes` only.

        Raises:
            BackendError: It was started before, or this sandbox takes no descriptors.
        """
        ...

    async def raise_priority(self) -> None:
        """From now on somebody waits for it: give it its full share of the CPU."""
        ...

    async def checkpoint(
        self, *, files_only: bool = False, beside: Sequence[ForkableProcess | Process] = ()
    ) -> Checkpoint:
        """Keep the state as it is now. Once begun it comes to its end, also if cancelled.

        Files that are being written (`Files.write`) are waited for; commands wait until it is done.

        Args:
            files_only: Leave out what runs; it goes on.
            beside: Programs that do not count as running: they are kept otherwise, and wait for their users. One that is
                forkable holds nothing of the file tree; another that does, if only as its working folder, runs.

        Raises:
            NotCapturable: Something runs that a checkpoint cannot hold; it goes on.
            TransactionRefused: As many checkpoints are kept as there can be.
            BackendError: The sandbox is gone, or this one has no layers (`Capabilities.layers`).
        """
        ...

    async def fork(self, at: Checkpoint, identity: Identity) -> RunningSandbox:
        """Start another sandbox that begins with a checkpoint of this one, of one that it was forked from, or of a fork.

        Neither sees what the other does. To go back is to go on in a fork. It carries the identity that it is
        given, whatever its origin's is; what processes and files know of that is theirs.

        Raises:
            BackendError: There is no such checkpoint (any more), or it could not be started.
        """
        ...

    async def forget(self, checkpoint: Checkpoint) -> None:
        """Let go of a checkpoint; forks of it go on. One that is not there is fine."""
        ...

    async def save_base(self, folder: Path, *, most_bytes: int) -> None:
        """Copy its private folders, as they are, into an empty folder of the host, for templates to begin with.

        Those are the home, /tmp and /var/tmp; mounts in them are left out. What was copied when it fails is left there.

        Raises:
            NotCapturable: Something runs in it.
            BackendError: It is larger than `most_bytes`, or cannot be copied; or the backend cannot (`Capabilities.roots`).
        """
        ...

    @property
    def paused(self) -> bool: ...

    async def pause(self) -> None:
        """Have everything in it stand still, and return when it does. Idempotent. Once begun it comes to its end.

        It keeps its memory and uses no CPU; output stops, and goes on when it is resumed. What is being begun (a
        command, a file that is written) is waited for. From then on, whatever would need it to move is refused with
        `SandboxPaused`: `run`, `start`, `attach`, files, `checkpoint`, `fork`. `usage` and `aclose` work. A command
        whose time is up (`timeout_s` is the caller's time, paused or not), or that is let go of, is killed at the
        latest when the sandbox is resumed.

        Raises:
            BackendError: It does not stand still, and goes on; it is gone; or the backend cannot
                (`Capabilities.pausing`).
        """
        ...

    async def resume(self) -> None:
        """Let it go on where it was. Idempotent. What was stopped inside before it was paused stays so.

        Raises:
            BackendError: It is gone.
        """
        ...

    async def usage(self) -> Usage: ...

    async def cpu_s(self) -> float:
        """Return the `cpu_s` of its usage alone; cheap enough to ask many times a second."""
        ...

    @property
    def memory_kills(self) -> int:
        """How often something in it was killed because its memory was used up; 0 where nobody counts that."""
        ...

    async def wait_lost(self) -> None:
        """Return when the sandbox is gone, whoever ended it."""
        ...

    async def aclose(self) -> None:
        """Kill everything in it, paused or not, and remove it. Idempotent; completes under cancellation."""
        ...
