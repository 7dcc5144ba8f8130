"""`Sandbox`, what a user holds of one, and `Sandboxes`, which has them in this process."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import platformdirs

from headstart.backends.contract import (
    Backend,
    ByteStreams,
    Command,
    Files,
    Identity,
    Prepared,
    RunningSandbox,
    Template,
    Usage,
)
from headstart.backends.local import open_local_backend
from headstart.backends.output import take_output
from headstart.backends.process import open_process_backend
from headstart.errors import CommandTimedOut, ConfigError
from headstart.ids import IdSource, RandomIds, SandboxId
from headstart.sandbox.kernels import CellResult, Kernel, Shell, ShellResult
from headstart.sandbox.options import SandboxOptions, check_words, variables
from headstart.sandbox.output import OnOutput, Taken
from headstart.sandbox.result import CommandResult

__all__ = ["Sandbox", "Sandboxes"]


class Sandbox:
    """An isolated environment: files, processes, network of its own.

    Made by `Sandbox.create`, or, where there are several, by `Sandboxes.create`; it ends with the block.
    A command that fails is a `CommandResult`; a sandbox that fails raises `BackendError`.
    """

    def __init__(self, running: RunningSandbox, options: SandboxOptions) -> None:
        self._running = running
        self._env = options.environment()
        self._kernel = Kernel(running, env=self._env)
        self._shell = Shell(running, env=self._env)

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
        async with Sandboxes.open() as sandboxes, sandboxes.create(SandboxOptions(**options)) as box:
            yield box

    @property
    def id(self) -> SandboxId:
        return self._running.id

    @property
    def files(self) -> Files:
        """Its files: `read`, `write`, `list`, `stat`, `make_folder`, `rename`, `remove`."""
        return self._running.files

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
            command: A line for bash, or a program and its arguments.
            cwd: Where it runs; the home, unless said.
            env: Added to the environment.
            stdin: What it reads, at once or as it comes.
            timeout_s: How long it may take.
            on_output: Gets all that it says, as it comes; the result has none of it then.

        Raises:
            CommandTimedOut: It took longer; it was killed.
            BackendError: The sandbox is gone, or there is no such program.
        """
        taken = Taken(on_output)
        async with self.start(command, cwd=cwd, env=env) as streams:
            with anyio.move_on_after(math.inf if timeout_s is None else timeout_s):
                status = await take_output(
                    streams,
                    stdin.encode() if isinstance(stdin, str) else stdin,
                    stdout=taken.sinks[0],
                    stderr=taken.sinks[1],
                )
                return CommandResult(status=status, stdout=taken.stdout, stderr=taken.stderr, truncated=taken.cut)
            raise CommandTimedOut(f"{_shown(command)} had not ended after {timeout_s:g} s, and was killed")

    def start(
        self, command: str | Sequence[str], *, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[ByteStreams]:
        """Start a command and yield its `stdin`, `stdout` and `stderr`, to talk with it.

        Who does not read its output holds it up. When the block is left, it is killed with all that it started.

        Raises:
            BackendError: The sandbox is gone, or there is no such program.
        """
        argv = ("bash", "-c", command) if isinstance(command, str) else tuple(command)
        check_words(argv, cwd)
        return self._running.start(Command(argv=argv, env={**self._env, **variables(env or {})}, cwd=cwd))

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
        return await self._kernel.run(code, timeout_s=timeout_s, on_output=on_output)

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
        return await self._shell.run(command, timeout_s=timeout_s, on_output=on_output)

    @property
    def kernel(self) -> Kernel:
        """Its own Python kernel, the one of `run_code`."""
        return self._kernel

    @property
    def shell(self) -> Shell:
        """Its own bash session, the one of `run_in_shell`."""
        return self._shell

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

    async def usage(self) -> Usage:
        """Return what it uses now: memory, processes, and the CPU time so far."""
        return await self._running.usage()

    async def kill(self) -> None:
        """End it now, and everything in it. Idempotent."""
        try:
            await self._running.aclose()
        finally:
            await self._kernel.aclose()  # it has ended; what we hold of it is let go of
            await self._shell.aclose()


class Sandboxes:
    """Sandboxes of this process, as many as wanted; opened with `Sandboxes.open`.

    What they have in common is prepared once: the first sandbox takes some 100 ms, each other one
    a few.
    """

    def __init__(self, backend: Backend, ids: IdSource) -> None:
        self._backend = backend
        self._ids = ids
        self._preparing = anyio.Lock()
        self._prepared: list[Prepared] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, *, backend: str = "local", state_dir: str | Path | None = None) -> AsyncGenerator[Sandboxes]:
        """Be able to create sandboxes; when the block is left, all have ended and nothing of them is left.

        Args:
            backend: `"local"`, or `"process"`: no isolation at all, for machines that cannot isolate.
            state_dir: Where their folders are, while they live.

        Raises:
            ConfigError: There is no such backend.
            BackendUnavailable: The backend cannot run on this machine; the message says why.
        """
        folder = Path(state_dir) if state_dir else platformdirs.user_state_path("headstart") / "sandboxes"
        if backend not in _BACKENDS:
            known = " or ".join(repr(name) for name in _BACKENDS)
            raise ConfigError(f"there is no backend {backend!r}", where="backend", hint=f"say {known}")
        async with _BACKENDS[backend](folder) as running, AsyncExitStack() as stack:
            sandboxes = cls(running, RandomIds())
            stack.push_async_callback(sandboxes.let_go)
            yield sandboxes

    @asynccontextmanager
    async def create(self, options: SandboxOptions | None = None) -> AsyncGenerator[Sandbox]:
        """Create a sandbox; when the block is left, nothing of it is.

        Raises:
            ConfigError: An option cannot be used.
            BackendError: It could not be started.
        """
        chosen = options or SandboxOptions()
        prepared = await self._prepare(chosen.template())
        running = await self._backend.start(prepared, Identity(sandbox=SandboxId(self._ids.new("box"))))
        box = Sandbox(running, chosen)
        try:
            yield box
        finally:
            await box.kill()

    async def _prepare(self, template: Template) -> Prepared:
        async with self._preparing:
            for prepared in self._prepared:
                if prepared.template == template:
                    return prepared
            prepared = await self._backend.prepare(template)
            self._prepared.append(prepared)
            return prepared

    async def let_go(self) -> None:
        """Let go of what was prepared; `open` does it."""
        with anyio.CancelScope(shield=True):
            for prepared in self._prepared:
                await prepared.aclose()


_BACKENDS: dict[str, Callable[[Path], AbstractAsyncContextManager[Backend]]] = {
    "local": open_local_backend,
    "process": open_process_backend,
}


def _shown(command: str | Sequence[str]) -> str:
    return repr(command if isinstance(command, str) else " ".join(command))
