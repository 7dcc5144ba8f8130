"""The least that can be called a sandbox: a supervisor that reports the end, and no confinement.

Stands in for a backend's guest module. The supervisor is no child of the zygote, tells on
`control_fd` how the server ended, and kills it when that socket closes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable
from typing import Any


def fork(plan: dict[str, Any]) -> int:
    if plan.get("unforkable"):
        raise OSError(plan["unforkable"])
    return os.fork()


def enter(plan: dict[str, Any], wanted: Callable[[], dict[str, int]]) -> None:
    if plan.get("refuse"):
        raise OSError(plan["refuse"])
    if os.fork():
        os._exit(0)
    os.setsid()
    control = socket.socket(fileno=wanted()["control_fd"])
    woken, waker = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, _wake)
    signal.set_wakeup_fd(waker)
    server = os.fork()
    if server == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        return
    kept = sorted((control.fileno(), woken, waker))
    for low, high in zip([-1, *kept], [*kept, 1_024]):  # noqa: B905 - Python 3.8 runs this too
        os.closerange(low + 1, high)
    _supervise(server, control, woken)
    os._exit(0)


def _wake(*_: Any) -> None:
    """Let the signal write to the wake-up descriptor."""


def _supervise(server: int, control: socket.socket, woken: int) -> None:
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if control in ready:
            order = control.recv(64)
            os.kill(server, int(order) if order else signal.SIGKILL)
            if not order:
                return
        if woken in ready:
            os.read(woken, 64)
            pid, status = os.waitpid(server, os.WNOHANG)
            if pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                control.send(json.dumps({"pid": server, "code": code}).encode())
                control.recv(64)
                return
