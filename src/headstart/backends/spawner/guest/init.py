"""The first process of every sandbox: runs commands for the service and reaps.

It owns one control socket, whose other end only the service holds. End of file there means
that the service is gone, however it went; then everything in the sandbox ends. With a PID
namespace, that is one `exit`; without one, the init is a subreaper and kills whatever
is below it.

Messages in:
    `{"op": "exec", "id", "argv", "env", "cwd", "own_tree", "terminal"}` with descriptors for 0, 1, 2, …, or none
        and the path of a terminal, which is all three
    `{"op": "signal", "id", "signal"}`   to the command's process group
    `{"op": "kill", "id"}`               SIGKILL to the command and everything below it
    `{"op": "open" | …, "id", "path"}`   something about files, see `files`

Messages out: `{"event": "ready"}`, `{"event": "started", "id", "pid"}`,
`{"event": "failed", "id", "errno", "error"}`, `{"event": "exited", "id", "code" | "signal"}`,
`{"event": "answer", "id", …}` about files, with the descriptor that was asked for.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from headstart.backends.spawner.guest import commands, files, processes, syscalls
from headstart.backends.spawner.guest.wire import PeerGone, Wire

__all__ = ["Init", "reset_signals", "set_limits"]


def reset_signals() -> None:
    """Give signals back what Python (SIGINT, SIGPIPE, SIGXFSZ) and the spawner (the others) changed."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def set_limits(limits: dict[str, int]) -> None:
    """Set `resource.RLIMIT_<name>`, soft and hard, never above the hard limit there is."""
    for name, value in limits.items():
        kind = getattr(resource, "RLIMIT_" + name)
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


class Init:
    """The loop of a sandbox's first process.

    Args:
        control: A descriptor of the socket to the service.
        lifeline: A descriptor that is at end of file once the spawner is gone, if the
            kernel does not see to that.
        ends_with_namespace: Exiting ends the sandbox (we are PID 1 of a namespace).
        at_end: Called last, when nothing is left below us.
        limits: Ours, and so every command's; see `set_limits`.
        spared: If this process has hidden itself already, what it made for it before.
    """

    def __init__(
        self,
        control: int,
        *,
        ends_with_namespace: bool,
        lifeline: int | None = None,
        at_end: Callable[[], None] | None = None,
        limits: dict[str, int] | None = None,
        spared: commands.SparedInit | None = None,
    ) -> None:
        self._spared = spared or commands.SparedInit()
        self._wire = Wire(socket.socket(fileno=control))
        self._ends_with_namespace = ends_with_namespace
        self._lifeline = lifeline
        self._at_end = at_end
        self._limits = limits or {}
        self._running: dict[int, int] = {}  # execution id → pid
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def descriptors(self) -> list[int]:
        """What must stay open in this process."""
        ours = [self._wire.fileno(), self._wake, self._woken, *self._spared.descriptors()]
        return ours if self._lifeline is None else [*ours, self._lifeline]

    def let_go_of_everything_else(self) -> None:
        """Close what a fork inherited: the server alone may hold its pipes."""
        nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        for number in range(3):
            os.dup2(nothing, number)
        syscalls.close_all_descriptors_except([0, 1, 2, *self.descriptors()])

    def adopt(self, execution: int, pid: int) -> None:
        """Report the end of a child that was forked elsewhere."""
        self._running[execution] = pid

    def serve(self) -> NoReturn:
        """Run until the service or the spawner is gone, then end the sandbox."""
        reset_signals()
        set_limits(self._limits)
        if not self._ends_with_namespace:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        signal.signal(signal.SIGCHLD, _do_nothing)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        try:
            self._wire.send({"event": "ready"})
            while True:
                self._wait_and_handle()
        except PeerGone:
            pass
        finally:
            self._end()

    def _wait_and_handle(self) -> None:
        poll = select.poll()
        poll.register(self._wire, select.POLLIN | (select.POLLOUT if self._wire.has_backlog else 0))
        poll.register(self._wake, select.POLLIN)
        if self._lifeline is not None:
            poll.register(self._lifeline, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._lifeline in ready:
            raise PeerGone("the spawner is gone")
        if self._wake in ready:
            os.read(self._wake, 4096)
        self._report_ended()
        self._wire.flush()
        if self._wire.fileno() in ready:
            self._take_messages()

    def _take_messages(self) -> None:
        while True:
            received = self._wire.receive()
            if received is None:
                return
            message, descriptors = received
            if message["op"] == "exec":
                self._execute(message, descriptors)
            elif message["op"] in files.OPERATIONS:
                told, opened = files.answer(message)
                self._wire.send({"event": "answer", "id": message["id"], **told}, opened)
            else:
                self._signal(message)
            self._report_ended()  # zombies count, and commands may come faster than we are done with them

    def _report_ended(self) -> None:
        ended = dict(processes.reap())
        for execution, pid in list(self._running.items()):
            if pid in ended:
                del self._running[execution]
                self._wire.send({"event": "exited", "id": execution, **processes.exit_facts(ended[pid])})

    def _signal(self, message: dict[str, Any]) -> None:
        pid = self._running.get(message["id"])
        if message["op"] == "kill":
            commands.kill_tree(pid, mark=message["id"] if self._ends_with_namespace else None)
        elif pid is not None:
            _send_signal(-pid, message["signal"])

    def _execute(self, message: dict[str, Any], descriptors: list[int]) -> None:
        try:
            if self._ends_with_namespace:
                pid = commands.start_marked(message, descriptors, self._spared)
            else:
                pid = commands.start_by_fork(message, descriptors)
            self._running[message["id"]] = pid
            told: dict[str, Any] = {"event": "started", "id": message["id"], "pid": pid}
        except Exception as error:  # noqa: BLE001 also for what cannot be an argument: it must not end the sandbox
            number = getattr(error, "errno", None) or errno.EINVAL
            why = getattr(error, "strerror", None) or os.strerror(number)
            told = {"event": "failed", "id": message["id"], "errno": number, "error": why}
        for descriptor in descriptors:
            os.close(descriptor)
        self._wire.send(told)

    def _end(self) -> NoReturn:
        if self._ends_with_namespace:
            processes.kill_everything_in_namespace()
        else:
            processes.kill_everything_below(os.getpid())
        if self._at_end is not None:
            self._at_end()
        os._exit(0)


def _do_nothing(number: int, frame: object) -> None:
    """Be a handler, so that the wake-up descriptor is written."""


def _send_signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError as error:
        if error.errno != errno.ESRCH:
            raise
