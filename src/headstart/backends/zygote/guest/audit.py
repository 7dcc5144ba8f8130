"""What importing has read and done that a fork could not undo.

What a module reads at import is frozen into every fork. A *deep* watch (done once, when
the form is chosen) records it: environment variables, the working directory, the user
database; and what was written or connected to. The shallow part (done at every preload)
looks only at the end state: threads, open files, children; it leaves nothing behind,
while an audit hook stays for the life of its process. Modules that start threads are named
by a deep watch, so that a program can be preloaded without them; so are those whose bodies
draw what is another at every start (random bytes and numbers, unique ids), with all that import
them: what a body keeps of a draw would be the same in every fork.

The environment is watched by changing the *class* of `os.environ`: modules that keep a
reference to it keep the real one, and it is plain again when the watch ends.
"""

from __future__ import annotations

import gc
import os
import pwd
import random
import signal
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from . import facts, imports, stack

NATIVE_GENERATORS = ("uuid_utils", "fastuuid", "ulid_transform", "torch", "tensorflow", "jaxlib", "cupy")
"""Modules that keep a random generator in native code and do not reseed it after a fork."""

RENEWED = {
    "sysconfig": ("env:HOME", "env:PYTHONUSERBASE"),
    "multiprocessing.process": ("cwd", "random bytes"),
    "rich": ("cwd",),
    "rich.style": ("random numbers",),
    "sympy.core.symbol": ("random numbers",),
    "numpy.random": ("random bytes",),
    "numpy.random._pickle": ("random bytes",),
    "tempfile": ("random numbers",),
    "mcp.server.request_state": ("random bytes",),
}
"""What common modules read or draw and `fresh.py` takes again: no reason against a fork.

Of draws, in this order: the authentication key, where link ids and dummies' numbers begin, numpy's
global generator (which is seeded where its `_pickle` first imports it), names of temporary files, the key below.
"""

KEPT_INSIDE = {"opentelemetry.context": ("random bytes",)}
"""Who draws only to tell the entries of its own dictionary apart: no harm if two processes have the same names."""

SHORTEST_RETAINED = 4
"""Shorter values ("1", "yes") are everywhere; finding one says nothing."""

RANDOM_FILES = ("/dev/urandom", "/dev/random", "/proc/sys/kernel/random/uuid")

KEY_MAKER = "mcp.server.request_state"
"""Makes a key from entropy for every server object that is given none."""

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

LOOKERS = ("open", "os.listdir", "os.scandir")
"""Audit events that look at a path, their first argument."""

FILE_MAKERS = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "sqlite3.connect": 0}
"""Audit events that leave a file, and which of their arguments names it."""


class Watch:
    """Records while entered. `deep=False` only notes what a fork must repeat."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._recording = False
        self._undo: list[Callable[[], None]] = []
        self._written: dict[str, str] = {}
        self._iterated: Any = None
        self._copying: object = None
        self._threads = facts.thread_count()
        self._importing: tuple[str, ...] = ("?",)
        self._thread_starters: set[str] = set()
        self._draws: dict[str, str] = {}
        self._drawing: set[str] = set()
        self._imports = imports.Imports(self._watch_numpy)
        self._in_main = False
        self._numpy_watched = False
        self._random_state: object = None
        self._own_places: tuple[str, ...] = ()
        self._cwd = ""
        self.drew: dict[str, str] = {}
        self.looked_at: dict[str, str] = {}
        self.reads: dict[str, str] = {}
        self.connected: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.environ_writes: dict[str, str | None] = {}
        self.unseeded: list[weakref.ref[random.Random]] = []
        self.keyed: list[weakref.ref[Any]] = []

    def __enter__(self) -> None:
        self._watch_environ()
        self._watch_generators()
        if self._deep:
            self._watch_calls()
            self._imports.watch()
            self._undo.append(self._imports.unwatch)
            sys.addaudithook(self._on_event)
        self._recording = True

    def __exit__(self, *_: object) -> None:
        if self._in_main and self._deep and _random_states() != self._random_state:
            self.drew.setdefault("random numbers", "?")
        self._look_for_threads()
        self._recording = False
        for undo in reversed(self._undo):
            undo()

    def main_begins(self) -> None:
        """From here on the program's own code runs, of which a fork must not repeat what is its own each time."""
        if self._deep:
            self._recording = False
            self._random_state, self._own_places, self._cwd = _random_states(), _own_places(), os.getcwd()
            self._recording = True
        self._in_main = True

    def report(self, files_before: dict[int, str]) -> dict[str, Any]:
        """Return what was seen, and what this process has open now that it had not before."""
        opened = {
            fd: what
            for fd, what in facts.open_files().items()
            if files_before.get(fd) != what and what not in facts.HARMLESS_FILES
        }
        return {
            "threads": [thread.name for thread in threading.enumerate()][1:],
            "thread_count": facts.thread_count(),
            "thread_starters": sorted(self._thread_starters),
            "draws": self._draws,
            "drawing": sorted(self._imports.with_importers(self._drawing)),
            "files": sorted(opened.values()),
            "children": len(facts.child_processes()),
            "timers": any(signal.getitimer(which)[0] for which in TIMERS),
            "native_generators": [name for name in NATIVE_GENERATORS if name in sys.modules],
            "reads": self.reads,
            "retained": _retained() if "env:*" in self.reads else [],
            "environ_written": sorted(self.environ_writes),
            "written": {path: who for path, who in self._written.items() if os.path.lexists(path)},
            "connected": self.connected,
            "programs": self.programs,
            "drew": self.drew,
            "looked_at": self.looked_at,
        }

    def begins(self, module: str) -> None:
        """Take note that a module is about to be imported (by us, or from the bodies now on the stack)."""
        if not self._deep or not self._recording:
            return
        self._look_for_threads()
        self._importing = (module, *stack.bodies())

    def _look_for_threads(self) -> None:
        """Hold the import before this moment, and whoever had asked for it, responsible for new threads."""
        threads = facts.thread_count()
        if threads > self._threads:
            self._thread_starters.update(self._importing)
        self._threads = threads

    def _draw(self, what: str) -> None:
        """Note what is new at every start: a fork would have the zygote's."""
        if not self._recording:
            return
        reader = stack.reader(stack.DRAWING_WAY)
        its_own_record = (what, reader) == ("pid", "logging")  # which is made anew for every line
        if its_own_record or what in RENEWED.get(reader, ()) or what in KEPT_INSIDE.get(reader, ()):
            return
        if self._in_main:
            self.drew.setdefault(what, reader)
        elif what != "pid":  # which imports keep in order to notice forks
            drawing = stack.bodies() or self._importing  # the latter when a thread draws
            self._draws.setdefault(drawing[0], what)
            self._drawing.update(drawing)

    def _look(self, path: Any) -> None:
        """Note a path that may be another one, or have other content, at the next start."""
        if self._recording and self._in_main and not isinstance(path, int):
            name = os.path.normpath(os.path.join(self._cwd, os.fsdecode(path)))
            if not any((name + "/").startswith(place) or place.startswith(name + "/") for place in self._own_places):
                self.looked_at.setdefault(name, stack.reader())

    def _read(self, what: str) -> None:
        if self._recording and what not in self.reads:
            reader = stack.reader()
            if what not in RENEWED.get(reader, ()):
                self.reads[what] = reader

    def _watch_environ(self) -> None:
        watch, environ = self, os.environ
        plain: Any = type(environ)

        class Watched(plain):
            def __getitem__(self, key: Any) -> Any:
                if key != watch._iterated and stack.place() != watch._copying:
                    watch._read("env:" + os.fsdecode(key))
                return plain.__getitem__(self, key)

            def __iter__(self) -> Any:
                watch._read("env:*")
                watch._copying = stack.place()
                for watch._iterated in plain.__iter__(self):
                    yield watch._iterated
                watch._iterated = None

            def __setitem__(self, key: Any, value: Any) -> None:
                plain.__setitem__(self, key, value)
                watch.environ_writes[os.fsdecode(key)] = os.fsdecode(value)

            def __delitem__(self, key: Any) -> None:
                plain.__delitem__(self, key)
                watch.environ_writes[os.fsdecode(key)] = None

        for mapping in (environ, os.environb):
            mapping.__class__ = Watched
            self._undo.append(lambda mapping=mapping: setattr(mapping, "__class__", plain))

    def _watch_generators(self) -> None:
        """Note generators seeded from entropy, so that a fork can give each a state of its own."""
        seed = random.Random.seed

        def noting(generator: random.Random, a: Any = None, version: int = 2) -> None:
            seed(generator, a, version)
            if a is None and type(generator) is not random.SystemRandom:
                self.unseeded.append(weakref.ref(generator))
                if self._deep:
                    self._watch_numbers(generator)

        random.Random.seed = noting  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(random.Random, "seed", seed))

    def _watch_numbers(self, generator: Any) -> None:
        """Note what is drawn from a generator; everything that it makes, it makes of these two."""
        for name in ("random", "getrandbits"):
            self._wrap(generator, name, partial(self._draw, "random numbers"))

    def _watch_numpy(self) -> None:
        """Note what is drawn from numpy's global generator, once it is there."""
        numpy_random: Any = sys.modules.get("numpy.random")
        generator = getattr(getattr(numpy_random, "rand", None), "__self__", None)
        if self._numpy_watched or generator is None:
            return
        self._numpy_watched = True
        for name in dir(numpy_random):
            owner = getattr(getattr(numpy_random, name), "__self__", None)
            if owner is generator and name not in ("get_state", "set_state"):
                self._wrap(numpy_random, name, partial(self._draw, "random numbers"))

    def watch_keys(self) -> None:
        """Note the SDK's servers with a key of their own (`mcp.server.request_state`), so that each fork gets another."""
        security: Any = sys.modules[KEY_MAKER].RequestStateSecurity
        plain = security.__dict__["ephemeral"]

        def noting(cls: Any, *args: Any, **named: Any) -> Any:
            made = plain.__func__(cls, *args, **named)
            self.keyed.append(weakref.ref(made))
            return made

        security.ephemeral = classmethod(noting)
        self._undo.append(lambda: setattr(security, "ephemeral", plain))

    def _watch_calls(self) -> None:
        for module, name, what in (
            (os, "getcwd", "cwd"),
            (os, "getcwdb", "cwd"),
            (os, "getpid", "pid"),
            (pwd, "getpwuid", "user database"),
            (pwd, "getpwnam", "user database"),
        ):
            self._wrap(module, name, partial(self._read, what))
        for module, name, what in (
            (os, "getpid", "pid"),
            (os, "urandom", "random bytes"),
            (os, "getrandom", "random bytes"),
            (random, "_urandom", "random bytes"),
            (uuid, "uuid1", "a unique id"),
        ):
            self._wrap(module, name, partial(self._draw, what))
        self._watch_numbers(random.seed.__self__)  # the global generator, which has two of its methods
        self._watch_numbers(random)  # in the module, too
        for name in ("stat", "lstat", "access"):
            self._wrap(os, name, self._look, given=1)

    def _wrap(self, module: Any, name: str, note: Callable[..., None], *, given: int = 0) -> None:
        """Note every call of a function, with the first `given` of its arguments."""
        plain = getattr(module, name)

        def watched(*args: Any, **named: Any) -> Any:
            note(*args[:given])
            return plain(*args, **named)

        setattr(module, name, watched)
        self._undo.append(lambda: setattr(module, name, plain))

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._recording:
            return
        if event in LOOKERS and args[0] is not None:
            self._look(args[0])
        if event == "import":
            self.begins(str(args[0]))
        elif event == "open":
            self._opened(args[0], args[2])
        elif event in FILE_MAKERS:
            path = args[FILE_MAKERS[event]]
            if event != "os.mkdir" or not os.path.lexists(path):
                self._wrote(path)
        elif event == "socket.connect":  # what is only bound is seen among the open files, if it stays
            self.connected.setdefault(f"{event} {args[1]!r}", stack.reader())
        elif event == "subprocess.Popen":
            self.programs.setdefault(os.fsdecode(args[0] or args[1][0]), stack.reader())

    def _opened(self, path: Any, flags: Any) -> None:
        if path in RANDOM_FILES:
            self._draw("random bytes")
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            self._wrote(path)

    def _wrote(self, path: Any) -> None:
        if isinstance(path, int):
            return  # an open descriptor: seen when it was opened
        name = os.path.abspath(os.fsdecode(path))
        if "__pycache__" not in name and not os.path.isdir(name) and not name.startswith(("/dev/", "/proc/")):
            self._written.setdefault(name, stack.reader())


def _random_states() -> object:
    """Return the state of the global generators, for comparing."""
    numpy_random: Any = sys.modules.get("numpy.random")
    return random.getstate(), repr(numpy_random.get_state()) if numpy_random is not None else None


def _own_places() -> tuple[str, ...]:
    """Return where the interpreter, the program's packages and the system have their files, each with a `/`."""
    places = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.realpath(sys.argv[0])), *sys.path}
    places |= {"/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/dev"}
    return tuple(place.rstrip("/") + "/" for place in places if place.startswith("/"))


def _retained() -> list[str]:
    """Name the environment variables whose values are kept somewhere among the imported objects.

    Whoever copies the whole environment (a settings class does, to pick what it knows) has
    read everything; what counts is what it kept.
    """
    values = {value: name for name, value in os.environ.items() if len(value) >= SHORTEST_RETAINED}
    paths = [value for value in values if value.startswith("/")]
    own = {id(value) for value in (*values, *values.values(), *paths, *_renewed())}
    found: set[str] = set()
    for holder in gc.get_objects():
        if holder is values or holder is paths:
            continue
        for text in _texts_in(holder):
            if id(text) not in own:
                found.update(values[path] for path in paths if text.startswith(path))
                if text in values:
                    found.add(values[text])
    return sorted(found)


def _renewed() -> list[object]:
    """List what `fresh.py` takes again in a fork, so that keeping it does no harm."""
    modules = sys.modules
    variables: Any = getattr(modules.get("sysconfig"), "_CONFIG_VARS", None) or {}
    return [
        variables.get("userbase"),
        getattr(modules.get("multiprocessing.process"), "ORIGINAL_DIR", None),
        getattr(modules.get("site"), "USER_BASE", None),
        getattr(modules.get("site"), "USER_SITE", None),
    ]


def _texts_in(holder: object) -> Generator[str]:
    """Yield the strings that an object holds itself, or in containers the collector does not track."""
    open_ones: list[object] = [holder]
    while open_ones:
        for item in gc.get_referents(open_ones.pop()):
            if type(item) is str:
                yield item
            elif type(item) in (dict, tuple) and not gc.is_tracked(item):
                open_ones.append(item)
