"""The Python kernel: one process that runs cells of code, one after the other, and keeps their state.

It runs inside a sandbox, on whatever Python (3.8 or newer) is there, and is handed over as text.
It has one thread, its own. As it is started, its descriptors are:

    0   requests: JSON, then a NUL byte: `{"number", "code"}`
    3   results: the number, a space, JSON, a NUL byte: `{"text", "error", "cut"}`; before, when user code
        begins to run, and can be interrupted, the same with "+" instead of JSON
    4 5 what becomes its 1 and 2, which user code and what that starts write to directly

Requests and results move out of the way, above 100, where neither children nor code that closes
"all" of the usual descriptors find them; 0 becomes /dev/null. A kernel that cannot answer any more
exits: its end is what the other side sees then.

SIGINT does something only while user code runs. A fork of user code that gets to the end of its
cell ends there: there is one kernel.

A request `{"number", "fork"}` asks for its state to be kept, and is answered with `{"held", "unseeded"}`: what it
has that a fork would not have, and what draws the same random numbers there as here. "fork" is the text of
`reseed`, and so is `{"seeding"}`, which asks for other random numbers from then on: it is ready again then. If that is nothing, it sends itself SIGTRAP and forks. Whoever traces
it takes the fork away, and lets it go on elsewhere, any number of times, as if it had just been
started: with all descriptors that are listed above, nine higher, and no others.
"""

# User code may raise anything, and close anything; and what it runs in imports little.
# ruff: noqa: BLE001, PLC0415, S102, PTH115, PTH123, PTH208, S110, S307, SIM105, SIM115

from __future__ import annotations
import __future__

import ast
import builtins
import fcntl
import gc
import json
import linecache
import os
import resource
import signal
import sys
import traceback
import types
from functools import partial

TYPE_CHECKING = False  # `typing` takes longer to import than all of the above
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from types import FrameType, TracebackType
    from typing import Any, NoReturn

_OURS_FROM = 100
_REVIVED_FROM = 9
_KEPT = 0x7FFFFFFF
"""What fork() returns if somebody has taken the fork away."""
_CHUNK_BYTES = 1 << 16
_LONGEST_TEXT = 1 << 20
_LONGEST_REPORT = 1 << 16
"""The longest value and error that are told, in characters."""
_SOURCES_KEPT = 1 << 22
"""Characters of past cells that tracebacks can show."""
_SOURCE_OVERHEAD = 1 << 10
_COROUTINE = 0x80
_CANNOT_ANSWER = 70

_THIS_FILE = (lambda: 0).__code__.co_filename
_FEATURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})

_close, _dup2, _exit, _fstat = os.close, os.dup2, os._exit, os.fstat
_fork, _getpid, _kill, _read, _write = os.fork, os.getpid, os.kill, os.read, os.write
_chdir, _getcwd, _umask, _waitpid = os.chdir, os.getcwd, os.umask, os.waitpid
_getitimer, _setitimer = signal.getitimer, signal.setitimer
_dumps, _loads = json.dumps, json.loads
"""As they are now, whatever cells do to these modules."""


class _Channel:
    """A descriptor out of the way of user code."""

    def __init__(self, descriptor: int) -> None:
        self.number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _OURS_FROM)
        _close(descriptor)
        self._is = self._identity()
        self._rest = b""

    def _identity(self) -> tuple[int, int]:
        facts = _fstat(self.number)
        return facts.st_dev, facts.st_ino

    def receive(self) -> bytes:
        """Return what is before the next NUL; exit when there will be none."""
        parts = [self._rest]
        while b"\0" not in parts[-1]:
            chunk = _read(self.number, _CHUNK_BYTES)
            if not chunk:
                _exit(0)
            parts.append(chunk)
        last, _, self._rest = parts[-1].partition(b"\0")
        return b"".join([*parts[:-1], last])

    def send(self, data: bytes) -> None:
        """Send all; exit if that is impossible."""
        try:
            if self._identity() != self._is:  # closed, and the number is another file's by now
                _exit(_CANNOT_ANSWER)
            while data:
                data = data[_write(self.number, data) :]
        except OSError:
            _exit(_CANNOT_ANSWER)

    @property
    def is_open(self) -> bool:
        try:
            return self._identity() == self._is
        except OSError:
            return False  # user code has closed it

    def forget(self) -> None:
        if self.is_open:
            _close(self.number)


class _Stdio:
    """0, 1 and 2 of the kernel, which cells may close and the next one finds again."""

    def __init__(self) -> None:
        for number in (1, 2):
            _dup2(number + 3, number)
            _close(number + 3)
        nothing = os.open("/dev/null", os.O_RDWR)
        if nothing != 0:
            _dup2(nothing, 0)
            _close(nothing)
        os.set_inheritable(0, True)  # noqa: FBT003 it has no name
        self.spares = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _OURS_FROM) for number in range(3)]
        streams: Any = (sys.stdout, sys.stderr)
        for stream in streams:
            stream.reconfigure(line_buffering=True)

    def flush(self) -> None:
        streams: Any = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        for stream in streams:
            try:
                stream.flush()
            except Exception:  # closed, or no stream at all: its own business
                pass

    def mend(self) -> None:
        """Open again what is closed."""
        for number, spare in enumerate(self.spares):
            try:
                _fstat(number)
            except OSError:
                _dup2(spare, number)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            if getattr(getattr(sys, name, None), "closed", True):
                stream = open(number, "w" if number else "r", 1, errors="backslashreplace", closefd=False)
                setattr(sys, name, stream)


class Kernel:
    """Takes requests and answers them until there are no more.

    Attributes:
        namespace: What cells share: the contents of a module that is called `__main__`.
    """

    def __init__(self) -> None:
        self._take_descriptors()
        self._forks = False
        self._folder = ""
        """Where cells are, while it has left there to be kept; "" if it has not."""
        self._settings: list[Any] = []
        """The values of `_SETTINGS` that cells have left behind, until they are here, too; [] if they are."""
        self._on_interrupt: Any = signal.default_int_handler
        self._loop: asyncio.AbstractEventLoop | None = None
        self._functions: dict[str, dict[str, Any]] = {}
        self._future = 0
        self._sources: list[tuple[int, str]] = []
        self._sources_size = 0
        module = types.ModuleType("__main__")
        module.__dict__["__builtins__"] = builtins
        self.namespace = module.__dict__
        sys.modules["__main__"] = module
        sys.argv = [""]
        os.register_at_fork(after_in_child=self._let_go)

    def _take_descriptors(self) -> None:
        self._requests, self._results = _Channel(0), _Channel(3)
        self._stdio = _Stdio()
        self._pid = _getpid()

    def serve(self) -> NoReturn:
        """Never return."""
        signal.signal(signal.SIGINT, _do_nothing)
        gc.freeze()
        self._results.send(b"0 \0")
        while True:
            request = _loads(self._requests.receive())
            if "fork" in request:
                self._be_kept(request["number"], self._functions_in(request["fork"]))
                continue
            if "seeding" in request:
                self._functions_in(request["seeding"])["reseed"]()
                self._results.send(b"0 \0")
                continue
            answer: dict[str, Any] = {"text": None, "error": None, "cut": False}
            try:
                self._run(request["number"], request["code"], answer)
            except BaseException as error:  # an interrupt in the last moment
                _silence()
                answer["error"] = answer["error"] or _told(error)
            self._end_fork(answer["error"])
            try:
                self._stdio.mend()
            except OSError:
                _exit(_CANNOT_ANSWER)  # the spares were closed as well
            self._results.send(b"%d %s\0" % (request["number"], _dumps(answer).encode()))
            del request, answer

    def _let_go(self) -> None:
        if self._forks and not self._results.is_open:
            return  # it goes on elsewhere
        self._requests.forget()
        self._results.forget()
        if self._forks:
            _exit(0)  # nobody has taken it away

    def _functions_in(self, text: str) -> dict[str, Any]:
        """Return what a text defines, which is compiled once: it is always the same one."""
        if text not in self._functions:
            functions: dict[str, Any] = {}
            exec(compile(text, "<headstart reseed>", "exec", dont_inherit=True), functions)
            self._functions = {text: functions}
        return self._functions[text]

    def _be_kept(self, number: int, seeding: dict[str, Any]) -> None:
        """Tell what a fork would not have; if that is nothing, fork, for whoever traces this, who tells what comes of it."""
        self._stdio.flush()
        held = [*self._tasks(), *_threads(), *self._open_descriptors(), *_shared_memory(), *_timers()]
        held = held or self._leave_folder()
        told = {"held": held, "unseeded": seeding["unseeded"]()}
        self._results.send(b"%d %s\0" % (number, _dumps(told).encode()))
        if not held:
            self._fork(seeding["hold"]())

    def _leave_folder(self) -> list[str]:
        try:
            self._folder = self._folder or _getcwd()
            _chdir("/")
        except OSError as error:
            return [f"a working folder that is gone ({error.strerror})"]
        return []

    def _fork(self, go_on_drawing: Callable[[], None]) -> None:
        self._forks = True
        settings = self._settings or [read() for _, read, _ in _SETTINGS]
        at_trap = signal.signal(signal.SIGTRAP, signal.SIG_IGN)  # who traces sees it all the same
        try:
            _kill(_getpid(), signal.SIGTRAP)
            child = _fork()
        except BaseException:  # it has more threads than Python knows, say
            return
        finally:
            signal.signal(signal.SIGTRAP, at_trap)
            self._forks = False
        if child == 0:
            go_on_drawing()
            self._settings = settings
            self._go_on()
        elif child != _KEPT:  # nobody has taken it away
            _waitpid(child, 0)

    def _go_on(self) -> None:
        """As a fork that goes on elsewhere: have everything again that a kernel has when it is started."""
        for number in range(6):
            _dup2(number + _REVIVED_FROM, number)
            _close(number + _REVIVED_FROM)
        self._take_descriptors()
        self._results.send(b"0 \0")

    def _come_back(self) -> None:
        """Go where cells are, and be as they were."""
        settings, self._settings = self._settings, []
        for (name, read, write), value in zip(_SETTINGS, settings):  # noqa: B905 not before 3.10
            try:
                if read() != value:
                    write(value)
            except (OSError, ValueError) as error:
                sys.stderr.write(f"headstart: {name} cannot be {value} here ({error})\n")
        folder, self._folder = self._folder, ""
        if folder:
            try:
                _chdir(folder)
            except OSError as error:
                sys.stderr.write(f"headstart: the working folder {folder} is gone ({error.strerror}); this is /\n")

    def _tasks(self) -> list[str]:
        """Return what the event loop of cells is still at; close one that is at nothing."""
        if self._loop is None or self._loop.is_closed():
            return []
        import asyncio

        tasks = asyncio.all_tasks(self._loop)
        if not tasks:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
        return [f"the asyncio task {task.get_name()}" for task in tasks]

    def _open_descriptors(self) -> list[str]:
        ours = {0, 1, 2, self._requests.number, self._results.number, *self._stdio.spares}
        held: list[str] = []
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in ours:
                try:
                    held.append(f"open: {os.readlink('/proc/self/fd/' + name)} (descriptor {name})")
                except OSError:
                    pass  # the listing's own
        return held

    def _end_fork(self, error: dict[str, str] | None) -> None:
        """A fork of user code goes no further than its cell."""
        if _getpid() != self._pid:
            if error and error["type"] != "SystemExit":
                sys.stderr.write(error["traceback"])
            self._stdio.flush()
            _exit(_exit_code(error))

    def _run(self, number: int, code: str, answer: dict[str, Any]) -> None:
        try:
            signal.signal(signal.SIGINT, self._on_interrupt)
            try:
                self._results.send(b"%d +\0" % number)
                self._come_back()
                self._execute(f"<cell {number}>", code, answer)
            except BaseException as error:
                answer["error"] = _told(error)
            self._stdio.flush()
        except BaseException as error:  # interrupted while it told or flushed
            answer["error"] = answer["error"] or _told(error)
        finally:
            self._on_interrupt = _silence()

    def _execute(self, name: str, code: str, answer: dict[str, Any]) -> None:
        self._remember(name, code)
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | self._future
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | flags, dont_inherit=True)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        parts: list[Any] = [compile(tree, name, "exec", flags, dont_inherit=True)]
        self._future |= parts[0].co_flags & _FEATURES
        if last is not None:
            flags |= self._future
            parts.append(compile(ast.Expression(last.value), name, "eval", flags, dont_inherit=True))
        del tree, last
        value = self._evaluate(parts)
        if value is not None:
            builtins.__dict__["_"] = value
            answer["text"], answer["cut"] = _cut(repr(value), _LONGEST_TEXT)

    def _evaluate(self, parts: list[Any]) -> Any:
        """Evaluate a cell's statements and its last expression; in the event loop, if there is an `await`."""
        if any(part.co_flags & _COROUTINE for part in parts):
            return self._wait_for(self._evaluate_in_loop(parts))
        value = None
        for part in parts:
            value = eval(part, self.namespace)
        return value

    async def _evaluate_in_loop(self, parts: list[Any]) -> Any:
        value = None
        for part in parts:
            value = eval(part, self.namespace)
            if part.co_flags & _COROUTINE:
                value = await value
        return value

    def _wait_for(self, coroutine: Any) -> Any:
        import asyncio

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        task = self._loop.create_task(coroutine)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # interrupted
                task.cancel()
                self._loop.run_until_complete(asyncio.wait([task]))
            if not task.cancelled():
                task.exception()  # it is told here
            raise

    def _remember(self, name: str, code: str) -> None:
        """Let tracebacks show the cell's lines, and forget old ones."""
        size = len(code) + _SOURCE_OVERHEAD
        if size > _SOURCES_KEPT:
            return
        self._sources.append((size, name))
        self._sources_size += size
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        while self._sources_size > _SOURCES_KEPT:
            size, name = self._sources.pop(0)
            self._sources_size -= size
            linecache.cache.pop(name, None)


def _threads() -> list[str]:
    threading = sys.modules.get("threading")
    if threading is None:
        return []
    return [f"the thread {each.name}" for each in threading.enumerate() if each is not threading.current_thread()]


def _shared_memory() -> list[str]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        fields = [line.split(None, 5) for line in maps]
    shared = [
        each[5].rstrip("\n") if len(each) > 5 else "anonymous"
        for each in fields
        if each[1][1] == "w" and each[1][3] == "s"
    ]
    return [f"shared memory: {path}" for path in dict.fromkeys(shared)]


def _timers() -> list[str]:
    """Return what `timer_create` has made; those of `setitimer` are among `_SETTINGS`."""
    try:
        with open("/proc/self/timers", encoding="utf-8") as timers:
            return [f"the POSIX timer {line[3:].strip()}" for line in timers if line.startswith("ID:")]
    except OSError:
        return []  # a kernel that does not tell


def _read_umask() -> int:
    mask = _umask(0o077)
    _umask(mask)
    return mask


def _read_name() -> bytes:
    with open("/proc/self/comm", "rb") as name:
        return name.read().rstrip(b"\n")


def _write_name(name: bytes) -> None:
    with open("/proc/self/comm", "wb") as file:
        file.write(name)


def _set_timer(which: int, times: tuple[float, float]) -> None:
    _setitimer(which, *times)


_SETTINGS: list[tuple[str, Callable[[], Any], Callable[[Any], Any]]] = [
    ("the umask", _read_umask, _umask),
    ("the niceness", partial(os.getpriority, os.PRIO_PROCESS, 0), partial(os.setpriority, os.PRIO_PROCESS, 0)),
    ("the set of CPUs", partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)),
    ("the process's name", _read_name, _write_name),
    *(
        (name, partial(resource.getrlimit, kind), partial(resource.setrlimit, kind))
        for name, kind in vars(resource).items()
        if name.startswith("RLIMIT_")
    ),
    *(
        (name, partial(_getitimer, which), partial(_set_timer, which))
        for name, which in vars(signal).items()
        if name.startswith("ITIMER_")
    ),
]
"""What a process has besides its memory, and a fork that goes on elsewhere does not have of it: what is told of it,
what reads and what writes it."""


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle SIGINT while no user code runs."""


def _silence() -> Any:
    """Have SIGINT do nothing; return what it did."""
    previous = signal.signal(signal.SIGINT, _do_nothing)
    return signal.default_int_handler if previous in (None, _do_nothing) else previous


def _exit_code(error: dict[str, str] | None) -> int:
    if error is None:
        return 0
    if error["type"] != "SystemExit":
        return 1
    told = error["message"]
    return int(told) & 0xFF if told.lstrip("-").isdigit() else int(told not in ("", "None"))


def _cut(text: str, longest: int) -> tuple[str, bool]:
    """Return `text` as it can be encoded, its first `longest` characters, and whether there were more."""
    return text[:longest].encode("utf-8", "backslashreplace").decode(), len(text) > longest


def _told(error: BaseException) -> dict[str, str]:
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    try:
        message = str(error)
    except BaseException:
        message = "<its message cannot be told>"
    try:
        told = "".join(traceback.format_exception(kind, error, _from_users_code(error.__traceback__)))
    except BaseException:
        told = f"{name}: {message}\n"
    return {"type": name, "message": _cut(message, _LONGEST_REPORT)[0], "traceback": _shortened(told)}


def _shortened(told: str) -> str:
    """Return a traceback; of a long one, the beginning and the end."""
    if len(told) > _LONGEST_REPORT:
        half = _LONGEST_REPORT // 2
        told = told[:half] + "\n[...]\n" + told[-half:]
    return _cut(told, len(told))[0]


def _from_users_code(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that begins in a cell, or else what is not ours."""
    part = trace
    while part is not None and not part.tb_frame.f_code.co_filename.startswith("<cell "):
        part = part.tb_next
    while part is None and trace is not None and trace.tb_frame.f_code.co_filename == _THIS_FILE:
        trace = trace.tb_next
    return part or trace


if __name__ == "__main__":
    Kernel().serve()
