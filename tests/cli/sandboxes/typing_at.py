"""A service that runs, and the commands that are typed at it, on a terminal or not."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.running import wait_until

SOON_S = 30.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    status: int
    out: bytes
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found

    @property
    def told(self) -> tuple[int, str, list[str]]:
        return self.status, self.out.decode(), self.err.splitlines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that runs, and the commands that are typed at it."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def start(
        self,
        *words: str | bytes,
        stdin: int = subprocess.DEVNULL,
        out: int = subprocess.PIPE,
        new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headstart", "sandbox", *words]
        return subprocess.Popen(
            command,
            env=self.env,
            cwd=self.folder,
            stdin=stdin,
            stdout=out,
            stderr=out,
            start_new_session=new_session,
        )

    @contextmanager
    def running(self, *words: str | bytes, stdin: int = subprocess.DEVNULL) -> Generator[subprocess.Popen[bytes]]:
        """Run a command that need not end by itself."""
        with self.start(*words, stdin=stdin) as process:
            try:
                yield process
            finally:
                process.kill()

    def do(self, *words: str | bytes, given: bytes | None = None) -> Done:
        stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
        with self.running(*words, stdin=stdin) as process:
            out, err = process.communicate(given, timeout=60)
        return Done(status=process.returncode, out=out, err=err.decode())

    def create(self, *words: str) -> str:
        """Make a sandbox and return its name."""
        name = f"box-{next(_numbers)}"
        done = self.do("create", "--name", name, *words)
        assert done.status == 0, done.err
        return name

    def id_of(self, name: str) -> str:
        found: str = self.do("show", name).json["id"]
        return found

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "HEADSTART_STATE_DIR": str(self.folder / "state"), "XDG_CONFIG_HOME": str(self.folder)}


@contextmanager
def serving(folder: Path) -> Generator[Service]:
    log = folder / "log"
    (folder / "home").mkdir()
    with log.open("wb") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "headstart", "serve", "--port", "0", "--state-dir", str(folder / "state")],
            cwd=folder,
            env={**os.environ, "XDG_CONFIG_HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
        )
    try:
        wait_until((folder / "state" / "service.json").exists, within_s=SOON_S, what="the service serves")
        yield Service(process=process, folder=folder, log=log)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


@dataclass(slots=True)
class Terminal:
    """A command on a pty of ours."""

    process: subprocess.Popen[bytes]
    descriptor: int
    shown: bytes = b""
    modes: list[Any] = field(default_factory=list[Any])

    def type(self, text: bytes) -> None:
        os.write(self.descriptor, text)

    def until(self, expected: bytes) -> bytes:
        """Return what is shown up to this, which is taken."""
        deadline = time.monotonic() + SOON_S
        while expected not in self.shown:
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"{expected!r} was not shown, but {self.shown!r}"
            if select.select([self.descriptor], [], [], left_s)[0]:
                try:
                    self.shown += os.read(self.descriptor, 65_536)
                except OSError:
                    raise AssertionError(f"{expected!r} was not shown, but {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(expected)
        return before + expected

    def ends(self) -> int:
        """Return the exit status."""
        deadline = time.monotonic() + SOON_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            if select.select([self.descriptor], [], [], 0.05)[0]:
                with suppress(OSError):
                    self.shown += os.read(self.descriptor, 65_536)
        while select.select([self.descriptor], [], [], 0)[0]:
            try:
                self.shown += os.read(self.descriptor, 65_536)
            except OSError:
                break
        return self.process.returncode


@contextmanager
def on_terminal(service: Service, *words: str, rows: int = 24, columns: int = 80) -> Generator[Terminal]:
    ours, theirs = pty.openpty()
    resize(ours, rows, columns)
    modes = termios.tcgetattr(theirs)
    process = service.start(*words, stdin=theirs, out=theirs, new_session=True)
    terminal = Terminal(process, ours, modes=modes)
    try:
        yield terminal
        assert termios.tcgetattr(theirs) == modes, "the terminal's modes are what they were"
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
