"""The preloader: imports what a program imports, then forks a ready copy per request.

Three kinds of process::

    keeper           the command that was started; forks the zygote before anything is imported,
     │               adopts orphans, ends with the last of them: a crash of the zygote spares its forks
     └ zygote        single-threaded; imports, audits itself, then waits for fork requests
        └ server     one per fork: confines itself, under what `enter` makes of it, and becomes
                     the program (see `fork.py`)

Thread pools of native libraries are held to one thread while they are loaded, because a
fork copies only the thread that forks; the server widens them again (`fresh.py`).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from . import audit, confinement, facts, fork, fresh, kernel, program, wire

LOWEST_PID = 32
"""In a PID namespace of their own forks get small PIDs. Libraries notice a fork by its PID
(OpenSSL, tempfile, multiprocessing), so no fork may have the zygote's."""

THREAD_POOL_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)


def main(arguments: Sequence[str]) -> program.Job:
    """Serve until the control socket closes; only a forked server returns, with its job."""
    parser = argparse.ArgumentParser(prog="preload")
    parser.add_argument("--control", type=int, required=True, help="the descriptor of a SOCK_SEQPACKET socket")
    control = facts.inherited_socket(parser.parse_args(arguments).control)
    _leave_keeper_behind(control)
    job: program.Job | None = None
    try:
        job = Zygote(control).serve()
    except Exception as error:  # noqa: BLE001 - the last act of this process: tell, then end
        _tell_failure(control, error)
        os._exit(1)
    if job is None:
        os._exit(0)
    return job


def _tell_failure(control: socket.socket, error: Exception) -> None:
    try:
        wire.send(control, {"op": "failed", "error": f"{type(error).__name__}: {error}"})
    except OSError:
        return  # nobody is listening any more


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
        self._preloaded: fork.Preloaded | None = None

    def serve(self) -> program.Job | None:
        """Answer requests; None when the host has closed, a job in a forked server."""
        while True:
            received = wire.receive(self._control)
            if received is None:
                return None
            message, fds = received
            if message["op"] == "preload":
                self._preloaded, report = _preload(message)
                wire.send(self._control, report)
            elif message["op"] == "fork" and self._preloaded is not None:
                job = fork.fork_server(self._preloaded, message, fds, self._control)
                if job is not None:
                    return job
            else:
                raise wire.WireError(f"{message['op']!r} is not possible now")


def _preload(message: wire.Message) -> tuple[fork.Preloaded, wire.Message]:
    job = program.split_entry(message["entry"] + message["args"])
    if message.get("cwd") is not None:
        os.chdir(message["cwd"])
    environ, set_at_startup = dict(os.environ), facts.set_at_startup()
    files_before = facts.open_files()
    watch = audit.Watch(deep=bool(message.get("audit")))
    with _threads_held(), _dressed_as(job), fresh.captured_output() as output, _collector_paused(), watch:
        failed = _import_all(message["modules"], watch)
    pools = facts.threaded_libraries()
    widen_pools = _pool_control(pools) if pools else None
    enter = confinement.load(message["confine"]) if message.get("confine") else _stay
    preloaded = fork.Preloaded(
        mask=signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        on_child_end=signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        enter=enter,
        changes=fresh.Changes(
            environ={**set_at_startup, **watch.environ_writes},
            unseeded=watch.unseeded,
            widen_pools=widen_pools,
            output=output,
        ),
    )
    report = watch.report(files_before)  # before the freeze, which hides objects from it
    gc.collect()
    gc.freeze()
    return preloaded, {
        "op": "preloaded",
        "failed": failed,
        "cpu_s": time.process_time(),
        "pools": pools,
        "pools_restorable": not pools or widen_pools is not None,
        "output_bytes": sum(len(text) for text in output.values()),
        "facts": facts.interpreter(environ),
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
def _threads_held() -> Generator[None]:
    """Load native libraries with pools of one thread; the environment is as before afterwards."""
    before = {name: os.environ.get(name) for name in THREAD_POOL_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_POOL_VARIABLES, "1"))
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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


def _pool_control(libraries: Sequence[str]) -> Callable[..., Any] | None:
    """Return what widens the thread pools again: threadpoolctl, or the libraries' own functions, or None."""
    try:
        return importlib.import_module("threadpoolctl").threadpool_limits
    except ImportError:
        setters = [setter for path in libraries for setter in _pool_setters(path)]

    def widen(limits: int) -> None:
        for setter in setters:
            setter(limits)

    return widen if setters else None


def _pool_setters(path: str) -> list[Callable[[int], Any]]:
    """Find the functions of an OpenBLAS (numpy's wheels rename them) or OpenMP library that set its threads."""
    library = ctypes.CDLL(path)
    names = ["omp_set_num_threads"] if "omp" in os.path.basename(path) else []
    names += [f"{before}openblas_set_num_threads{after}" for before in ("", "scipy_") for after in ("", "64_", "_64")]
    return [getattr(library, name) for name in names if hasattr(library, name)]


def _stay(_plan: dict[str, Any]) -> None:
    """Stand in for confinement where a preload is only looked at and never forked from."""
