"""Having a stopped process make system calls for us, and its registers and memory changed (ptrace).

A process that is traced here stands, except for the moment of a system call that it is told
to make. It makes it by an instruction that the kernel itself has mapped into every process (the
vDSO has one). Others may share its memory, and have replaced that instruction: so no call is
let through that is not the one that was ordered, and whatever else it may run then, it runs
without the kernel.

Linux 5.3 or newer, on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from headstart.backends.spawner.guest.syscalls import MACHINE

__all__ = ["CALLS", "ORIGINS", "Context", "Tracee", "is_possible", "patience"]

_CONT, _DETACH, _SYSCALL = 7, 17, 24
_GETEVENTMSG, _GETREGSET, _SETREGSET = 0x4201, 0x4204, 0x4205
_SEIZE, _INTERRUPT, _LISTEN, _GETSIGMASK, _SETSIGMASK = 0x4206, 0x4207, 0x4208, 0x420A, 0x420B
_SYSCALL_INFO, _RSEQ = 0x420E, 0x420F
_SYSGOOD, _FORKS, _EXECS, _EXITKILL = 0x1, 0x2 | 0x4 | 0x8, 0x10, 0x100000
_EVENT_FORKS, _EVENT_EXEC, _EVENT_STOP = (1, 2, 3), 4, 128
_AT_CALL = signal.SIGTRAP | 0x80
_ENTRY, _EXIT = 1, 2
_WALL = 0x40000000
_PRSTATUS, _PRFPREG, _X86_XSTATE, _ARM_TLS, _ARM_CALL = 1, 2, 0x202, 0x401, 0x404
_LARGEST_REGISTERS = 1 << 16
_MOST_STOPS = 1000
_NO_CALL = (1 << 64) - 1
_MINUS_EAGAIN = (1 << 64) - errno.EAGAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """How a machine's calls look: numbers of 64-bit registers in `NT_PRSTATUS`, in order."""

    abi: int
    count: int
    instruction: bytes
    at: int
    number: int
    arguments: tuple[int, ...]
    result: int
    ordered: int | None
    """Where the number of a call that is being made is; else it is in a set of its own."""
    more: tuple[int, ...]
    """Further sets of registers that a program's state is in."""


_MACHINES = {
    "x86_64": _Machine(
        abi=0xC000003E,
        count=27,
        instruction=b"\x0f\x05",
        at=16,
        number=10,
        arguments=(14, 13, 12, 7, 9, 8),
        result=10,
        ordered=15,
        more=(_X86_XSTATE,),
    ),
    "aarch64": _Machine(
        abi=0xC00000B7,
        count=34,
        instruction=b"\x01\x00\x00\xd4",
        at=32,
        number=8,
        arguments=(0, 1, 2, 3, 4, 5),
        result=0,
        ordered=None,
        more=(_PRFPREG, _ARM_TLS),
    ),
}
_MACHINE = _MACHINES.get(MACHINE)

CALLS: dict[str, int] = {
    name: numbers[MACHINE != "x86_64"]
    for name, numbers in {
        "clone": (56, 220),
        "capset": (126, 91),
        "close_range": (436, 436),
        "landlock_create_ruleset": (444, 444),
        "landlock_restrict_self": (446, 446),
        "openat": (257, 56),
        "pidfd_getfd": (438, 438),
        "pidfd_open": (434, 434),
        "prctl": (157, 167),
        "recvmsg": (47, 212),
        "rseq": (334, 293),
        "set_tid_address": (218, 96),
        "setns": (308, 268),
        "setresgid": (119, 149),
        "setresuid": (117, 147),
        "setsid": (112, 157),
        "write": (1, 64),
    }.items()
}
"""Numbers of the calls that can be ordered."""

ORIGINS = {56, 57, 58, 435} if MACHINE == "x86_64" else {220, 435}
"""Numbers of the calls that make a process."""

_TID_ARGUMENT = 3 if MACHINE == "x86_64" else 4
_SETS_TID = 0x01000000

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class _Region(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def is_possible() -> bool:
    """Whether this machine's registers are known here."""
    return _MACHINE is not None


def _this_machine() -> _Machine:
    if _MACHINE is None:
        raise OSError(errno.ENOSYS, f"programs cannot be traced on {MACHINE}")
    return _MACHINE


def _request(what: int, pid: int, address: int = 0, data: int = 0) -> int:
    result = int(_ptrace(what, pid, address, data))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace({what:#x}) of {pid}: {os.strerror(number)}")
    return result


@contextmanager
def patience(seconds: float) -> Generator[None, None, None]:
    """Raise `TimeoutError` in the block when it takes longer: who is traced may never stop again."""

    def give_up(number: int, frame: object) -> None:  # noqa: ARG001 what a handler gets
        raise TimeoutError(errno.ETIMEDOUT, "a traced process does not stop")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a stopped program would go on with, besides its memory.

    Attributes:
        registers: `NT_PRSTATUS`.
        more: Further sets, by number.
        blocked: The signals that it blocks, as a mask.
        rseq: Its restartable sequences: address, size and signature; None if it has none.
        tid: Where it wants its thread id written, or 0.
    """

    registers: tuple[int, ...]
    more: dict[int, bytes]
    blocked: int = 0
    rseq: tuple[int, int, int] | None = None
    tid: int = 0

    @property
    def stack(self) -> int:
        """The address of its stack's end; below is free, from a small distance on."""
        return self.registers[19 if MACHINE == "x86_64" else 31]


class Tracee:
    """A process that is traced by this one, from `seize` (or, as a child of one, from the beginning) to `let_go`.

    Every method but `interrupt` wants it to be stopped, and leaves it so. All may raise `OSError`; `ESRCH`: it has ended.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._instruction = 0

    @classmethod
    def seize(cls, pid: int) -> Tracee:
        """Trace a process, which goes on. It is killed when this one ends."""
        _request(_SEIZE, pid, 0, _SYSGOOD | _FORKS | _EXECS | _EXITKILL)
        return cls(pid)

    def let_go(self) -> None:
        """Trace it no more; it goes on."""
        _request(_DETACH, self.pid)

    def interrupt(self) -> None:
        """Stop it, wherever it is."""
        _request(_INTERRUPT, self.pid)
        self.await_stop(_EVENT_STOP)

    def pass_by(self, status: int) -> None:
        """Let it go on from a stop, of this status, that is none of our business."""
        if status >> 16 == _EVENT_STOP and os.WSTOPSIG(status) != signal.SIGTRAP:
            _request(_LISTEN, self.pid)  # somebody has it stand still
        else:
            _request(_CONT, self.pid, 0, _signal_of(status))

    def await_exec(self) -> None:
        """Return when it has become another program, of which nothing has run yet.

        Raises:
            OSError: `ECHILD`: it has ended instead.
        """
        self.await_stop(_EVENT_EXEC)
        self._run_to_call(_EXIT)

    def await_stop(self, event: int) -> None:
        """Return when it is stopped by this event; others pass."""
        for _ in range(_MOST_STOPS):
            status = self._wait()
            if status >> 16 == event:
                return
            self.pass_by(status)
        raise OSError(errno.EBUSY, f"{self.pid} does not come to what is waited for")

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, _WALL)
        if not os.WIFSTOPPED(status):
            raise ChildProcessError(errno.ECHILD, f"{self.pid} has ended")
        return status

    # ------------------------------------------------------------ registers and memory

    def context(self) -> Context:
        """Return what it would go on with."""
        return Context(registers=self._registers(), more={kind: self._read(kind) for kind in _this_machine().more})

    def go_on_as(self, context: Context) -> None:
        """Have it go on there once it goes on. It must have come to the end of a call."""
        for kind, content in context.more.items():
            self._write(kind, content)
        self._set_registers(list(context.registers), call=_NO_CALL)
        blocked = ctypes.c_uint64(context.blocked)
        _request(_SETSIGMASK, self.pid, ctypes.sizeof(blocked), ctypes.addressof(blocked))

    def poke(self, address: int, content: bytes) -> None:
        """Write into its memory, also where it may not write itself."""
        with open(f"/proc/{self.pid}/mem", "r+b", buffering=0) as memory:
            memory.seek(address)
            memory.write(content)

    def peek(self, address: int, length: int) -> bytes:
        """Read its memory."""
        with open(f"/proc/{self.pid}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(length)

    def _registers(self) -> tuple[int, ...]:
        machine = _this_machine()
        return struct.unpack(f"={machine.count}Q", self._read(_PRSTATUS, machine.count * 8))

    def _set_registers(self, values: list[int], *, call: int) -> None:
        machine = _this_machine()
        if machine.ordered is not None:
            values[machine.ordered] = call
        self._write(_PRSTATUS, struct.pack(f"={machine.count}Q", *values))
        if machine.ordered is None:
            self._write(_ARM_CALL, struct.pack("=i", -1 if call == _NO_CALL else call))

    def _read(self, kind: int, most_bytes: int = _LARGEST_REGISTERS) -> bytes:
        content = ctypes.create_string_buffer(most_bytes)
        region = _Region(ctypes.addressof(content), most_bytes)
        _request(_GETREGSET, self.pid, kind, ctypes.addressof(region))
        return content.raw[: region.length]

    def _write(self, kind: int, content: bytes) -> None:
        buffer = ctypes.create_string_buffer(content, len(content))
        region = _Region(ctypes.addressof(buffer), len(content))
        _request(_SETREGSET, self.pid, kind, ctypes.addressof(region))

    # ------------------------------------------------------------ calls

    def call(self, name: str, *arguments: int) -> int:
        """Have it make a system call; return what comes of it. Its registers are not what they were then.

        Raises:
            OSError: The call fails; or `EPERM`: it would have made another.
        """
        return self._call(name, arguments)[0]

    def clone(self, flags: int) -> Tracee:
        """Have it make a process, which is traced as well and stopped before it has done anything."""
        _, pid = self._call("clone", (flags, 0, 0, 0, 0))
        if pid is None:
            raise OSError(errno.EPERM, f"{self.pid} has made no process that is traced")
        child = Tracee(pid)
        child._instruction = self._instruction
        child.await_stop(_EVENT_STOP)
        return child

    def _call(self, name: str, arguments: tuple[int, ...]) -> tuple[int, int | None]:
        machine, number = _this_machine(), CALLS[name]
        values = list(self._registers())
        values[machine.at] = self._find_instruction()
        given = (*arguments, *([0] * (len(machine.arguments) - len(arguments))))
        for index, value in zip(machine.arguments, given, strict=True):
            values[index] = value % (1 << 64)
        values[machine.number] = number
        self._set_registers(values, call=_NO_CALL)
        if self._run_to_call() == _EXIT:  # of what it was at before
            self._set_registers(values, call=_NO_CALL)
            self._run_to_call()
        kind, abi, told = self._at_call()
        ordered = (number, *(value % (1 << 64) for value in given))
        if (kind, abi, told) != (_ENTRY, machine.abi, ordered):
            raise PermissionError(errno.EPERM, f"{self.pid} makes another call than it was told to")
        made = self._run_through_call()
        result = struct.unpack("=q", struct.pack("=Q", self._at_call()[2][0]))[0]
        if result < 0:
            raise OSError(-result, f"{name}: {os.strerror(-result)}")
        return result, made

    def _run_through_call(self) -> int | None:
        """Run to the end of the call that is being made; return the pid of a process that was made by it."""
        made: int | None = None
        for _ in range(_MOST_STOPS):
            _request(_SYSCALL, self.pid)
            status = self._wait()
            if os.WSTOPSIG(status) == _AT_CALL:
                return made
            if status >> 16 in _EVENT_FORKS:
                told = ctypes.c_ulong()
                _request(_GETEVENTMSG, self.pid, 0, ctypes.addressof(told))
                made = told.value
        raise OSError(errno.EBUSY, f"{self.pid} does not come to the end of a call")

    def _run_to_call(self, kind: int | None = None) -> int:
        """Run to the next beginning or end of a call; signals are put off, for good."""
        for _ in range(_MOST_STOPS):
            _request(_SYSCALL, self.pid)
            if os.WSTOPSIG(self._wait()) == _AT_CALL:
                found = self._at_call()[0]
                if kind in (None, found):
                    return found
        raise OSError(errno.EBUSY, f"{self.pid} makes no call")

    def _at_call(self) -> tuple[int, int, tuple[int, ...]]:
        """Return whether a call begins or ends here, its ABI, and (number and arguments) or (result, …)."""
        facts = ctypes.create_string_buffer(96)
        _request(_SYSCALL_INFO, self.pid, len(facts), ctypes.addressof(facts))
        kind, abi = struct.unpack_from("=BxxxI", facts.raw)
        return kind, abi, struct.unpack_from("=7Q", facts.raw, 24)

    def _find_instruction(self) -> int:
        if not self._instruction:
            start, end = _vdso(self.pid)
            offset = self.peek(start, end - start).find(_this_machine().instruction)
            if offset < 0:
                raise OSError(errno.ENOSYS, "the kernel's own code has no system call in it")
            self._instruction = start + offset
        return self._instruction

    # ------------------------------------------------------------ forks of its own

    def run_to_fork(self) -> Context:
        """Let it go on until it is about to make a process; return what that would go on with.

        Raises:
            OSError: `EBUSY`: it does something else for too long.
        """
        machine = _this_machine()
        for _ in range(_MOST_STOPS):
            self._run_to_call(_ENTRY)
            _, abi, (number, *arguments) = self._at_call()
            if abi == machine.abi and number in ORIGINS:
                return self._context_of_fork(tuple(arguments))
        raise OSError(errno.EBUSY, f"{self.pid} does not fork")

    def _context_of_fork(self, arguments: tuple[int, ...]) -> Context:
        machine, now = _this_machine(), self.context()
        values = list(now.registers)
        values[machine.result] = 0
        blocked = ctypes.c_uint64()
        _request(_GETSIGMASK, self.pid, ctypes.sizeof(blocked), ctypes.addressof(blocked))
        return Context(
            registers=tuple(values),
            more=now.more,
            blocked=blocked.value,
            rseq=self._rseq(),
            tid=arguments[_TID_ARGUMENT] if arguments[0] & _SETS_TID else 0,
        )

    def _rseq(self) -> tuple[int, int, int] | None:
        facts = ctypes.create_string_buffer(24)
        try:
            _request(_RSEQ, self.pid, len(facts), ctypes.addressof(facts))
        except OSError as error:
            if error.errno in (errno.EIO, errno.EINVAL):  # before Linux 5.13
                return None
            raise
        address, size, signature = struct.unpack_from("=QII", facts.raw)
        return (address, size, signature) if address else None

    def skip_fork(self, pid: int | None) -> None:
        """At `run_to_fork`: have it believe that it has made a process with this pid (None: that it could not)."""
        values = list(self._registers())
        self._set_registers(values, call=_NO_CALL)
        self._run_to_call(_EXIT)
        values[_this_machine().result] = _MINUS_EAGAIN if pid is None else pid
        self._set_registers(values, call=_NO_CALL)


def _signal_of(status: int) -> int:
    """Return the signal that a stopped process is to get, 0 if it is stopped for another reason."""
    return 0 if status >> 16 or os.WSTOPSIG(status) == _AT_CALL else os.WSTOPSIG(status)


def _vdso(pid: int) -> tuple[int, int]:
    with open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            if line.endswith(b"[vdso]\n"):
                start, _, end = line.split()[0].partition(b"-")
                return int(start, 16), int(end, 16)
    raise OSError(errno.ENOSYS, "the kernel maps no code of its own into programs")
