"""Start zygotes as plain processes, and talk to what they fork."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from headstart.backends.contract import Preload
from headstart.backends.zygote import ForkRequest, PreloadReport, ZygoteProcess, zygote_command
from headstart.errors import BackendError

CONFINE = Path(__file__).with_name("plain_confine.py")
WAIT_S = 30.0


def script_in(folder: Path, source: str, name: str = "program.py") -> str:
    path = folder / name
    path.write_text(source)
    return str(path)


@dataclass
class Started:
    """A forked program whose streams are pipes."""

    stdin: int
    stdout: int
    stderr: int
    control: socket.socket

    async def read(self, fd: int | None = None) -> bytes:
        """Read a stream to its end (stdout unless said otherwise)."""
        read: list[bytes] = []
        with anyio.fail_after(WAIT_S):
            while chunk := await anyio.to_thread.run_sync(os.read, self.stdout if fd is None else fd, 65_536):
                read.append(chunk)
        return b"".join(read)

    async def read_line(self) -> bytes:
        line = b""
        with anyio.fail_after(WAIT_S):
            while not line.endswith(b"\n"):
                byte = await anyio.to_thread.run_sync(os.read, self.stdout, 1)
                if not byte:
                    return line
                line += byte
        return line

    async def end(self) -> int:
        """Wait for the program's end; its exit code, or minus the signal."""
        with anyio.fail_after(WAIT_S):
            await anyio.wait_readable(self.control)
        return json.loads(self.control.recv(1_000))["code"]

    def signal(self, number: int) -> None:
        self.control.send(str(int(number)).encode())

    def close(self) -> None:
        self.control.close()
        for fd in (self.stdin, self.stdout, self.stderr):
            if fd >= 0:
                os.close(fd)

    def close_stdin(self) -> None:
        os.close(self.stdin)
        self.stdin = -1


@dataclass
class Running:
    """A zygote started as a plain process."""

    process: ZygoteProcess
    keeper: subprocess.Popen[bytes]
    preload: Preload
    report: PreloadReport | None = None
    started: list[Started] = field(default_factory=list)

    async def fork(
        self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, plan: Mapping[str, object] | None = None
    ) -> Started:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
        started = Started(stdin[1], stdout[0], stderr[0], ours)
        self.started.append(started)
        try:
            await self.process.fork(
                ForkRequest(
                    env=dict(os.environ) if env is None else env,
                    cwd=cwd,
                    stdio=(stdin[0], stdout[1], stderr[1]),
                    plan=plan or {},
                    plan_fds={"control_fd": theirs.fileno()},
                ),
                timeout_s=WAIT_S,
            )
        finally:
            theirs.close()
            for fd in (stdin[0], stdout[1], stderr[1]):
                os.close(fd)
        return started

    async def output(self, **request: object) -> str:
        """Fork, and return what the program printed until its end."""
        started = await self.fork(**request)  # type: ignore[arg-type]
        return (await started.read()).decode()


@asynccontextmanager
async def zygote(
    script: str,
    *,
    modules: Sequence[str] = (),
    args: Sequence[str] = (),
    entry: tuple[str, ...] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    audit: bool = False,
    advance: bool = False,
    ahead: Mapping[str, object] | None = None,
    options: tuple[str, ...] = (),
    interpreter: str = sys.executable,
    timeout_s: float = WAIT_S,
) -> AsyncGenerator[Running]:
    """Preload `modules` and be ready to fork `script`."""
    preload = Preload(
        interpreter=interpreter,
        modules=tuple(modules),
        entry=entry or (script,),
        args=tuple(args),
        options=options,
        advance=advance,
    )
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = subprocess.Popen(  # noqa: ASYNC220 - a plain parent, which tests look at from outside
        zygote_command(preload, control=theirs.fileno()),
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env=dict(os.environ) if env is None else dict(env),
        cwd=cwd,
    )
    theirs.close()
    with ZygoteProcess(ours, name="a test") as process:
        running = Running(process, keeper, preload)
        try:
            running.report = await process.preload(
                preload, confine=CONFINE, ahead=ahead, audit=audit, timeout_s=timeout_s
            )
            yield running
        except BackendError:
            keeper.kill()  # what never arrives at its loop does not see its socket close
            raise
        finally:
            for started in running.started:
                started.close()
            process.close()
            keeper.wait(WAIT_S)
