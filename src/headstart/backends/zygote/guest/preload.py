"""The preloader: imports what a program imports, then forks a ready copy per request.

Three kinds of process::

    keeper           the command that was started; forks the zygote before anything is imported,
     │               adopts orphans, ends with the last of them: a crash of the zygote spares its forks
     └ zygote        single-threaded; imports, runs the program up to its event loop where that
        │            was found to be safe (`advance.py`), then waits for fork requests
        └ server     one per fork: confines itself, under what `enter` makes of it, and becomes
                     the program (see `fork.py`)

Thread pools of native libraries are held to one thread while they are loaded, because a
fork copies only the thread that forks; the server widens them again (`fresh.py`).
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from . import advance, audit, confinement, facts, fork, fresh, kernel, pools, program, wire

LOWEST_PID = 32
"""In a PID namespace of their own forks get small PIDs. Libraries notice a fork by its PID
(OpenSSL, tempfile, multiprocessing), so no fork may have the zygote's."""

PARK_AFTER_S = 0.01
"""How long after one fork was wanted the next is made ahead: until then the first needs the CPU more."""


def main(arguments: Sequence[str]) -> program.Job:
    """Serve until the control socket closes; only a forked server returns, with its job, or a zygote to advance."""
    parser = argparse.ArgumentParser(prog="preload")
    parser.add_argument("--control", type=int, required=True, help="the number of an inherited SOCK_SEQPACKET socket")
    control = facts.inherited_socket(parser.parse_args(arguments).control)
    _leave_keeper_behind(control)
    job = Zygote(control).serve()
    if job is None:
        os._exit(0)
    return job


def _leave_keeper_behind(control: socket.socket) -> None:
    """Fork: the child goes on as the zygote, the parent stays as the keeper and never returns."""
    kernel.adopt_orphans()
    keeper = os.getpid()
    while True:
        child = os.fork()
        if child == 0 and os.getpid() >= LOWEST_PID:
            return kernel.die_with(keeper)
        if child == 0:
            os._exit(0)
        if child >= LOWEST_PID:
            break
        os.waitpid(child, 0)
    control.close()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            os._exit(0)


class Zygote:
    """The process that preloads and forks."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._preloading: Preloading | None = None
        self._forks: fork.Forks | None = None

    def serve(self) -> program.Job | None:
        """Answer requests. None when the host has closed; a job in a forked server, or to advance."""
        try:
            while True:
                if self._forks is not None and self._forks.may_park and self._is_left_alone():
                    job = self._forks.park()
                else:
                    received = wire.receive(self._control)
                    if received is None:
                        return None
                    job = self._answer(*received)
                if job is not None:
                    return job
        except Exception as error:  # noqa: BLE001 - the last act of this process: tell, then end
            self._fail(f"{type(error).__name__}: {error}")

    def _is_left_alone(self) -> bool:
        return not select.select([self._control], [], [], PARK_AFTER_S)[0]

    def _answer(self, message: wire.Message, fds: list[int]) -> program.Job | None:
        if message["op"] == "preload":
            self._preloading = Preloading(message)
            self._preloading.import_all(message["modules"])
            if message.get("advance"):
                return self._advance(self._preloading)
            self._finish()
            return None
        if message["op"] == "fork" and self._forks is not None:
            return self._forks.fork_server(message, fds)
        raise wire.WireError(f"{message['op']!r} is not possible now")

    def _advance(self, preloading: Preloading) -> program.Job:
        """Have the program's own code run until it makes its event loop; forks go on from there."""
        if not advance.possible():
            self._fail("it imports no asyncio")
        preloading.watch.main_begins()
        advance.stop_at_event_loop(self._arrived)
        program.at_end = self._ended_early
        return preloading.job

    def _arrived(self) -> None:
        """The program is about to make its loop: wait here, for as long as this process is the zygote."""
        try:
            self._finish()
        except Exception as error:  # noqa: BLE001 - as in `serve`
            self._fail(f"{type(error).__name__}: {error}")
        if self.serve() is None:
            os._exit(0)
        program.at_end = None

    def _finish(self) -> None:
        assert self._preloading is not None  # noqa: S101 - set by whoever calls this
        preloaded, report = self._preloading.finish()
        self._forks = fork.Forks(preloaded, self._control)
        wire.send(self._control, report)

    def _ended_early(self) -> None:
        error = sys.exc_info()[1]
        with_error = "" if error is None else f" ({type(error).__name__}: {error})"
        self._fail(f"the program ended before it made an event loop{with_error}")

    def _fail(self, why: str) -> NoReturn:
        try:
            wire.send(self._control, {"op": "failed", "error": why})
        except OSError:
            pass  # nobody is listening any more
        os._exit(1)


class Preloading:
    """What is done before the first fork, with everything that must hold meanwhile."""

    def __init__(self, message: wire.Message) -> None:
        self.job = program.split_entry(message["entry"] + message["args"])
        if message.get("cwd") is not None:
            os.chdir(message["cwd"])
        if message.get("advance"):
            advance.silence_input()
        self._cwd = os.getcwd()
        self._environ, self._set_at_startup = dict(os.environ), facts.set_at_startup()
        self._confinement = confinement.load(message["confine"]) if message.get("confine") else _NONE
        self._ahead = message.get("ahead")
        self._files_before = facts.open_files()
        self._failed: list[dict[str, str]] = []
        self.watch = audit.Watch(deep=bool(message.get("audit")))
        self._holding = ExitStack()
        self._holding.enter_context(pools.held())
        self._output = self._holding.enter_context(fresh.captured_output())
        self._holding.enter_context(_collector_paused())
        self._holding.enter_context(self.watch)

    def import_all(self, names: Sequence[str]) -> None:
        with _dressed_as(self.job):
            if audit.KEY_MAKER in names and not _import_all([audit.KEY_MAKER], self.watch):
                self.watch.watch_keys()  # before any server is made
            self._failed = _import_all(names, self.watch)

    def finish(self) -> tuple[fork.Preloaded, wire.Message]:
        """End the watch, and return what forks need and what the host is told."""
        self._holding.close()
        libraries = pools.libraries()
        widen_pools = pools.control(libraries) if libraries else None
        preloaded = fork.Preloaded(
            mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            on_child_end=signal.signal(signal.SIGCHLD, signal.SIG_IGN),
            confinement=self._confinement,
            changes=fresh.Changes(
                environ={**self._set_at_startup, **self.watch.environ_writes},
                unseeded=self.watch.unseeded,
                keyed=self.watch.keyed,
                widen_pools=widen_pools,
                output=self._output,
                cwd=None if os.getcwd() == self._cwd else os.getcwd(),
            ),
            ahead=self._ahead,
        )
        report = self.watch.report(self._files_before)  # before the freeze, which hides objects from it
        fresh.renew(preloaded.changes)  # for what its first use leaves behind (OpenSSL's generator takes 1 MB)
        gc.collect()
        gc.freeze()
        return preloaded, {
            "op": "preloaded",
            "failed": self._failed,
            "cpu_s": time.process_time(),
            "pools": libraries,
            "pools_restorable": not libraries or widen_pools is not None,
            "output_bytes": sum(len(text) for text in self._output.values()),
            "facts": facts.interpreter(self._environ),
            **report,
        }


def _import_all(names: Sequence[str], watch: audit.Watch) -> list[dict[str, str]]:
    failed: list[dict[str, str]] = []
    for name in names:
        if name in sys.modules:
            continue
        watch.begins(name)
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any module may fail in any way; it is listed
            failed.append({"name": name, "error": f"{type(error).__name__}: {error}"})
    return failed


@contextmanager
def _dressed_as(job: program.Job) -> Generator[None]:
    """Show importing modules the `sys.argv` and `sys.path` that a cold start has."""
    program.set_arguments(job)
    first = None if program.keeps_path_safe() else program.script_directory(job)
    if first is not None:
        sys.path.insert(0, first)
    yield
    if first is not None and first in sys.path:
        sys.path.remove(first)


@contextmanager
def _collector_paused() -> Generator[None]:
    """Import without garbage collections, which would only look at what will stay."""
    enabled = gc.isenabled()
    gc.disable()
    yield
    if enabled:
        gc.enable()


def _refuse(*_: Any) -> NoReturn:
    raise OSError(errno.EPERM, "what is only looked at is not forked")


_NONE = fork.Confinement(fork=_refuse, enter=_refuse)
