"""Run a program's entry as the interpreter itself would have.

The recorder runs programs through here and so does a fork, so that "cold" and "forked"
cannot differ in this. `runpy.run_path` will not do for scripts: it takes `__main__` away
again before `atexit` handlers and threads are done with it.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from typing import NamedTuple

at_end: Callable[[], None] | None = None
"""Called when the program has ended, if it was not to end here."""


class Job(NamedTuple):
    """What to become: `entry` is a script's path, or `-m` and a module; then its arguments."""

    entry: Sequence[str]
    args: Sequence[str]


def split_entry(words: Sequence[str]) -> Job:
    """Tell the entry from its arguments: `["-m", "x", "--y"]` or `["/bin/x", "--y"]`."""
    length = 2 if words[0] == "-m" else 1
    return Job(words[:length], words[length:])


def script_directory(job: Job) -> str:
    """Return what a fresh interpreter would put first on `sys.path`."""
    if job.entry[0] == "-m":
        return os.getcwd()
    return os.path.dirname(os.path.realpath(job.entry[0]))


def keeps_path_safe() -> bool:
    """Tell whether this interpreter was told to leave `sys.path[0]` away (`-I`, `-P`)."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _interpreter_options() -> list[str]:
    """Return the interpreter's own options: what stood before boot.py when this process was started."""
    words: list[str] = getattr(sys, "orig_argv", [])
    places = [place for place, word in enumerate(words) if os.path.basename(word) == "boot.py"]
    return words[1 : places[0]] if places else []


OPTIONS = _interpreter_options()


def set_arguments(job: Job) -> None:
    """Give `sys.argv` and `sys.orig_argv` the values that a cold start has."""
    sys.argv = [job.entry[0], *job.args]
    if hasattr(sys, "orig_argv"):  # 3.10 and later
        sys.orig_argv = [sys.orig_argv[0], *OPTIONS, *job.entry, *job.args]


def run(job: Job) -> None:
    """Become the program; returns (or raises) when its main code has ended."""
    if not keeps_path_safe():
        sys.path.insert(0, script_directory(job))
    set_arguments(job)
    main = types.ModuleType("__main__")
    vars(main).update(__builtins__=sys.modules["builtins"], __annotations__={})
    sys.modules["__main__"] = main
    if job.entry[0] == "-m":
        runpy._run_module_as_main(job.entry[1])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue] - what `python -m` itself calls
    elif os.path.isdir(job.entry[0]) or not _run_script(job.entry[0], main):
        runpy.run_path(job.entry[0], run_name="__main__")


def _run_script(path: str, main: types.ModuleType) -> bool:
    """Execute a source file in `main`; False if it is none (a zip archive, say)."""
    with open(path, "rb") as file:
        source = file.read()
    if b"\0" in source:
        return False
    main.__dict__["__file__"] = path
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - this is what python does
    return True


def hide_own_frames(here: str) -> None:
    """Keep our frames out of the traceback that is about to be printed.

    Wraps the program's own `sys.excepthook`; called when its last code has already run.
    """
    show = sys.excepthook

    def shown(kind: type[BaseException], value: BaseException, traceback: types.TracebackType | None) -> None:
        while traceback is not None and os.path.dirname(traceback.tb_frame.f_code.co_filename) == here:
            traceback = traceback.tb_next
        value.__traceback__ = traceback
        show(kind, value, traceback)

    sys.excepthook = shown
