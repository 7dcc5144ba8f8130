"""One fork: from the zygote's copy to a confined process that is about to be the program.

The backend decides what a sandbox is: its guest module's `enter(plan)` is called in the
fresh fork and returns in the process that is to become the server, whose supervisor
(PID 1 of the new namespace, say) it has left above it. Descriptors that a plan needs come
with the request; the plan names its keys for them, and gets their numbers.

The *channel* is the last descriptor of each request, a socket of this fork alone: it
carries `entered` or `failed` to the host, so forks need no order among themselves.
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


class Preloaded(NamedTuple):
    """What the zygote is, for its forks."""

    mask: set[int]
    on_child_end: Any
    enter: Callable[[dict[str, Any]], None]
    changes: fresh.Changes


def fork_server(
    preloaded: Preloaded, request: wire.Message, fds: Sequence[int], control: socket.socket
) -> program.Job | None:
    """Fork one server. None in the zygote; in the server, the job to run."""
    channel = socket.socket(fileno=fds[-1])
    try:
        child = os.fork()
    except OSError as error:
        _tell(channel, {"op": "failed", "error": f"fork: {error.strerror}"})
        child = -1
    if child:
        channel.close()
        for fd in fds[:-1]:
            os.close(fd)
        return None
    control.close()
    return _become_server(preloaded, request, fds, channel)


def _become_server(
    preloaded: Preloaded, request: wire.Message, fds: Sequence[int], channel: socket.socket
) -> program.Job:
    signal.signal(signal.SIGCHLD, preloaded.on_child_end)
    try:
        given, channel = _place_descriptors(fds, channel)
        preloaded.enter(_plan_with_descriptors(request, given))
        signal.pthread_sigmask(signal.SIG_SETMASK, preloaded.mask)
        fresh.restart(preloaded.changes, request["env"], request.get("cwd"))
        _close_all_but({0, 1, 2, channel.fileno()})
    except Exception as error:  # noqa: BLE001 - whatever it is, the host must hear of it
        _tell(channel, {"op": "failed", "error": f"{type(error).__name__}: {error}"})
        os._exit(70)
    _tell(channel, {"op": "entered"})
    channel.close()
    return program.split_entry(request["entry"] + request["args"])


def _tell(channel: socket.socket, message: wire.Message) -> None:
    try:
        wire.send(channel, message)
    except OSError:
        return  # the host has given this fork up; the backend's supervisor ends it


def _place_descriptors(fds: Sequence[int], channel: socket.socket) -> tuple[list[int], socket.socket]:
    """Make the first three received descriptors 0, 1 and 2, and close all that was not received.

    Returns:
        The numbers that the plan's own descriptors have now, and the channel.
    """
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in fds]
    channel.detach()
    for number, fd in enumerate(lifted[:3]):
        os.dup2(fd, number, inheritable=True)
    given = lifted[3:]
    _close_all_but({0, 1, 2, *given})
    return given[:-1], socket.socket(fileno=given[-1])


def _plan_with_descriptors(request: wire.Message, given: list[int]) -> dict[str, Any]:
    """Return the plan with the numbers of the descriptors that `plan_fds` assigns to its keys."""
    return {**request["plan"], **{key: given[place] for key, place in request["plan_fds"].items()}}


def _close_all_but(keep: Iterable[int]) -> None:
    kept = set(keep)
    for fd, what in facts.open_files().items():
        if fd not in kept and not (fd > 2 and what in facts.HARMLESS_FILES):
            os.close(fd)
