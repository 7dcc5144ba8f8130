"""One fork: from the zygote's copy to a confined process that is about to be the program.

The backend decides what a sandbox is: its guest module's `fork(plan)` forks, and its
`enter(plan, wanted)` is called in the fresh fork and returns in the process that is to become
the server, whose supervisor (PID 1 of the new namespace, say) it has left above it. Most of
that needs nothing but the plan, so it can be done *ahead*: a fork is parked, and waits inside `enter`, at its call of
`wanted`, for the request that makes it a server. A fork that nobody has made ahead takes the
same way and finds its request there already.

A request brings descriptors: the server's stdio, those that the plan needs (`plan_fds` names
the keys under which `wanted` returns their numbers), and last the *channel*, a socket of this
fork alone: it carries `entered` or `failed` to the host, so forks need no order among themselves.

A parked fork hangs on the zygote by a socket. It ends when that closes; one that has died is
found out when its request cannot be sent.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from . import facts, fresh, program, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    Plan = dict[str, Any]


class Confinement(NamedTuple):
    """The backend's guest module: what `fork` makes, in two steps, is a sandbox."""

    fork: Callable[[Plan], int]
    enter: Callable[[Plan, Callable[[], dict[str, int]]], None]


class Preloaded(NamedTuple):
    """What the zygote is, for its forks."""

    mask: set[int]
    on_child_end: Any
    confinement: Confinement
    changes: fresh.Changes
    ahead: Plan | None
    """The plan that one fork at a time is made for before it is wanted."""


class Forks:
    """The zygote's side.

    Args:
        control: The zygote's own socket to the host, which forks let go of.
    """

    def __init__(self, preloaded: Preloaded, control: socket.socket) -> None:
        self._preloaded = preloaded
        self._control = control
        self._parked: socket.socket | None = None
        self.may_park = preloaded.ahead is not None
        """Whether `park` has something to do. It is tried once after each fork that was wanted."""

    def park(self) -> program.Job | None:
        """Make a fork ahead. None in the zygote; in the fork, once it is wanted, the job to run."""
        self.may_park = False
        try:
            parked = self._fork(self._preloaded.ahead or {})
        except OSError:
            return None  # whoever wants a fork is told
        if not isinstance(parked, socket.socket):
            return parked
        self._parked = parked
        return None

    def fork_server(self, request: wire.Message, fds: Sequence[int]) -> program.Job | None:
        """Have one fork become a server. None in the zygote; in the server, the job to run."""
        plan = request.pop("plan")
        try:
            if plan != self._preloaded.ahead or not self._hand_to_parked(request, fds):
                job = self._fork_for(plan, request, fds)
                if job is not None:
                    return job
        except OSError as error:
            with socket.socket(fileno=os.dup(fds[-1])) as channel:
                _tell(channel, {"op": "failed", "error": f"fork: {error.strerror or error}"})
        for fd in fds:
            os.close(fd)
        return None

    def _hand_to_parked(self, request: wire.Message, fds: Sequence[int]) -> bool:
        self.may_park = True
        parked, self._parked = self._parked, None
        if parked is None:
            return False
        with parked:
            try:
                wire.send(parked, request, fds)
            except OSError:
                return False  # it has died
        return True

    def _fork_for(self, plan: Plan, request: wire.Message, fds: Sequence[int]) -> program.Job | None:
        forked = self._fork(plan)
        if not isinstance(forked, socket.socket):
            return forked
        with forked:
            wire.send(forked, request, fds)
        return None

    def _fork(self, plan: Plan) -> socket.socket | program.Job:
        """Return, in the zygote, where to send the fork's request; in the fork, the job to run."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                child = self._preloaded.confinement.fork(plan)
            except OSError:
                ours.close()
                raise
            if child:
                return ours
            for sock in (ours, self._control, self._parked):
                if sock is not None:
                    sock.close()  # the object, too: the number will be another file's
            return _become_server(self._preloaded, plan, theirs)


class _Order:
    """The request that a fork becomes a server by; taken from `source` when it is needed."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self.request: wire.Message | None = None
        self.channel: socket.socket | None = None

    def wait(self) -> dict[str, int]:
        """Return the descriptors that the plan needs, under its names for them, once this fork is wanted.

        The first three that came are 0, 1 and 2 then.
        """
        received = wire.receive(self._source)
        if received is None:
            os._exit(0)  # the zygote has ended: nobody will want this fork any more
        self._source.close()
        self.request, fds = received
        lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in fds]
        for fd in fds:
            os.close(fd)
        for number, fd in enumerate(lifted[:3]):
            os.dup2(fd, number, inheritable=True)
            os.close(fd)
        self.channel = socket.socket(fileno=lifted[-1])
        return {key: lifted[3 + place] for key, place in self.request["plan_fds"].items()}

    def taken(self) -> tuple[wire.Message, socket.socket]:
        """Return the request, which the confinement has waited for."""
        if self.request is None or self.channel is None:
            raise RuntimeError("the confinement has not waited for the request")
        return self.request, self.channel

    def fail(self, why: str) -> None:
        """Tell whoever wants this fork, now or later, that it cannot be."""
        if self.request is None:
            self.wait()
        if self.channel is not None:
            _tell(self.channel, {"op": "failed", "error": why})


def _become_server(preloaded: Preloaded, plan: Plan, source: socket.socket) -> program.Job:
    order = _Order(source)
    try:
        signal.signal(signal.SIGCHLD, preloaded.on_child_end)
        _close_all_but({0, 1, 2, source.fileno()})
        preloaded.confinement.enter(plan, order.wait)
        request, channel = order.taken()
        signal.pthread_sigmask(signal.SIG_SETMASK, preloaded.mask)
        fresh.renew(preloaded.changes)
        fresh.restart(preloaded.changes, request["env"], request.get("cwd"))
        _close_all_but({0, 1, 2, channel.fileno()})
    except Exception as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        order.fail(f"{type(error).__name__}: {error}")
        os._exit(70)
    _tell(channel, {"op": "entered"})
    channel.close()
    return program.split_entry(request["entry"] + request["args"])


def _tell(channel: socket.socket, message: wire.Message) -> None:
    try:
        wire.send(channel, message)
    except OSError:
        return  # the host has given this fork up; the backend's supervisor ends it


def _close_all_but(keep: Iterable[int]) -> None:
    kept = set(keep)
    for fd, what in facts.open_files().items():
        if fd not in kept and not (fd > 2 and what in facts.HARMLESS_FILES):
            os.close(fd)
