"""The small process from which every sandbox is forked.

Why a process of its own: forking the service would copy a large, multi-threaded address
space for every sandbox, and a fork of a threaded process may only exec. This one has a
single thread, a few megabytes and one socket. It does nothing that can wait on a sandbox:
it never reads a sandbox's pipes, and its own messages queue in a bounded outbox.

How a sandbox differs from a process is the business of a `Kind` (one module per
backend). The spawner numbers, reaps, kills and cleans up. When the service is gone (end of
file on the socket, however it died), everything that was started ends within a second.

Messages in (`seq` is answered with the same `seq`):
    `{"op": "prepare", "seq", "template", "plan"}`
    `{"op": "release", "seq", "template"}`
    `{"op": "start", "seq", "sandbox", "template", "order", "origin"}` with the init's control socket
    `{"op": "errand", "seq", "sandbox", …}`  (with descriptors) answered when a helper has done it,
        or with the outcome `broken` when it was killed over it
    `{"op": "store", "seq", "store", …}`  likewise; what is done is done to files that outlive us
    `{"op": "count", "seq"}`             answered with `processes` and `groups`
    `{"op": "close", "seq", "sandbox"}`  answered when nothing of the sandbox is left

Messages out: `{"event": "ready", …}`, `{"seq", …}` or `{"seq", "error"}`, and
`{"event": "ended", "sandbox", "code" | "signal"}` when an init dies by itself.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from headstart.backends.spawner.guest import processes, syscalls
from headstart.backends.spawner.guest.wire import PeerGone, Wire

__all__ = ["Kind", "main"]


class Kind(Protocol):
    """What makes a process a sandbox; one instance in each spawner."""

    grace_s: float
    """How long an init may take to end by itself once the service has let go of it."""
    facts: dict[str, Any]
    """What the service is told when the spawner is ready."""

    def prepare(self, template: str, plan: dict[str, Any]) -> dict[str, Any]:
        """Make a template ready; what is returned is part of the answer."""
        ...

    def release(self, template: str) -> None: ...

    def start(
        self, template: str, order: dict[str, Any], control: int, origin: int | None
    ) -> tuple[int, dict[str, Any]]:
        """Fork an init that serves `control`; return its pid and facts for the service.

        `origin` is the init of the sandbox whose files it begins with, if there is one.
        """
        ...

    def begin_errand(self, init: int | None, message: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Have a helper do something to a sandbox; return where it will tell its answer, one line of JSON.

        `init` is None if it is about something that no sandbox has any more.
        """
        ...

    def begin_store_errand(self, message: dict[str, Any]) -> int:
        """Have a helper do something to files that outlive us; return where it will tell its answer."""
        ...

    def ended(self, pid: int) -> None:
        """Begin to clean up after an init (or a process of the kind's own) that has been reaped; `tend` goes on."""
        ...

    def is_clean(self, pid: int) -> bool:
        """Whether nothing is left of an init that has been reaped."""
        ...

    def tend(self) -> float | None:
        """Do a little work ahead of need; return in how many seconds there is more, or None."""
        ...

    def owns(self, pid: int) -> bool:
        """Whether a child that is no init is the kind's own."""
        ...

    def count_groups(self) -> int:
        """How many control groups sandboxes have, or have left behind so far."""
        ...

    def close(self) -> None:
        """Remove everything that is left; no init lives any more."""
        ...


class Spawner:
    """The loop."""

    def __init__(self, control: Wire, kind: Kind) -> None:
        self._wire = control
        self._kind = kind
        self._inits: dict[int, str] = {}  # pid → sandbox
        self._closing: dict[int, tuple[int, float]] = {}  # pid → (seq to answer, when to kill it)
        self._cleaning: dict[int, int] = {}  # pid that was reaped → seq to answer
        self._errands: dict[int, int] = {}  # where a helper tells its answer → seq to answer
        self._wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._tend_at: float | None = 0.0
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Run until the service is gone, then end and remove everything."""
        try:
            self._wire.send({"event": "ready", **self._kind.facts})
            while True:
                self._wait_and_handle()
        except PeerGone:
            self._end_everything()

    def _wait_and_handle(self) -> None:
        poll = select.poll()
        poll.register(self._wire, select.POLLIN | (select.POLLOUT if self._wire.has_backlog else 0))
        poll.register(self._wake, select.POLLIN)
        for told in self._errands:
            poll.register(told, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(self._timeout_ms())}
        if self._wake in ready:
            os.read(self._wake, 4096)
        for told in ready & self._errands.keys():
            self._answer_errand(told)
        self._collect_ended()
        self._kill_overdue()
        self._wire.flush()
        if self._wire.fileno() in ready:
            received = self._wire.receive()
            if received is not None:
                self._handle(*received)
        elif not ready and self._tend_at is not None:
            pause_s = self._kind.tend()
            self._tend_at = None if pause_s is None else time.monotonic() + pause_s
            self._answer_closed()

    def _timeout_ms(self) -> float | None:
        dues = [due for _, due in self._closing.values()]
        if self._tend_at is not None:
            dues.append(self._tend_at)
        if not dues:
            return None
        return math.ceil(max(0.0, min(dues) - time.monotonic()) * 1000)

    def _handle(self, message: dict[str, Any], descriptors: list[int]) -> None:
        answer: dict[str, Any] | None
        try:
            answer = self._perform(message, descriptors)
        except OSError as error:
            answer = {"error": str(error.strerror or error), "errno": error.errno}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._tend_at = 0.0
        if answer is not None:
            self._wire.send({"seq": message["seq"], **answer})

    def _perform(self, message: dict[str, Any], descriptors: list[int]) -> dict[str, Any] | None:
        operation = message["op"]
        if operation == "prepare":
            return self._kind.prepare(message["template"], message["plan"])
        if operation == "release":
            self._kind.release(message["template"])
            return {}
        if operation == "start":
            origin = None if message["origin"] is None else self._init_of(message["origin"])
            pid, facts = self._kind.start(message["template"], message["order"], descriptors[0], origin)
            self._inits[pid] = message["sandbox"]
            return {"pid": pid, **facts}
        if operation in ("errand", "store"):
            self._errands[self._begin_errand(message, descriptors)] = message["seq"]
            return None
        if operation == "count":
            return self._count()
        if operation == "close":
            return self._close(message)
        raise OSError(22, f"unknown operation {operation!r}")

    def _begin_errand(self, message: dict[str, Any], descriptors: list[int]) -> int:
        if message["op"] == "store":
            return self._kind.begin_store_errand(message)
        init = None if message["sandbox"] is None else self._init_of(message["sandbox"])
        return self._kind.begin_errand(init, message, descriptors)

    def _init_of(self, sandbox: str) -> int:
        for pid, name in self._inits.items():
            if name == sandbox:
                return pid
        raise OSError(errno.ESRCH, "the sandbox is gone")

    def _answer_errand(self, told: int) -> None:
        with open(told, "rb") as line:
            answer = json.loads(line.readline() or b'{"outcome": "broken"}')  # somebody has killed the helper
        self._wire.send({"seq": self._errands.pop(told), **answer})

    def _count(self) -> dict[str, Any]:
        below = [pid for pid in processes.descendants(os.getpid()) if processes.is_alive(pid)]
        own = sum(self._kind.owns(pid) for pid in below)
        return {"processes": len(below) - own, "groups": self._kind.count_groups()}

    def _close(self, message: dict[str, Any]) -> dict[str, Any] | None:
        for pid, sandbox in self._inits.items():
            if sandbox == message["sandbox"]:
                self._closing[pid] = (message["seq"], time.monotonic() + self._kind.grace_s)
                self._kill_overdue()
                return None
        return {}

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for pid, (seq, due) in self._closing.items():
            if due <= now:
                os.kill(pid, signal.SIGKILL)
                self._closing[pid] = (seq, now + 1.0)

    def _collect_ended(self) -> None:
        for pid, status in processes.reap():
            sandbox = self._inits.pop(pid, None)
            if sandbox is None:
                self._kind.ended(pid)
                continue
            if status != 0:
                self._kill_orphans()
            self._kind.ended(pid)
            self._tend_at = 0.0
            seq, _ = self._closing.pop(pid, (None, 0.0))
            if seq is None:
                self._wire.send({"event": "ended", "sandbox": sandbox, **processes.exit_facts(status)})
            else:
                self._cleaning[pid] = seq
        self._answer_closed()

    def _answer_closed(self) -> None:
        for pid, seq in list(self._cleaning.items()):
            if self._kind.is_clean(pid):
                del self._cleaning[pid]
                self._wire.send({"seq": seq})

    def _kill_orphans(self) -> None:
        """Kill what an init that died before its time has left to us."""
        for child in processes.children(os.getpid()):
            if child not in self._inits and not self._kind.owns(child):
                for victim in [child, *processes.descendants(child)]:
                    try:
                        os.kill(victim, signal.SIGKILL)
                    except OSError:
                        pass  # it ended by itself

    def _end_everything(self) -> None:
        """Inits see the end of file themselves; who does not end within the grace is killed."""
        give_up = time.monotonic() + self._kind.grace_s
        while self._inits and time.monotonic() < give_up:
            for pid, _ in processes.reap():
                self._inits.pop(pid, None)
            select.select([], [], [], 0.005)
        processes.kill_everything_below(os.getpid())
        self._kind.close()


def _do_nothing(number: int, frame: object) -> None:
    """Be a handler, so that the wake-up descriptor is written."""


_NOT_RESET = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
"""Nobody can, or Python itself ignores them, for good reason."""


def main() -> None:
    """Serve on descriptor 0; `argv` is this module, the kind's module and its settings as JSON."""
    control = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 64)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    for number in signal.valid_signals() - _NOT_RESET:
        signal.signal(number, signal.SIG_DFL)  # nohup, or a shell's &, had the service ignore some: sandboxes do not
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for the service, which then closes us
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
    wire = Wire(socket.socket(fileno=control))
    try:
        kind: Kind = importlib.import_module(sys.argv[1]).make_kind(json.loads(sys.argv[2]), control)
    except OSError as error:
        try:
            where = f"{error.filename}: " if error.filename else ""
            wire.send({"event": "unavailable", "error": f"{where}{error.strerror or error}"})
        except PeerGone:
            pass  # the service has ended meanwhile
        sys.exit(1)
    # When the service dies, a spawner that somebody has stopped goes on, sees it, and ends.
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGCONT)  # only now: who becomes root of an own namespace loses it
    gc.collect()
    gc.freeze()
    gc.disable()
    Spawner(wire, kind).serve()
