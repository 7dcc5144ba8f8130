"""Holding everything in a sandbox still, for a moment or for as long as it is paused.

By the freezer of control groups version 2, where its group is in that hierarchy: its init stands
still, too. Else by SIGSTOP of all but its init. In *whole trees*: a shell with job control that
runs while its child is stopped would take that for the end of its turn. So nobody is stopped
before his parent stands, and nobody goes on before his children do; only from somebody who forks
faster than we look, that is not expected (`_ORDERLY_ROUNDS`).

It stands still when two listings in a row are the same and nobody in the first one moved: who
stands cannot fork, and whoever was missed has a parent, or has been taken over by the init.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from headstart.backends.spawner.guest import processes

__all__ = ["Still", "freeze", "frozen", "thaw"]

_ROUNDS = 1000
_ROUND_S = 0.001
_ORDERLY_ROUNDS = 30
_STUCK_ROUNDS = 50
"""Who was told to stop so often, and waits in the kernel, stops before it does anything: it waits
for a child that it has vforked, say, which stands."""

_STANDS, _WAITS, _MOVES = 0, 1, 2


class Still:
    """A sandbox that stands still until it is thawed; made by `freeze`.

    Args:
        thaw: Lets it go on; harmless if it has ended.
    """

    def __init__(self, thaw: Callable[[], None]) -> None:
        self.thaw = thaw


def thaw(init: int, groups: Sequence[str], apart: Sequence[int] = ()) -> None:
    """Let everything in a sandbox go on, whoever had it stand still: a helper that was killed, say."""
    freezer = next((group for group in groups if os.path.exists(group + "/cgroup.freeze")), None)
    if freezer is not None:
        with open(freezer + "/cgroup.freeze", "w") as frozen_group:
            frozen_group.write("0")
        return
    for pid in processes.members(init, groups, apart):
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


def freeze(init: int, groups: Sequence[str], apart: Sequence[int] = ()) -> Still:
    """Have everything in a sandbox stand still, and return when it does. May take a second.

    Args:
        init: The pid of its init.
        groups: Its control groups' folders.
        apart: Those in it that are children of nobody in it.

    Raises:
        OSError: It does not stand still, and goes on.
    """
    freezer = next((group for group in groups if os.path.exists(group + "/cgroup.freeze")), None)
    if freezer is not None:
        return _freeze_group(freezer)
    stopping = _Stopping(init, groups, apart)
    try:
        _wait(stopping.all_stand)
    except BaseException:
        stopping.undo()
        raise
    return Still(stopping.undo)


@contextmanager
def frozen(init: int, groups: Sequence[str], apart: Sequence[int] = ()) -> Generator[None, None, None]:
    """Freeze as `freeze` does, and thaw again, whatever happens."""
    still = freeze(init, groups, apart)
    try:
        yield
    finally:
        still.thaw()


def _freeze_group(group: str) -> Still:
    def thaw() -> None:
        try:
            _write(group + "/cgroup.freeze", "0")
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):  # it has ended
                raise

    try:
        _write(group + "/cgroup.freeze", "1")
        _wait(lambda: _has(group + "/cgroup.events", "frozen 1"))
    except BaseException:
        thaw()
        raise
    return Still(thaw)


class _Seen:
    """A process at a glance: `does` is what the liveliest of its threads does."""

    def __init__(self, pid: int) -> None:
        fields = _facts(f"/proc/{pid}/stat")
        self.parent = int(fields[1])
        self.began = int(fields[19])
        states = [_state(f"/proc/{pid}/task/{thread}/stat") for thread in os.listdir(f"/proc/{pid}/task")]
        self.does = max(states, default=_MOVES)


class _Stopping:
    def __init__(self, init: int, groups: Sequence[str], apart: Sequence[int]) -> None:
        self._init = init
        self._groups = groups
        self._apart = apart
        self._rounds = 0
        self._told: dict[int, int] = {}  # pid → how often it was told to stop
        self._stopped: list[tuple[int, int]] = []  # pid and when it began, parents first

    def all_stand(self) -> bool:
        """Stop those that move and may be stopped; who was forked meanwhile is seen the next time."""
        self._rounds += 1
        listed = self._members()
        seen = {pid: seen for pid in listed for seen in _glance(pid)}
        moving = {pid for pid in seen if self._moves(pid, seen[pid])}
        for pid in moving:
            parent = seen[pid].parent
            is_ours = parent == self._init or parent in seen or pid in self._apart
            if is_ours and (parent not in moving or self._rounds > _ORDERLY_ROUNDS):
                self._stop(pid, seen[pid])
        return not moving and len(seen) == len(listed) and set(self._members()) == set(listed)

    def _members(self) -> list[int]:
        return processes.members(self._init, self._groups, self._apart)

    def undo(self) -> None:
        """Let those go on that we have stopped, children first; nobody else."""
        while self._stopped:
            pid, began = self._stopped.pop()
            _tell(pid, began, signal.SIGCONT)

    def _moves(self, pid: int, seen: _Seen) -> bool:
        return seen.does == _MOVES or (seen.does == _WAITS and self._told.get(pid, 0) < _STUCK_ROUNDS)

    def _stop(self, pid: int, seen: _Seen) -> None:
        if (pid, seen.began) not in self._stopped:
            self._stopped.append((pid, seen.began))
        self._told[pid] = self._told.get(pid, 0) + 1
        _tell(pid, seen.began, signal.SIGSTOP)


def _tell(pid: int, began: int, number: int) -> None:
    """Send a signal, unless the process has ended and another has its pid."""
    try:
        held = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if int(_facts(f"/proc/{pid}/stat")[19]) == began:
            signal.pidfd_send_signal(held, number)
    except (FileNotFoundError, ProcessLookupError):
        pass
    finally:
        os.close(held)


def _glance(pid: int) -> list[_Seen]:
    """Return what is seen of a process; nothing if it is gone."""
    try:
        return [_Seen(pid)]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _state(path: str) -> int:
    try:
        return {"T": _STANDS, "t": _STANDS, "Z": _STANDS, "X": _STANDS, "D": _WAITS}.get(_facts(path)[0], _MOVES)
    except (FileNotFoundError, ProcessLookupError):
        return _MOVES  # it is gone, and may have begun another


def _facts(path: str) -> list[str]:
    """Return what `/proc/…/stat` tells after the name: the state, the parent, …"""
    with open(path, "rb") as facts:
        return facts.read().rpartition(b")")[2].decode().split()


def _wait(done: Callable[[], bool]) -> None:
    for _ in range(_ROUNDS):
        if done():
            return
        processes.pause(_ROUND_S)
    raise OSError(errno.EBUSY, "what runs in the sandbox does not stand still")


def _has(path: str, line: str) -> bool:
    with open(path) as file:
        return line in file.read().splitlines()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
