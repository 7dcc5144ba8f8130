"""A process that is a coroutine: what the fake backend runs instead of programs."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream

from headstart.backends.contract import ExitStatus
from headstart.ids import SandboxId
from headstart.testing.fake_pipes import FakePipe

__all__ = ["FakeProcess", "ProcessContext", "Program"]


@dataclass(slots=True, kw_only=True)
class ProcessContext:
    """What a scripted program is given, in place of its process.

    Attributes:
        env: The whole environment, the identity's own part included.
        sigterm: Set when somebody asked it to end.
        handles_sigterm: Set it to True to go on (or to finish in peace) after SIGTERM,
            which otherwise ends the program at once.
        sigint: Set when somebody interrupted it.
        handles_sigint: As `handles_sigterm`, for SIGINT.
    """

    sandbox: SandboxId
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    stdin: ByteReceiveStream
    stdout: ByteSendStream
    stderr: ByteSendStream
    sigterm: anyio.Event = field(default_factory=anyio.Event)
    handles_sigterm: bool = False
    sigint: anyio.Event = field(default_factory=anyio.Event)
    handles_sigint: bool = False


Program = Callable[[ProcessContext], Awaitable[int | None]]
"""A scripted program: returns its exit code (None is 0). An exception that escapes it ends
it as in Python: traceback on stderr, exit code 1."""


class FakeProcess:
    """One running program with its three pipes."""

    def __init__(
        self,
        program: Program,
        *,
        sandbox: SandboxId,
        argv: tuple[str, ...],
        env: Mapping[str, str],
        cwd: str | None,
    ) -> None:
        self._program = program
        self._stdin, self._stdout, self._stderr = FakePipe(), FakePipe(), FakePipe()
        self._scope = anyio.CancelScope()
        self._exited = anyio.Event()
        self._status: ExitStatus | None = None
        self.forced_by: int | None = None
        """See `ByteStreams.forced_by`; set by whoever ends it."""
        self.context = ProcessContext(
            sandbox=sandbox,
            argv=argv,
            env=env,
            cwd=cwd,
            stdin=self._stdin.reader,
            stdout=self._stdout.writer,
            stderr=self._stderr.writer,
        )

    @property
    def stdin(self) -> ByteSendStream:
        return self._stdin.writer

    @property
    def stdout(self) -> ByteReceiveStream:
        return self._stdout.reader

    @property
    def stderr(self) -> ByteReceiveStream:
        return self._stderr.reader

    @property
    def running(self) -> bool:
        return not self._exited.is_set()

    async def serve(self) -> None:
        """Run the program to its end; owned by the backend's task group."""
        try:
            with self._scope:
                code = await self._run()
                self._end(ExitStatus(code=code))
        finally:
            self._end(ExitStatus(signal=signal.SIGKILL))  # only if nothing else ended it
            self._stdin.close()
            self._stdout.close_writer()
            self._stderr.close_writer()
            self._exited.set()

    def kill(self, *, signal_number: int = signal.SIGKILL, out_of_memory: bool = False) -> None:
        """End it now; nothing in it gets to say anything (cancellation handlers apart)."""
        self._end(ExitStatus(signal=signal_number, out_of_memory=out_of_memory))
        self._scope.cancel()

    def stand_still(self, *, still: bool) -> None:
        """Have it say and take nothing until it may go on; what it does beside that goes on."""
        self._stdin.hold_reader(still=still)
        self._stdout.hold_writer(still=still)
        self._stderr.hold_writer(still=still)

    async def wait(self) -> ExitStatus:
        """Return when it has ended. Cancelling leaves it running."""
        await self._exited.wait()
        assert self._status is not None  # noqa: S101 - `serve` sets it before it sets the event
        return self._status

    async def terminate(self) -> None:
        """SIGTERM; harmless when it has ended."""
        self.context.sigterm.set()
        if self.running and not self.context.handles_sigterm:
            self.kill(signal_number=signal.SIGTERM)

    async def interrupt(self) -> None:
        """SIGINT; harmless when it has ended."""
        self.context.sigint.set()
        if self.running and not self.context.handles_sigint:
            self.kill(signal_number=signal.SIGINT)

    def _end(self, status: ExitStatus) -> None:
        if self._status is None:
            self._status = status

    async def _run(self) -> int:
        try:
            return await self._program(self.context) or 0
        except Exception:  # noqa: BLE001 - the program is the test's own; this is its interpreter's last resort
            if not self._stderr.read_closed:
                await self._stderr.write(traceback.format_exc().encode())
            return 1
