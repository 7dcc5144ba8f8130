"""Moving processes to other control groups, in a process of its own.

A move takes 8 ms on a quiet machine, and holds up every fork on it meanwhile; another one soon after takes nearly nothing.
So what is ordered is done together, when nothing has been ordered for a moment.

What cannot be moved is killed: an image that stays would be killed with the sandbox that it was made in, a program
that stays would be under no limits of its sandbox.
"""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from headstart.backends.local.guest import shadows
from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["Mover"]

_ROUNDS = 50
_QUIET_S = 0.05
_LONGEST_S = 0.5
"""How long an order waits at most while others come."""
_MOST_BYTES = 1 << 20


class Mover:
    """That process; what it is ordered, it does in turn. Who made it and who orders may be two.

    Attributes:
        orders: The descriptor that orders are written to.
    """

    def __init__(self) -> None:
        read_end, self.orders = os.pipe2(os.O_CLOEXEC)
        spawner = os.getpid()
        self.pid = syscalls.clone(0)
        if self.pid == 0:
            _serve(read_end, spawner)
        os.close(read_end)

    def close(self) -> None:
        """Order no more from here; it ends when nobody can."""
        os.close(self.orders)

    def take_home(self, image: int, homes: Sequence[str], settings: Sequence[tuple[str, str, str]]) -> None:
        """Take an image out of the control groups of the sandbox that it was made in, which may end before it.

        Args:
            image: Its pid.
            homes: The folders of the control groups that it goes to, which are made.
            settings: Folder, file and content of what limits them.
        """
        self._order({"do": "take_home", "pid": image, "homes": homes, "settings": settings})

    def move_out(self, shadow: int, program: int, born_in: Sequence[str], groups: Sequence[str]) -> None:
        """Move a program that goes on, its shadow, and all that it has started by now, to those of its sandbox.

        Args:
            shadow: The shadow's pid.
            program: The program's.
            born_in: Folders of control groups where they may be: those of its image, and where that was before.
            groups: The sandbox's.
        """
        self._order({"do": "move_out", "pid": shadow, "program": program, "born_in": born_in, "groups": groups})

    def remove(self, homes: Sequence[str]) -> None:
        """Remove control groups, unless something is in them."""
        self._order({"do": "remove", "homes": homes})

    def _order(self, order: dict[str, Any]) -> None:
        os.write(self.orders, json.dumps(order).encode() + b"\n")


def _serve(orders: int, spawner: int) -> NoReturn:
    """As a fork of the spawner: do what comes, until nobody can order anything."""
    try:
        syscalls.be_a_helper_of(spawner, [orders])
        pending, since = b"", 0.0
        while True:
            quiet_s = min(_QUIET_S, max(0.0, since + _LONGEST_S - time.monotonic())) if pending else None
            if select.select([orders], [], [], quiet_s)[0]:
                since = since if pending else time.monotonic()
                told = os.read(orders, _MOST_BYTES)
                if not told:
                    break
                pending += told
            else:
                whole, _, pending = pending.rpartition(b"\n")
                for line in whole.splitlines():
                    order = json.loads(line)
                    _ACTS[order.pop("do")](**order)
    finally:
        os._exit(0)


def _take_home(pid: int, homes: list[str], settings: list[tuple[str, str, str]]) -> None:
    try:
        for home in homes:
            os.makedirs(home, 0o755, exist_ok=True)
        for folder, name, value in settings:
            with open(f"{folder}/{name}", "w") as setting:
                setting.write(value)
        shadows.join(pid, homes)
    except OSError:
        shadows.kill(pid)


def _move_out(pid: int, program: int, born_in: list[str], groups: list[str]) -> None:
    try:
        inside = processes.pid_namespace(program)
        for _ in range(_ROUNDS):
            listed = [each for folder in born_in for each in processes.in_group(folder)]
            left = [each for each in listed if processes.pid_namespace(each) == inside]
            if not left:
                return shadows.join(pid, groups)  # last: while it is there, nobody removes the groups
            for each in left:
                with suppress(ProcessLookupError):
                    shadows.join(each, groups)
    except OSError:
        pass  # its sandbox has ended
    shadows.kill(pid)
    return shadows.kill(program)  # it forks faster than that, which nobody needs


def _remove(homes: list[str]) -> None:
    for home in homes:
        with suppress(OSError):  # others are still in there
            os.rmdir(home)


_ACTS = {"take_home": _take_home, "move_out": _move_out, "remove": _remove}
