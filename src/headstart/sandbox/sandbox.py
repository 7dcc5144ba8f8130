"""What a user holds of a sandbox, and of a branch of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Self, TypeVar

import anyio

from headstart.backends.contract import (
    ByteStreams,
    Command,
    Process,
    RunningSandbox,
    TerminalProcess,
    TerminalSize,
    Usage,
)
from headstart.core.actions import Effect
from headstart.errors import BackendError, SandboxPaused, TransactionRefused
from headstart.ids import CheckpointId, SandboxId
from headstart.runtime.identities import IdentityChoice, is_fresh
from headstart.runtime.kept import SandboxCheckpoint, id_of
from headstart.runtime.lineage import SandboxLineage
from headstart.runtime.remembered import NO_SESSIONS, SessionState
from headstart.sandbox.commands import complete_command, run_to_end
from headstart.sandbox.files import SandboxFiles
from headstart.sandbox.frozen import frozen_secrets
from headstart.sandbox.kernels import CellResult, Kernel, Shell, ShellResult
from headstart.sandbox.options import SandboxOptions, check_words, variables
from headstart.sandbox.output import OnOutput
from headstart.sandbox.result import CommandResult
from headstart.sandbox.sessions import Sessions

__all__ = ["Branch", "Sandbox"]

_P = TypeVar("_P", bound=Process)
_Kept = TypeVar("_Kept")


class Sandbox:
    """An isolated environment: files, processes, network of its own.

    Made by `Sandbox.create`, or, where there are several, by `Sandboxes.create`; it ends with the block.
    A command that fails is a `CommandResult`; a sandbox that fails raises `BackendError`.

    Args:
        lineage: The sandbox with its checkpoints and branches.
        env: What every command finds in its environment.
        branch: Which of its branches this is; None: what the lineage's name means.
        shell: What runs lines.
    """

    def __init__(
        self, lineage: SandboxLineage, env: Mapping[str, str], branch: SandboxId | None = None, *, shell: str = "bash"
    ) -> None:
        self._lineage = lineage
        self._env = dict(env)
        self._shell = shell
        self._branch = branch
        self._files = SandboxFiles(self._current, self._running)
        self._sessions = Sessions(self._running, self._env)
        self._branches: dict[SandboxId, Branch] = {}
        """Until they end, whether their users still have them or not: what runs in them needs an owner."""
        self._replaced: list[Sessions] = []
        self._committed = anyio.Event()
        if branch is None:
            lineage.on_swap = self._swapped

    def _swapped(self, sandbox: SandboxId, checkpoint: CheckpointId | None) -> None:
        """Go on with what runs in the sandbox that this one is now; whoever asked for that may be gone."""
        if checkpoint is not None:
            seed = self._lineage.new_seed() if self._lineage.is_itself(sandbox) else None
            self._sessions.go_on_as(self._lineage.sessions_at(checkpoint), seed=seed)
            return
        branch = self._branches.pop(sandbox, None)
        if branch is not None:
            self._replaced.append(self._sessions)
            self._sessions = branch.become_its_origin()
            self._sessions.take_over(self._replaced[-1], self._running)

    def _current(self) -> RunningSandbox:
        return self._lineage.sandbox(self._branch)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[RunningSandbox]:
        self._must_move()
        async with self._lineage.running(self._branch) as running:
            yield running

    def _must_move(self) -> None:
        """Refuse at once what would wait until it is resumed."""
        if self._current().paused:
            raise SandboxPaused(self.id)

    @staticmethod
    @asynccontextmanager
    async def create(**options: Any) -> AsyncGenerator[Sandbox]:
        """Create one sandbox; when the block is left, nothing of it is.

        Args:
            options: Fields of `SandboxOptions`: `create(network="host", memory_mb=4000)`.

        Raises:
            ConfigError: An option cannot be used.
            BackendUnavailable: Sandboxes cannot be isolated on this machine; the message says why.
            BackendError: It could not be started.
        """
        from headstart.sandbox.sandboxes import Sandboxes  # noqa: PLC0415 it makes these

        async with Sandboxes.open() as sandboxes, sandboxes.create(SandboxOptions(**options)) as box:
            yield box

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def id(self) -> str:
        """Its name; it stays when a rollback or a commit puts another state in its place."""
        return self._branch or self._lineage.name

    @property
    def state_version(self) -> str | None:
        """Identifies its state: two that may differ never share one. None when it is a branch that has ended."""
        return self._lineage.version if self._branch is None else self._lineage.version_of(self._branch)

    @property
    def files(self) -> SandboxFiles:
        """Its files: `read`, `write`, `list`, `stat`, `make_folder`, `rename`, `remove`."""
        return self._files

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | AsyncIterable[bytes] = b"",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> CommandResult:
        """Run a command to its end. If cancelled, it is killed with all that it started.

        Args:
            command: A line for bash (for sh, where there is no bash), or a program and its arguments.
            cwd: Where it runs; the home, unless said.
            env: Added to the environment.
            stdin: What it reads, at once or as it comes.
            timeout_s: How long it may take.
            on_output: Gets all that it says, as it comes; the result has none of it then.

        Raises:
            CommandTimedOut: It took longer; it was killed.
            BackendError: The sandbox is gone, or there is no such program.
        """
        complete = self._complete(command, cwd, env)
        async with self._running() as running:
            return await run_to_end(
                running.start(complete), command, stdin=stdin, timeout_s=timeout_s, on_output=on_output
            )

    def start(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ByteStreams]:
        """Start a command and yield its `stdin`, `stdout` and `stderr`, to talk with it.

        Who does not read its output holds it up. When the block is left, it is killed with all that it started.

        Raises:
            BackendError: The sandbox is gone, or there is no such program.
        """
        complete = self._complete(command, cwd, env)
        return self._beside(lambda running: running.start(complete))

    def start_on_terminal(
        self,
        command: str | Sequence[str] = ("bash", "-i"),
        size: TerminalSize = TerminalSize(),  # noqa: B008 it is frozen
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AbstractAsyncContextManager[TerminalProcess]:
        """Start a command on a terminal of its own, and yield what shows that; the rest is as for `start`."""
        complete = self._complete(command, cwd, {"TERM": "xterm-256color", **(env or {})})
        return self._beside(lambda running: running.start_on_terminal(complete, size))

    @asynccontextmanager
    async def start_on(
        self,
        command: str | Sequence[str],
        descriptors: Sequence[int],
        *,
        alone: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Process]:
        """Start a command whose 0, 1, 2, … are given; they stay open here. The rest is as for `start`.

        Args:
            command: As for `run`.
            descriptors: What it gets.
            alone: Have checkpoints, rollbacks and commits refused while it runs, as for `run`.
            cwd: As for `run`.
            env: As for `run`.
        """
        complete = self._complete(command, cwd, env)
        if not alone:
            async with self._beside(lambda running: running.start_on(complete, descriptors)) as process:
                yield process
            return
        async with self._running() as running, running.start_on(complete, descriptors) as process:
            yield process

    @asynccontextmanager
    async def _beside(self, start: Callable[[RunningSandbox], AbstractAsyncContextManager[_P]]) -> AsyncGenerator[_P]:
        """Start something that runs beside everything else."""
        self._must_move()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._note_changes)
            async with self._running() as running:
                process = await stack.enter_async_context(start(running))
            yield process

    def _complete(self, command: str | Sequence[str], cwd: str | None, env: Mapping[str, str] | None) -> Command:
        complete = complete_command(command, cwd, env)
        argv = (self._shell, *complete.argv[1:]) if complete.argv[0] == "bash" else complete.argv
        return replace(complete, argv=argv, env={**self._env, **complete.env})

    async def _note_changes(self) -> None:
        """What ran beside everything else may have changed the state until now."""
        with anyio.CancelScope(shield=True), suppress(TransactionRefused, BackendError):  # it has ended, say
            async with self._lineage.running(self._branch):
                pass

    async def run_code(
        self, code: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> CellResult:
        """Run a cell of Python, which finds what the cells before have left: variables, imports, threads.

        One at a time: a call waits for those before. What fails in the code is data, also that it took too long
        or has ended its kernel. If cancelled, the cell is interrupted, and the kernel killed if it does not react.

        Args:
            code: Statements; the last one's value, if it is an expression, is the result's `text`. `await` is
                possible.
            timeout_s: How long it may take until it is interrupted, which its state survives. If it goes on for
                2 s more, its kernel is killed.
            on_output: Gets all that it says, as it comes; the result has none of it then.

        Raises:
            ConfigError: The code is no text.
            BackendError: The sandbox is gone, or there is no Python in it.
        """
        self._must_move()
        return await self.kernel.run(code, timeout_s=timeout_s, on_output=on_output)

    async def run_in_shell(
        self, command: str, *, timeout_s: float | None = None, on_output: OnOutput | None = None
    ) -> ShellResult:
        """Run a line (or many) in the sandbox's bash session, as `shell.run` does.

        The command finds what those before have left: folder, variables, functions, aliases, options, traps, jobs.
        The rest is as for `run_code`.

        Args:
            command: Code for bash.
            timeout_s: How long it may take until it is interrupted, which the session survives. If it goes on for
                2 s more, the session is killed.
            on_output: Gets all that it says, as it comes; the result has none of it then.

        Raises:
            ConfigError: The command is no text.
            BackendError: The sandbox is gone, or there is no bash in it.
        """
        self._must_move()
        return await self.shell.run(command, timeout_s=timeout_s, on_output=on_output)

    @property
    def kernel(self) -> Kernel:
        """Its own Python kernel, the one of `run_code`."""
        return self._sessions.kernel

    @property
    def shell(self) -> Shell:
        """Its own bash session, the one of `run_in_shell`."""
        return self._sessions.shell

    @asynccontextmanager
    async def open_kernel(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, python: str = "python3"
    ) -> AsyncGenerator[Kernel]:
        """Have another Python kernel; it ends with the block, with all that it started.

        Args:
            cwd: Where it starts; the home, unless said.
            env: Added to the environment.
            python: 3.8 or newer: a name on the sandbox's PATH, or a path in it.
        """
        check_words((python,), cwd)
        kernel = Kernel(self._running, env={**self._env, **variables(env or {})}, cwd=cwd, python=python)
        try:
            yield kernel
        finally:
            await kernel.aclose()

    @asynccontextmanager
    async def open_shell(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Shell]:
        """Have another bash session; it ends with the block, with all that it started.

        Args:
            cwd: Where it starts; the home, unless said.
            env: Added to the environment.
        """
        check_words(("bash",), cwd)
        shell = Shell(self._running, env={**self._env, **variables(env or {})}, cwd=cwd)
        try:
            yield shell
        finally:
            await shell.aclose()

    async def checkpoint(self, *, files_only: bool = False, durable: bool = False) -> SandboxCheckpoint:
        """Keep its state as it is, to go back to. It is kept as long as this sandbox lives, or until `drop`.

        The state is its files; the bash session of `run_in_shell`, if it has no jobs; and the Python kernel of
        `run_code`, if it has one thread and nothing open. That is kept in memory: it ends with this process, or the
        service that the sandbox lives in.

        Args:
            files_only: Leave out what runs, which goes on.
            durable: Return when it is on the disk. Else it survives all but the end of the machine at once, and that in
                a while. A sandbox that lives in this process alone has no disk.

        Raises:
            NotCapturable: Something runs that a checkpoint cannot hold; the message names it.
            TransactionRefused: A command runs, or another checkpoint, rollback or commit is going on, or as many are kept
                as there can be (some 190).
            BackendError: The sandbox is gone, or its backend has no layers.
        """
        self._may_be("checkpointed")

        async def keep(sessions: SessionState) -> SandboxCheckpoint:
            return await self._lineage.checkpoint(files_only=files_only, sessions=sessions, durable=durable)

        kept, _ = await self._with_sessions(keep, files_only=files_only)
        return kept

    async def _with_sessions(
        self, keep: Callable[[SessionState], Awaitable[_Kept]], *, files_only: bool
    ) -> tuple[_Kept, SessionState]:
        """Keep something together with what keeps its state between commands; return both."""
        if not files_only:
            await self._sessions.keep()
        sessions = self._sessions.state(files_only=files_only)
        return await keep(sessions), sessions

    async def rollback(self, to: SandboxCheckpoint | str, *, identity: IdentityChoice = "same") -> tuple[str, ...]:
        """Go back to a checkpoint, or to the one of this id. What runs is ended; other checkpoints and branches stay.

        The old state is there until the kept one stands beside it.

        Args:
            to: The checkpoint.
            identity: As for `fork`: the state's own, or a new one.

        Returns:
            As `Branch.frozen_secrets`.

        Raises:
            ConfigError: There is no such choice of an identity.
            TransactionRefused: It is no checkpoint of this sandbox, or a command runs, or something else is going on.
            BackendError: It failed, and the state is what it was.
        """
        self._may_be("rolled back")
        fresh = is_fresh(identity)
        await self._lineage.rollback(id_of(to), fresh=fresh)
        return await self._frozen() if fresh else ()

    async def _frozen(self) -> tuple[str, ...]:
        found = await frozen_secrets(self._files, environment=self._env, shell=self.shell.asleep)
        return (*found, *(f"random numbers of {library} in Python" for library in self.kernel.unseeded))

    async def drop(self, checkpoint: SandboxCheckpoint | str) -> None:
        """Let go of a checkpoint, and of the memory that only it needs.

        What this sandbox itself stands on stays, also where it has been overwritten since.

        Raises:
            TransactionRefused: It is no checkpoint of this sandbox.
        """
        self._may_be("asked to drop a checkpoint")
        await self._lineage.drop(id_of(checkpoint))

    @property
    def checkpoints(self) -> tuple[SandboxCheckpoint, ...]:
        """What can be gone back to, the oldest first."""
        return () if self._branch is not None else self._lineage.checkpoints

    def sessions_at(self, checkpoint: SandboxCheckpoint | str) -> SessionState:
        """Return what a checkpoint has of the bash session and the Python kernel; nothing, if there is none of this id."""
        return self._lineage.sessions_at(id_of(checkpoint))

    async def fork(self, *, files_only: bool = False, identity: IdentityChoice = "same") -> Branch:
        """Make a branch: another sandbox that begins with this one's state. Neither sees what the other does.

        It ends with `commit`, `discard`, or with this sandbox; also as `async with await box.fork() as branch:`.

        Args:
            files_only: Leave out what runs.
            identity: `"same"`: it shows this one's hostname, machine id and boot id, and its bash session draws the
                same random numbers as this one's will, so that what is run in both can be compared. `"fresh"`: all of
                that is its own; what it still has in common with this one is told in `Branch.frozen_secrets`.

        Raises:
            ConfigError: There is no such choice of an identity.
            NotCapturable: Something runs that a branch cannot have.
            TransactionRefused: A command runs, or something else is going on.
            BackendError: It failed.
        """
        self._may_be("forked")
        fresh = is_fresh(identity)

        async def fork(sessions: SessionState) -> SandboxId:
            return await self._lineage.fork(files_only=files_only, fresh=fresh, sessions=sessions)

        name, sessions = await self._with_sessions(fork, files_only=files_only)
        seed = self._lineage.new_seed() if fresh else None
        branch = self._branch_called(name, sessions, seed=seed)
        if fresh:
            await branch.look_for_secrets()
        return branch

    def _branch_called(self, name: SandboxId, sessions: SessionState, *, seed: int | None = None) -> Branch:
        branch = self._branches[name] = Branch(
            self._lineage, self._env, name, origin=self, sessions=sessions, seed=seed
        )
        return branch

    def go_on_with(self, branch: RunningSandbox, *, whose: SandboxId | None, is_beside: bool) -> Branch:
        """Have a branch again that is remembered, and runs again; see `SandboxLineage.go_on_with`."""
        self._lineage.go_on_with(branch, whose=whose, is_beside=is_beside)
        return self._branch_called(branch.id, NO_SESSIONS)

    async def wait_committed(self) -> None:
        """Return when it has been committed, whoever has asked for that."""
        await self._committed.wait()

    def become_its_origin(self) -> Sessions:
        """It was committed: return what runs in it, and have it no more."""
        self._committed.set()
        sessions, self._sessions = self._sessions, Sessions(self._running, self._env)
        return sessions

    async def _let_go_of_replaced(self) -> None:
        while self._replaced:
            await self._replaced.pop().aclose()  # they ended with what they ran in

    def _may_be(self, what: str) -> None:
        if self._branch is not None:
            raise TransactionRefused(f"{self._branch} is a branch, and cannot be {what}", hint="commit it first")
        self._must_move()

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._current().paused

    async def pause(self) -> None:
        """Have everything in it stand still, until `resume`: its memory is kept, and it uses no CPU. Idempotent.

        What is just being started is waited for. `timeout_s` is your time: it passes, and kills on resuming at the
        latest. What would need it to move raises `SandboxPaused`, not `usage` and `kill`. If cancelled, it may be paused.

        Raises:
            TransactionRefused: A checkpoint, rollback or commit is going on, or it is a branch that has ended.
            BackendError: It does not stand still, and goes on; or it is gone, or its backend cannot.
        """
        async with self._lineage.running(self._branch, effect=Effect.READ) as running:
            await running.pause()

    async def resume(self) -> None:
        """Let it go on where it was. Idempotent.

        Raises:
            BackendError: It is gone; or `TransactionRefused`: it is a branch that has ended, or is being replaced.
        """
        async with self._lineage.running(self._branch, effect=Effect.READ) as running:
            await running.resume()

    async def hibernate(self) -> None:
        """Refuse: what lives in this process alone has no place where it could wait.

        Raises:
            TransactionRefused: Always. One that lives in the service can: see `HostedSandbox.hibernate`.
        """
        raise TransactionRefused(
            f"{self.id} lives in this process alone, and cannot be hibernated",
            hint="pause it, or have it live in the service: headstart.connect()",
        )

    async def wait_lost(self) -> None:
        """Return when it is gone, whoever ended it."""
        if self._branch is None:
            await self._lineage.wait_lost()
        else:
            await self._current().wait_lost()

    async def usage(self) -> Usage:
        """Return what it uses now: memory, processes, and the CPU time so far."""
        return await self._current().usage()

    async def suspend(self) -> None:
        """End what runs, and leave its files, and its branches', where its lineage remembers them."""
        try:
            await self._lineage.suspend()
        finally:
            await self._let_go()

    async def kill(self) -> None:
        """End it now, and everything in it. Idempotent."""
        try:
            await self._end()
        finally:
            await self._let_go()

    async def _let_go(self) -> None:
        """Let go of what is held of all that ran here, and in branches; it has ended."""
        for branch in tuple(self._branches.values()):
            await branch._let_go()  # noqa: SLF001 a branch is its origin's other half
        self._branches.clear()
        await self._sessions.aclose()
        await self._let_go_of_replaced()

    async def _end(self) -> None:
        await self._lineage.aclose()


class Branch(Sandbox):
    """A sandbox that was forked from another, and may become it."""

    def __init__(
        self,
        lineage: SandboxLineage,
        env: Mapping[str, str],
        branch: SandboxId,
        *,
        origin: Sandbox,
        sessions: SessionState,
        seed: int | None = None,
    ) -> None:
        super().__init__(lineage, env, branch, shell=origin._shell)  # noqa: SLF001 a branch is its origin's other half
        self._sessions.go_on_as(sessions, seed=seed)
        self._name = branch
        self._origin = origin
        self._frozen_secrets: tuple[str, ...] = ()

    @property
    def frozen_secrets(self) -> tuple[str, ...]:
        """With a fresh identity: what it has in common with its origin all the same, as it was when it was forked.

        Files by path (`~/.ssh/id_ed25519`), variables by name (`$API_TOKEN`), as far as they are where such things
        usually are. With the same identity nothing is looked for: all of it is meant to be the same.
        """
        return self._frozen_secrets

    async def look_for_secrets(self) -> None:
        """Find out what `frozen_secrets` are; discards it if it cannot be looked into, or if cancelled."""
        try:
            self._frozen_secrets = await self._frozen()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.discard()
            raise

    async def commit(self) -> None:
        """Let the sandbox that it was forked from be what this is: files, and what runs. What it replaces is ended.

        Raises:
            Conflict: That has changed since; both stay as they are.
            TransactionRefused: This has ended, or a command runs in one of them, or something else is going on.
        """
        await self._lineage.commit(self._name)
        await self._origin._let_go_of_replaced()  # noqa: SLF001 a branch is its origin's other half

    async def discard(self) -> None:
        """Throw it away, with all that runs in it. Idempotent; one that was committed stays what it has become."""
        await self.kill()

    async def suspend(self) -> None:
        """Let go of what runs in it; its origin, which is suspended next, ends it."""
        await self._sessions.aclose()

    async def _end(self) -> None:
        await self._lineage.discard(self._name)
        self._origin._branches.pop(self._name, None)  # noqa: SLF001 a branch is its origin's other half

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_failure: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.discard()
