"""Turn a forked copy into what a freshly started process would be.

Everything that a start-up takes from outside (streams, environment, directory, locale,
randomness) is taken again. What importing did to the process itself (its `atexit`
handlers, signal handlers, warnings filters, changes to the environment) stays or is
repeated: a cold start would have done the same. `atexit` handlers in particular are kept,
for each was registered by a module that the program has imported too.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import sys
import time
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple


class Changes(NamedTuple):
    """What importing did that each fork has to repeat, renew or undo."""

    environ: Mapping[str, str | None]
    unseeded: list[weakref.ref[random.Random]]
    keyed: list[weakref.ref[Any]]
    widen_pools: Callable[..., Any] | None
    output: Mapping[int, bytes]
    cwd: str | None


@contextmanager
def captured_output() -> Generator[dict[int, bytes]]:
    """Collect what is printed on stdout and stderr meanwhile; filled in on leaving."""
    printed: dict[int, bytes] = {}
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    memory = {fd: os.memfd_create("headstart-output") for fd in (1, 2)}
    for fd, target in memory.items():
        os.dup2(target, fd)
    yield printed
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for fd, target in memory.items():
        printed[fd] = os.pread(target, 1_000_000, 0)
        os.dup2(saved[fd], fd)
        os.close(saved[fd])
        os.close(target)


def renew(changes: Changes) -> None:
    """Give this copy all the randomness that it is to have for itself."""
    _reseed(changes.unseeded)
    _move_counters()
    _renew_keys(changes.keyed)


def restart(changes: Changes, environ: Mapping[str, str], cwd: str | None) -> None:
    """Take again what a start-up is given. The descriptors 0, 1 and 2 are the new ones already."""
    _replace_environ(environ, changes.environ)
    if changes.cwd is not None or cwd is not None:
        os.chdir(changes.cwd or cwd or "")
    _reopen_streams()
    for fd, text in changes.output.items():
        if text:
            os.write(fd, text)
    _renew_directories()
    if changes.widen_pools is not None:
        changes.widen_pools(limits=_pool_size(os.environ))


def _replace_environ(new: Mapping[str, str], written: Mapping[str, str | None]) -> None:
    old = dict(os.environ)
    wanted: dict[str, str] = dict(new)
    for name, value in written.items():
        if value is None:
            wanted.pop(name, None)
        else:
            wanted[name] = value
    for name in old.keys() - wanted.keys():
        del os.environ[name]
    for name, value in wanted.items():
        if old.get(name) != value:
            os.environ[name] = value
    if old.get("TZ") != wanted.get("TZ"):
        time.tzset()
    if any(old.get(name) != wanted.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG")):
        import locale  # noqa: PLC0415 - seldom needed, and not every program has loaded it

        locale.setlocale(locale.LC_CTYPE, "")


def _reopen_streams() -> None:
    """Give the standard streams new buffers over the new descriptors.

    The stream *objects* stay, because modules have kept references to them (logging
    handlers do); `__init__` makes them new from inside.
    """
    for fd, stream, mode in ((0, sys.__stdin__, "rb"), (1, sys.__stdout__, "wb"), (2, sys.__stderr__, "wb")):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        direct = fd != 0 and stream.write_through  # `-u` or PYTHONUNBUFFERED: so it was made at the start
        buffer: Any = open(fd, mode, 0 if direct else -1, closefd=False)  # noqa: SIM115 - lives with the stream
        raw = buffer if direct else buffer.raw
        raw.name = stream.name
        lines = not direct and fd != 0 and (raw.isatty() or (fd == 2 and sys.version_info >= (3, 9)))
        stream.__init__(
            buffer,
            encoding=stream.encoding,
            errors=stream.errors,
            newline="\n",
            line_buffering=lines or (fd == 0 and raw.isatty()),
            write_through=direct,
        )


def _renew_directories() -> None:
    """Read home and working directory again where common modules keep them (see `audit.RENEWED`)."""
    modules = sys.modules
    for name, constant in (("multiprocessing.process", "ORIGINAL_DIR"), ("rich", "_IMPORT_CWD")):
        if hasattr(modules.get(name), constant):
            setattr(modules[name], constant, os.path.abspath(os.getcwd()))
    site: Any = modules.get("site")
    if site is not None and site.USER_BASE is not None:
        site.USER_BASE = site.USER_SITE = None
        site.getusersitepackages()
    sysconfig: Any = modules.get("sysconfig")
    variables = getattr(sysconfig, "_CONFIG_VARS", None)
    if variables:
        variables["userbase"] = sysconfig._getuserbase()  # noqa: SLF001 - where `get_config_vars` took it from


def _reseed(unseeded: list[weakref.ref[random.Random]]) -> None:
    """Give every generator that a fresh process would seed from entropy a state of its own."""
    random.seed()
    for reference in unseeded:
        generator = reference()
        if generator is not None:
            generator.seed()
    modules = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "ssl" in modules:
        modules["ssl"].RAND_add(os.urandom(32), 32.0)
    if "tempfile" in modules:
        modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined] # noqa: SLF001
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _move_counters() -> None:
    """Let numbers that a module counts up from a random one begin elsewhere, beyond those that it has given out."""
    style: Any = sys.modules.get("rich.style")
    if hasattr(style, "_id_generator"):
        style._id_generator = itertools.count(next(style._id_generator) + random.getrandbits(24))  # noqa: SLF001
    dummy: Any = getattr(sys.modules.get("sympy.core.symbol"), "Dummy", None)
    if hasattr(dummy, "_base_dummy_index"):
        dummy._base_dummy_index += random.getrandbits(23)  # noqa: SLF001


def _renew_keys(keyed: list[weakref.ref[Any]]) -> None:
    """Give every server object that has made a key for itself another one: what one session seals, no other may open."""
    for reference in keyed:
        security = reference()
        if security is not None:
            security.codec.__init__([os.urandom(32)])


def _pool_size(environ: Mapping[str, str]) -> int:
    wanted = environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else len(os.sched_getaffinity(0))
