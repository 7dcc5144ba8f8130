"""Holding everything in a sandbox still for a moment, except its init's helpers outside.

By the freezer of control groups version 2, where its group is in that hierarchy; else by
SIGSTOP, which a shell's job control can see.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

from headstart.backends.spawner.guest import processes

__all__ = ["frozen"]

_ROUNDS = 1000
_ROUND_S = 0.001


@contextmanager
def frozen(groups: list[str], running: Callable[[], list[int]]) -> Generator[None, None, None]:
    """Freeze, and thaw again, whatever happens.

    Args:
        groups: The sandbox's control groups' folders.
        running: Returns what runs in it.

    Raises:
        OSError: It does not stand still.
    """
    freezers = [group for group in groups if os.path.exists(group + "/cgroup.freeze")]
    if freezers:
        with _frozen_group(freezers[0]):
            yield
    else:
        with _stopped(running):
            yield


@contextmanager
def _frozen_group(group: str) -> Generator[None, None, None]:
    try:
        _write(group + "/cgroup.freeze", "1")
        _wait(lambda: _has(group + "/cgroup.events", "frozen 1"))
        yield
    finally:
        _write(group + "/cgroup.freeze", "0")


@contextmanager
def _stopped(running: Callable[[], list[int]]) -> Generator[None, None, None]:
    stopped: list[int] = []

    def all_stand() -> bool:
        """Stop those that run; who was forked meanwhile is seen the next time."""
        moving = [pid for pid in running() if _state(pid) not in ("T", "t")]
        for pid in moving:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            if pid not in stopped:
                stopped.append(pid)
        return not moving

    try:
        _wait(all_stand)
        yield
    finally:
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass  # somebody killed it


def _wait(done: Callable[[], bool]) -> None:
    for _ in range(_ROUNDS):
        if done():
            return
        processes.pause(_ROUND_S)
    raise OSError(errno.EBUSY, "what runs in the sandbox does not stand still")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as facts:
            return facts.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "T"  # it is gone


def _has(path: str, line: str) -> bool:
    with open(path) as file:
        return line in file.read().splitlines()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
