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
from typing import Any, NoReturn

from headstart.backends.spawner.guest import processes, syscalls

__all__ = ["kill_tree", "start_by_fork", "start_marked"]

_ABOVE_ANY_STDIO = 256
_RLIMIT_LOCKS = 10
_ROUNDS = 50


def start_marked(message: dict[str, Any], descriptors: list[int]) -> int:
    """Start a command whose tree `kill_tree` finds by the message's `id`; return its pid.

    Raises:
        OSError: There is no such program or folder, or it cannot be run.
    """
    program = _find(message)
    placed = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ANY_STDIO) for descriptor in descriptors]
    moves = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(placed)]
    before = resource.getrlimit(_RLIMIT_LOCKS)
    try:
        if message["cwd"] is not None:
            os.chdir(message["cwd"])
        resource.setrlimit(_RLIMIT_LOCKS, (message["id"], before[1]))
        return os.posix_spawn(program, message["argv"], message["env"], file_actions=moves, setsid=True)
    finally:
        resource.setrlimit(_RLIMIT_LOCKS, before)
        os.chdir("/")
        for descriptor in placed:
            os.close(descriptor)


def start_by_fork(message: dict[str, Any], descriptors: list[int]) -> int:
    """Start a command that dies with us, and keeps its tree below itself while it lives; return its pid.

    Raises:
        OSError: As `start_marked`.
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    program = _find(message)
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


def kill_tree(number: int, pid: int) -> None:
    """Kill a command and all that it started.

    Whoever forks faster than we read /proc is caught in a later round: what was killed cannot fork.
    """
    victims = [-pid, pid, *processes.descendants(pid), *_marked(number)]  # first looked for, then killed
    for _ in range(_ROUNDS):
        for victim in victims:
            _kill(victim)
        known = {pid, *processes.descendants(pid), *_marked(number)}
        victims = [each for each in known if processes.is_alive(each)]
        if not victims:
            return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended by itself


def _marked(number: int) -> list[int]:
    """Return the processes that carry a mark."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/limits", "rb") as limits:
                    soft = limits.read().partition(b"Max file locks")[2].split(None, 1)[0]
            except (OSError, IndexError):
                continue  # it ended while we looked
            if soft == b"%d" % number:
                found.append(int(name))
    return found


def _find(message: dict[str, Any]) -> str:
    """Look the program up in its PATH, as execvp does."""
    name, folder = message["argv"][0], message["cwd"]
    if "/" in name:
        return name
    for part in message["env"].get("PATH", os.defpath).split(":"):
        found = os.path.join(folder or "", part, name)
        if os.access(found, os.X_OK) and not os.path.isdir(found):
            return found
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _become(program: str, message: dict[str, Any], descriptors: list[int], trouble: int) -> NoReturn:
    """Turn this fresh fork into the command; report through `trouble` if that is impossible.

    Signals need no care: exec itself takes our one handler back, and none is ignored.
    """
    try:
        os.setsid()
        moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ANY_STDIO) for descriptor in descriptors]
        for number, descriptor in enumerate(moved):
            os.dup2(descriptor, number)
        if message["own_tree"]:
            syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if message["cwd"] is not None:
            os.chdir(message["cwd"])
        os.execve(program, message["argv"], message["env"])
    except OSError as error:
        os.write(trouble, b"%d" % (error.errno or errno.EIO))
    finally:
        os._exit(127)
