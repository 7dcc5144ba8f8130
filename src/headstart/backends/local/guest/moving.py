"""Moving processes to other control groups, in a process of its own: each move takes 8 ms on a quiet machine.

What cannot be moved is killed: an image that stays would be killed with the sandbox that it was made in, a program
that stays would be under no limits of its sandbox.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

from headstart.backends.local.guest import shadows
from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["Mover"]

_ROUNDS = 50


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

    def move_out(self, shadow: int, program: int, home: str, groups: Sequence[str]) -> None:
        """Move a program that goes on, its shadow, and all that it has started by now, to those of its sandbox."""
        self._order({"do": "move_out", "pid": shadow, "program": program, "home": home, "groups": groups})

    def remove(self, homes: Sequence[str]) -> None:
        """Remove control groups, unless something is in them."""
        self._order({"do": "remove", "homes": homes})

    def _order(self, order: dict[str, Any]) -> None:
        os.write(self.orders, json.dumps(order).encode() + b"\n")


def _serve(orders: int, spawner: int) -> NoReturn:
    """As a fork of the spawner: do what comes, until nobody can order anything."""
    try:
        syscalls.be_a_helper_of(spawner, [orders])
        with open(orders, "rb") as lines:
            for line in lines:
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


def _move_out(pid: int, program: int, home: str, groups: list[str]) -> None:
    try:
        shadows.join(pid, groups)
        inside = _pid_namespace(program)
        for _ in range(_ROUNDS):
            left = [each for each in processes.in_group(home) if _pid_namespace(each) == inside]
            if not left:
                return
            for each in left:
                with suppress(ProcessLookupError):
                    shadows.join(each, groups)
    except OSError:
        shadows.kill(pid)
    shadows.kill(program)  # its sandbox has ended, or it forks faster than that, which nobody needs


def _remove(homes: list[str]) -> None:
    for home in homes:
        with suppress(OSError):  # others are still in there
            os.rmdir(home)


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""  # it has ended


_ACTS = {"take_home": _take_home, "move_out": _move_out, "remove": _remove}
