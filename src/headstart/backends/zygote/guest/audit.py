"""What importing has read and done that a fork could not undo.

What a module reads at import is frozen into every fork. A *deep* watch (done once, when
the form is chosen) records it: environment variables, the working directory, the user
database; and what was written or connected to. The shallow part (done at every preload)
looks only at the end state: threads, open files, children; it leaves nothing behind,
while an audit hook stays for the life of its process.

The environment is watched by changing the *class* of `os.environ`: modules that keep a
reference to it keep the real one, and it is plain again when the watch ends.
"""

from __future__ import annotations

import os
import pwd
import random
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import facts

NATIVE_GENERATORS = ("uuid_utils", "fastuuid", "ulid_transform", "torch", "tensorflow", "jaxlib", "cupy")
"""Modules that keep a random generator in native code and do not reseed it after a fork."""

STDLIB_WAY = frozenset(
    [
        "os",
        "posixpath",
        "genericpath",
        "pathlib",
        "pathlib._local",
        "pathlib._abc",
        "_collections_abc",
        "collections.abc",
        "typing",
        "contextlib",
        "tempfile",
        "subprocess",
        "shutil",
    ]
)
"""Who reads on behalf of somebody else: the reader is the first frame above these."""

RENEWED = {"sysconfig": ("env:HOME", "env:PYTHONUSERBASE"), "multiprocessing.process": ("cwd",)}
"""What the standard library reads at import and `fresh.py` reads again: no reason against a fork."""

FILE_MAKERS = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1, "sqlite3.connect": 0}
"""Audit events that leave a file, and which of their arguments names it."""


class Watch:
    """Records while entered. `deep=False` only notes what a fork must repeat."""

    def __init__(self, *, deep: bool) -> None:
        self._deep = deep
        self._recording = False
        self._undo: list[Callable[[], None]] = []
        self._written: dict[str, str] = {}
        self.reads: dict[str, str] = {}
        self.connected: dict[str, str] = {}
        self.programs: dict[str, str] = {}
        self.environ_writes: dict[str, str | None] = {}
        self.unseeded: list[weakref.ref[random.Random]] = []

    def __enter__(self) -> None:
        self._watch_environ()
        self._watch_generators()
        if self._deep:
            self._watch_calls()
            sys.addaudithook(self._on_event)
        self._recording = True

    def __exit__(self, *_: object) -> None:
        self._recording = False
        for undo in reversed(self._undo):
            undo()

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
            "files": sorted(opened.values()),
            "children": len(facts.child_processes()),
            "native_generators": [name for name in NATIVE_GENERATORS if name in sys.modules],
            "reads": self.reads,
            "environ_written": sorted(self.environ_writes),
            "written": {path: who for path, who in self._written.items() if os.path.lexists(path)},
            "connected": self.connected,
            "programs": self.programs,
        }

    def _read(self, what: str) -> None:
        if self._recording and what not in self.reads:
            reader = _reader()
            if what not in RENEWED.get(reader, ()):
                self.reads[what] = reader

    def _watch_environ(self) -> None:
        watch, environ = self, os.environ
        plain: Any = type(environ)

        class Watched(plain):
            def __getitem__(self, key: Any) -> Any:
                watch._read("env:" + os.fsdecode(key))
                return plain.__getitem__(self, key)

            def __iter__(self) -> Any:
                watch._read("env:*")
                return plain.__iter__(self)

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

        random.Random.seed = noting  # type: ignore[method-assign]
        self._undo.append(lambda: setattr(random.Random, "seed", seed))

    def _watch_calls(self) -> None:
        for module, name, what in (
            (os, "getcwd", "cwd"),
            (os, "getcwdb", "cwd"),
            (os, "getpid", "pid"),
            (pwd, "getpwuid", "user database"),
            (pwd, "getpwnam", "user database"),
        ):
            self._wrap(module, name, what)

    def _wrap(self, module: Any, name: str, what: str) -> None:
        plain = getattr(module, name)

        def watched(*args: Any) -> Any:
            self._read(what)
            return plain(*args)

        setattr(module, name, watched)
        self._undo.append(lambda: setattr(module, name, plain))

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._recording:
            return
        if event == "open":
            if isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._wrote(args[0])
        elif event in FILE_MAKERS:
            path = args[FILE_MAKERS[event]]
            if event != "os.mkdir" or not os.path.lexists(path):
                self._wrote(path)
        elif event in ("socket.connect", "socket.bind"):
            self.connected.setdefault(f"{event} {args[1]!r}", _reader())
        elif event == "subprocess.Popen":
            self.programs.setdefault(os.fsdecode(args[0] or args[1][0]), _reader())

    def _wrote(self, path: Any) -> None:
        if isinstance(path, int):
            return  # an open descriptor: seen when it was opened
        name = os.path.abspath(os.fsdecode(path))
        if "__pycache__" not in name and not os.path.isdir(name) and not name.startswith(("/dev/", "/proc/")):
            self._written.setdefault(name, _reader())


def _reader() -> str:
    """Name the module whose code is behind the call that is being watched."""
    frame: Any = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public way up the stack
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name not in STDLIB_WAY and not name.startswith("_headstart_zygote"):
            return str(name)
        frame = frame.f_back
    return "?"
