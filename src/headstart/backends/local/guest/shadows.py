"""Programs whose state can be kept, and go on in another sandbox: by a fork that somebody else makes for them.

A fork copies memory by reference, which is what makes a checkpoint of 200 MB cost milliseconds.
But it stays where its parent is: in the same namespaces, with the same (no) rights. So each such
program has a *shadow*: a process that shares its memory, stands outside of the sandbox with all
of the spawner's rights, and never runs an instruction that we did not order (`tracing`). When the
program is about to fork, we let its shadow do that instead. What comes of it is an *image*: memory
that belongs to nobody who runs, and the registers that the fork would have begun with. As often as
it is wanted, a copy of it is born into a sandbox, drops its rights there, and goes on from
its `fork()`, with descriptors of its own and none of those before.

A program becomes one before its first instruction: the shadow is who executes it, and is
stopped as soon as the program is loaded; then the program itself is born, into the sandbox.
"""

from __future__ import annotations

import array
import base64
import errno
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from headstart.backends.spawner.guest import commands, syscalls, tracing
from headstart.backends.spawner.guest.init import reset_signals, set_limits
from headstart.backends.spawner.guest.tracing import Context, Tracee, patience

__all__ = [
    "NAMESPACES",
    "Image",
    "Shadow",
    "are_possible",
    "go_home",
    "join",
    "join_alone",
    "keep",
    "kill",
    "revive",
    "start",
]

NAMESPACES = {
    "pid": syscalls.CLONE_NEWPID,
    "mnt": syscalls.CLONE_NEWNS,
    "ipc": syscalls.CLONE_NEWIPC,
    "uts": syscalls.CLONE_NEWUTS,
    "net": syscalls.CLONE_NEWNET,
    "cgroup": syscalls.CLONE_NEWCGROUP,
    "user": syscalls.CLONE_NEWUSER,
}
"""What of a sandbox is entered, in this order."""

_HANDED_FROM = 2
_REVIVED_FROM = _HANDED_FROM + len(NAMESPACES)
"""The contract's `REVIVED_FROM`."""

_CLONE_VM, _CLONE_SIGHAND, _CLONE_PARENT = 0x100, 0x800, 0x8000
_SHARED = _CLONE_VM | _CLONE_SIGHAND | _CLONE_PARENT | signal.SIGCHLD
_COPIED = _CLONE_PARENT | signal.SIGCHLD
_OURS_FROM = 500
_OURS = range(_OURS_FROM, _OURS_FROM + len(NAMESPACES))
_STARTS_S = 10.0
_OBEYS_S = 2.0
"""Others wait meanwhile."""
_BELOW_STACK = 512
_LARGEST_DESCRIPTOR = 0x7FFFFFFF
_FROM_FOLDER = -100
"""`AT_FDCWD`."""
_NO_CAPABILITIES = struct.pack("=Ii", 0x20080522, 0) + b"\0" * 24
_MESSAGE = struct.Struct("@PIxxxxPQPQi4x")
_VECTOR = struct.Struct("@PQ")
_BELIEVED_PID = 0x7FFFFFFF
"""What a program is told that its fork is called: no process is."""


@dataclass(slots=True, kw_only=True)
class Shadow:
    """What shares a program's memory, and the program's own pid."""

    tracee: Tracee
    program: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A program as it was when it was about to fork."""

    tracee: Tracee
    context: Context


def are_possible() -> bool:
    """Whether this process may trace others on this machine, and have them do something; tried on a child."""
    if not tracing.is_possible():
        return False
    pid = syscalls.clone(0)
    if pid == 0:
        while True:
            signal.pause()
    try:
        with patience(_OBEYS_S):
            tracee = Tracee.seize(pid)
            tracee.interrupt()
            return tracee.call("pidfd_open", os.getpid()) >= 0
    except OSError:
        return False
    finally:
        kill(pid)
        os.waitpid(pid, 0)


# ---------------------------------------------------------------- starting


def start(order: Mapping[str, Any], namespaces: Sequence[int], descriptors: Sequence[int]) -> Shadow:
    """Start a program in a sandbox; return it and its shadow.

    Args:
        order: `argv`, `env`, `cwd`, `mark`, `limits`, `groups` (its sandbox's, which it begins in); how it is confined: `own` (its uid and gid, if it has to change to
            them), `seccomp` (a filter, base64), `scopes` (see `syscalls.scope`).
        namespaces: Descriptors of the sandbox's `NAMESPACES`.
        descriptors: The program's 0, 1, 2, …

    Raises:
        OSError: There is no such program or folder, or it cannot be traced.
    """
    begins, begin = os.pipe2(os.O_CLOEXEC)
    trouble, told = os.pipe2(os.O_CLOEXEC)
    pid = syscalls.clone(0)
    if pid == 0:
        _execute(order, namespaces, descriptors, begins, told)
    try:
        os.close(begins)
        os.close(told)
        tracee = Tracee.seize(pid)
        os.write(begin, b".")
        with patience(_STARTS_S):
            try:
                tracee.await_exec()
            except ChildProcessError:
                number = int(os.read(trouble, 16) or errno.EIO)
                raise OSError(number, os.strerror(number)) from None
            left = [kind & ~syscalls.CLONE_NEWNS for kind in _foreign(namespaces)]
            return _born(tracee, tracee.context(), order, dict(zip(_OURS, left, strict=True)))
    except BaseException:
        kill(pid)
        raise
    finally:
        os.close(begin)
        os.close(trouble)


def _execute(
    order: Mapping[str, Any], namespaces: Sequence[int], descriptors: Sequence[int], begins: int, told: int
) -> NoReturn:
    """As a fork of ours: become a program in the sandbox's file tree, with our rights, of which it never makes use."""
    try:
        os.read(begins, 1)
        join_alone(order["groups"])
        reset_signals()
        set_limits(dict(order["limits"]))
        resource.setrlimit(commands.RLIMIT_LOCKS, (order["mark"], resource.getrlimit(commands.RLIMIT_LOCKS)[1]))
        commands.SparedInit().be_like_a_command()
        syscalls.setns(namespaces[list(NAMESPACES).index("mnt")], syscalls.CLONE_NEWNS)
        if order["own"] is not None:
            os.setgroups([])
            syscalls.act_on_files_as(*order["outside"])
        program = commands.find_program(dict(order))
        commands.enter(order["cwd"])
        for number, descriptor in enumerate(namespaces, _OURS_FROM):
            os.dup2(descriptor, number)
        for number, descriptor in enumerate(commands.out_of_the_way(list(descriptors))):
            os.dup2(descriptor, number)
        syscalls.close_all_descriptors_except([*range(len(descriptors)), *_OURS, told])
        os.execve(program, order["argv"], order["env"])
    except OSError as error:
        os.write(told, b"%d" % (error.errno or errno.EIO))
    except Exception:  # noqa: BLE001 what cannot be an argument
        os.write(told, b"%d" % errno.EINVAL)
    finally:
        os._exit(127)


def _foreign(namespaces: Sequence[int]) -> list[int]:
    """Return the kinds of namespaces, 0 for those that we are in ourselves, which nobody has to enter, or may."""
    kinds: list[int] = []
    for (name, kind), descriptor in zip(NAMESPACES.items(), namespaces, strict=True):
        ours = os.stat(f"/proc/self/ns/{name}")
        kinds.append(0 if os.path.samestat(ours, os.fstat(descriptor)) else kind)
    return kinds


def _born(tracee: Tracee, context: Context, order: Mapping[str, Any], namespaces: Mapping[int, int]) -> Shadow:
    """Have the program itself be born where its shadow's children are, confined, and go on as the context says.

    `namespaces` are the kinds of those that it has to enter, by their descriptors, and it has none below.
    """
    program = _brought_forth(tracee, next(iter(namespaces)))
    try:
        for descriptor, kind in namespaces.items():
            if kind not in (0, syscalls.CLONE_NEWPID):
                program.call("setns", descriptor, kind)
        lowest = min(namespaces)
        program.call("close_range", 0 if lowest == _HANDED_FROM else lowest, max(namespaces), 0)
        _confine(program, context, order)
        program.go_on_as(context)
        program.let_go()
    except BaseException:
        kill(program.pid)
        raise
    return Shadow(tracee=tracee, program=program.pid)


def _brought_forth(tracee: Tracee, inside: int) -> Tracee:
    """Return what is born into the PID namespace of a descriptor and shares a shadow's memory.

    Not as the shadow's own child: an ordinary user's could not go back to having children here.
    """
    midwife = tracee.clone(_SHARED)
    try:
        midwife.call("setns", inside, syscalls.CLONE_NEWPID)
        return midwife.clone(_SHARED)
    finally:
        kill(midwife.pid)


def _confine(program: Tracee, context: Context, order: Mapping[str, Any]) -> None:
    """As `lockdown` does."""
    space = _Space(program, context)
    program.call("setsid")
    _empty_bounding_set(program)
    if order["own"] is not None:
        uid, gid = order["own"]
        program.call("setresgid", gid, gid, gid)
        program.call("setresuid", uid, uid, uid)
    program.call("prctl", syscalls.PR_SET_NO_NEW_PRIVS, 1)
    empty = space.put(_NO_CAPABILITIES)
    program.call("capset", empty, empty + 8)
    program.call("prctl", syscalls.PR_SET_DUMPABLE, 1)
    if order["scopes"]:
        rules = syscalls.scoping(order["scopes"])
        ruleset = program.call("landlock_create_ruleset", space.put(rules), len(rules), 0)
        program.call("landlock_restrict_self", ruleset, 0)
        program.call("close_range", ruleset, ruleset, 0)
    if context.tid:
        program.poke(context.tid, struct.pack("=i", program.call("set_tid_address", context.tid)))
    if context.rseq is not None:
        address, size, signature = context.rseq
        with suppress(OSError):  # then it asks the kernel on which CPU it is
            program.call("rseq", address, size, 0, signature)
    if order["seccomp"]:
        filter_ = base64.b64decode(order["seccomp"])
        header = struct.pack("@HxxxxxxP", len(filter_) // 8, space.put(filter_))
        program.call("prctl", syscalls.PR_SET_SECCOMP, syscalls.SECCOMP_MODE_FILTER, space.put(header))


def _empty_bounding_set(program: Tracee) -> None:
    """Who enters a user namespace has a full one again, whatever it had before."""
    for capability in range(syscalls.LAST_CAPABILITY):
        try:
            program.call("prctl", syscalls.PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return  # past the kernel's last one
            raise


class _Space:
    """Memory of a stopped program that it does not use: below its stack."""

    def __init__(self, tracee: Tracee, context: Context) -> None:
        self._tracee = tracee
        self._end = context.stack - _BELOW_STACK

    def put(self, content: bytes) -> int:
        """Write something there; return its address."""
        self._end = (self._end - len(content)) & ~0xF
        self._tracee.poke(self._end, content)
        return self._end


def go_home(shadow: Shadow) -> None:
    """Take a shadow out of the sandbox's file tree, which it would hold, and close its descriptors."""
    tracee = shadow.tracee
    with patience(_OBEYS_S):
        home = tracee.call("pidfd_open", os.getpid())
        tracee.call("setns", home, syscalls.CLONE_NEWNS)
        tracee.call("close_range", 0, _LARGEST_DESCRIPTOR, 0)


# ---------------------------------------------------------------- keeping


def keep(shadow: Shadow | None, program: Tracee, on_stands: Callable[[], None]) -> Image | list[str] | OSError:
    """Keep a program that is on its way to a `fork()` of its own, which is prevented; let it go on, untraced.

    `on_stands` is called when it is there, and what is to be copied changes no more.

    Returns:
        Its image; or the names of its threads besides the first, which no fork has; or why its memory cannot be copied.

    Raises:
        OSError: It does not fork, and nobody knows where it stands.
    """
    with patience(_OBEYS_S):
        context = program.run_to_fork()
    kept = _copied(shadow, program, context, on_stands)
    with patience(_OBEYS_S):
        program.skip_fork(_BELIEVED_PID if isinstance(kept, Image) else None)
        program.let_go()
    return kept


def _copied(
    shadow: Shadow | None, program: Tracee, context: Context, on_stands: Callable[[], None]
) -> Image | list[str] | OSError:
    threads = _threads(program.pid)
    if threads:
        return threads
    if shadow is None:
        return OSError(errno.ECHILD, "what would have kept it was killed")
    on_stands()
    try:
        with patience(_OBEYS_S):
            image = Image(tracee=shadow.tracee.clone(_COPIED), context=context)
            commands.weigh(image.tracee.pid, is_kept=True)
            return image
    except OSError as error:
        kill(shadow.tracee.pid)  # it does not do as it is told
        return error


def _threads(pid: int) -> list[str]:
    names: list[str] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        if int(thread) != pid:
            with open(f"/proc/{pid}/task/{thread}/comm", errors="replace") as name:
                names.append(name.read().rstrip("\n"))
    return names


def revive(image: Image, order: Mapping[str, Any], namespaces: Sequence[int], descriptors: Sequence[int]) -> Shadow:
    """Let a copy of an image go on in a sandbox; the image stays. Arguments as for `start`.

    It begins in the control groups that the image is in, but in its sandbox's where memory is counted (`order["counted_in"]`). Its descriptors are `_REVIVED_FROM` higher than the program had them; it has no others.

    Raises:
        OSError: It cannot.
    """
    with patience(_OBEYS_S):
        tracee = image.tracee.clone(_COPIED)
        try:
            commands.weigh(tracee.pid, is_kept=False)
            limits = resource.prlimit(tracee.pid, commands.RLIMIT_LOCKS)
            resource.prlimit(tracee.pid, commands.RLIMIT_LOCKS, (order["mark"], limits[1]))
            _have_join(tracee, image.context, order["counted_in"])
            _hand_over(tracee, image.context, [*namespaces, *descriptors])
            return _born(tracee, image.context, order, dict(enumerate(_foreign(namespaces), _HANDED_FROM)))
        except BaseException:
            kill(tracee.pid)
            raise


def _have_join(tracee: Tracee, context: Context, groups: Sequence[str]) -> None:
    """Have a process join control groups itself: nobody has to wait for that in version 1; see `join_alone`."""
    space = _Space(tracee, context)
    itself = space.put(b"0")
    for group in groups:
        path = space.put(os.fsencode(_list_of_members(group)) + b"\0")
        members = tracee.call("openat", _FROM_FOLDER, path, os.O_WRONLY)
        tracee.call("write", members, itself, 1)
        tracee.call("close_range", members, members, 0)


def _hand_over(tracee: Tracee, context: Context, descriptors: Sequence[int]) -> None:
    """Give a process that has no descriptors these, from `_HANDED_FROM` on; before them are one of ours and a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        rights = array.array("i", descriptors)
        ours.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        home = tracee.call("pidfd_open", os.getpid())
        sock = tracee.call("pidfd_getfd", home, theirs.fileno(), 0)
    space = _Space(tracee, context)
    room = socket.CMSG_SPACE(len(rights) * rights.itemsize)
    content, ancillary = space.put(b"\0" * 16), space.put(b"\0" * room)
    vector = space.put(_VECTOR.pack(content, 16))
    tracee.call("recvmsg", sock, space.put(_MESSAGE.pack(0, 0, vector, 1, ancillary, room, 0)), 0)
    got = array.array("i", tracee.peek(ancillary + socket.CMSG_LEN(0), len(rights) * rights.itemsize)).tolist()
    if [home, sock, *got] != list(range(_HANDED_FROM + len(rights))):
        raise OSError(errno.EBADF, "an image has descriptors")


def join(pid: int, groups: Sequence[str]) -> None:
    """Move a process to control groups, given their folders.

    Raises:
        OSError: It, or a group, is gone.
    """
    for group in groups:
        with open(group + "/cgroup.procs", "w") as members:
            members.write(str(pid))


def join_alone(groups: Sequence[str]) -> None:
    """Join control groups as a process of one thread, which nobody has to wait for in version 1.

    Raises:
        OSError: One is gone.
    """
    for group in groups:
        with open(_list_of_members(group), "w") as members:
            members.write("0")


def _list_of_members(group: str) -> str:
    tasks = group + "/tasks"
    return tasks if os.path.exists(tasks) else group + "/cgroup.procs"


def kill(pid: int) -> None:
    """Kill a process, whatever has become of it."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
