"""Starting a command from an init, and finding what it has started.

`fork` copies the page tables of a Python interpreter, and the child copies every page that it
touches on its way to `exec`: 1.4 ms on a slow machine, of the 2 ms that a short command may
take. `posix_spawn` borrows the parent's memory instead: 0.1 ms. But nothing of ours can run in
its child, which two things need:

- *To find the whole tree again*, daemons included, after their parents have ended. Where orphans
  come to us (we are PID 1), the tree carries a mark: a resource limit that Linux knows and ignores,
  RLIMIT_LOCKS, is inherited by whatever a process starts. We set our own for the moment of the start.
- *To die with its parent*, where no PID namespace sees to that. There, we fork.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from headstart.backends.spawner.guest import processes, syscalls

__all__ = [
    "RLIMIT_LOCKS",
    "SparedInit",
    "enter",
    "find_program",
    "kill_tree",
    "mark_of",
    "out_of_the_way",
    "start_by_fork",
    "start_marked",
    "weigh",
]

RLIMIT_LOCKS = 10
"""What carries the mark of a tree."""

_PATIENCE_S = 1.0
_LEAST_WILLINGLY, _MOST_WILLINGLY = -1000, 1000
_MORE_WILLINGLY = 1000
"""By as much as a control group may hold: then no size makes up for it."""


class SparedInit:
    """Has the kernel kill commands before us when the sandbox's memory is used up.

    What fills the memory may belong to no process (files on a tmpfs are nobody's), and the largest
    process may be our own. Whatever we start inherits how willingly it is killed, so we are
    that willing for the moment of the start. Must be made before this process hides itself.
    """

    def __init__(self) -> None:
        try:
            self._score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # no /proc, or not ours to write
            self._score = -1
        self._usual = int(os.pread(self._score, 16, 0)) if self._score >= 0 else 0

    def descriptors(self) -> list[int]:
        """What must stay open."""
        return [self._score] if self._score >= 0 else []

    def be_like_a_command(self) -> None:
        self._set(min(self._usual + _MORE_WILLINGLY, _MOST_WILLINGLY))

    def be_spared(self) -> None:
        self._set(self._usual)

    def _set(self, score: int) -> None:
        if self._score >= 0:
            os.pwrite(self._score, b"%d" % score, 0)


def weigh(pid: int, *, is_kept: bool) -> None:
    """Have the kernel kill a process as it does a command when memory is used up; or, if it is kept for later, nobody later than it.

    It need not be ours; nothing happens if we may not. Our own score is a process's usual one.
    """
    with open("/proc/self/oom_score_adj") as own:
        usual = int(own.read())
    scores = (_LEAST_WILLINGLY, usual) if is_kept else (min(usual + _MORE_WILLINGLY, _MOST_WILLINGLY),)
    for score in scores:
        with suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as told:
            told.write(str(score))
            told.flush()
            return


def start_marked(message: dict[str, Any], descriptors: list[int], init: SparedInit) -> int:
    """Start a command whose tree `kill_tree` finds by the message's `id`; return its pid.

    Raises:
        OSError: There is no such program or folder, or it cannot be run.
    """
    program = find_program(message)
    placed = out_of_the_way(descriptors)
    moves: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(placed)
    ]
    if message["terminal"] is not None:  # who begins a session controls the first terminal that he opens
        moves.append((os.POSIX_SPAWN_OPEN, 0, message["terminal"], os.O_RDWR, 0))
        moves += [(os.POSIX_SPAWN_DUP2, 0, number) for number in (1, 2)]
    before = resource.getrlimit(RLIMIT_LOCKS)
    try:
        enter(message["cwd"])
        resource.setrlimit(RLIMIT_LOCKS, (mark_of(message["id"]), before[1]))
        init.be_like_a_command()
        return os.posix_spawn(program, message["argv"], message["env"], file_actions=moves, setsid=True)
    finally:
        init.be_spared()
        resource.setrlimit(RLIMIT_LOCKS, before)
        os.chdir("/")
        for descriptor in placed:
            os.close(descriptor)


def start_by_fork(message: dict[str, Any], descriptors: list[int]) -> int:
    """Start a command that dies with us, and keeps its tree below itself while it lives; return its pid.

    Raises:
        OSError: As `start_marked`.
    """
    program = find_program(message)
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become(program, message, descriptors, write_end)
    os.close(write_end)
    trouble = os.read(read_end, 16)  # nothing once exec succeeded, and always soon
    os.close(read_end)
    if trouble:
        os.waitpid(pid, 0)
        raise OSError(int(trouble), os.strerror(int(trouble)))
    return pid


def kill_tree(pid: int | None, *, mark: int | None, among: Callable[[], Iterable[int]] | None = None) -> None:
    """Kill a command and all that it started; `pid` is None if it has ended itself, `mark` if it has none.

    `among` lists those who may carry the mark; else everybody whom /proc shows may. Whoever forks faster than we read /proc is caught in a later round: what was killed cannot
    fork. For a second we do nothing else.
    """
    listed = among or _everybody
    victims = [*_below(pid), *_marked(mark, listed())]  # first looked for, then killed
    if pid is not None:
        victims.append(-pid)
    give_up = time.monotonic() + _PATIENCE_S
    while victims and time.monotonic() < give_up:
        for victim in victims:
            _kill(victim)
        victims = [each for each in (*_below(pid), *_marked(mark, listed())) if processes.is_alive(each)]


def _below(pid: int | None) -> list[int]:
    return [] if pid is None else [pid, *processes.descendants(pid)]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def _everybody() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _marked(number: int | None, pids: Iterable[int]) -> list[int]:
    """Return the processes that carry a command's mark."""
    found: list[int] = []
    if number is None:
        return found
    mark = b"%d" % mark_of(number)
    for pid in pids:
        try:
            with open(f"/proc/{pid}/limits", "rb") as limits:
                soft = limits.read().partition(b"Max file locks")[2].split(None, 1)[0]
        except (OSError, IndexError):
            continue  # it ended while we looked
        if soft == mark:
            found.append(pid)
    return found


def mark_of(number: int) -> int:
    """Return what a command's tree is marked with: its number, as far as we may set it."""
    hard = resource.getrlimit(RLIMIT_LOCKS)[1]
    return number if hard == resource.RLIM_INFINITY else number % (hard + 1)


def out_of_the_way(descriptors: list[int]) -> list[int]:
    """Return copies with numbers above all that they are to be moved to."""
    return [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, len(descriptors)) for descriptor in descriptors]


def enter(folder: str | None) -> None:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            raise OSError(error.errno, f"its folder {folder}: {error.strerror}") from error


def find_program(message: dict[str, Any]) -> str:
    """Look the program up in its PATH, as execvp does."""
    name, folder = message["argv"][0], message["cwd"]
    if "/" in name:
        return name
    for part in message["env"].get("PATH", os.defpath).split(":"):
        found = os.path.join(folder or "", part, name)
        if os.access(found, os.X_OK) and not os.path.isdir(found):
            return found
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _have_terminal(path: str) -> None:
    """Make it this process's controlling one, and its 0, 1 and 2."""
    terminal = os.open(path, os.O_RDWR)
    for number in range(3):
        os.dup2(terminal, number)
    if terminal > 2:
        os.close(terminal)


def _become(program: str, message: dict[str, Any], descriptors: list[int], trouble: int) -> NoReturn:
    """Turn this fresh fork into the command; report through `trouble` if that is impossible.

    Signals need no care: exec itself takes our one handler back, and none is ignored.
    """
    try:
        os.setsid()
        moved = out_of_the_way(descriptors)
        for number, descriptor in enumerate(moved):
            os.dup2(descriptor, number)
        if message["terminal"] is not None:
            _have_terminal(message["terminal"])
        if message["own_tree"]:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        enter(message["cwd"])
        os.execve(program, message["argv"], message["env"])
    except OSError as error:
        os.write(trouble, b"%d" % (error.errno or errno.EIO))
    except Exception:  # noqa: BLE001 what cannot be an argument
        os.write(trouble, b"%d" % errno.EINVAL)
    finally:
        os._exit(127)
