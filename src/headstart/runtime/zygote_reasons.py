"""Why a program may not be forked: what an audit found, against what differs between sandboxes.

Pure. What an import read is frozen in every fork; that is harmless exactly as long as
every sandbox would have read the same. So each read is held against what *varies*: the
environment that the operator gives per session, and whatever two sandboxes of one template
were seen to have different (home and temporary folders, for a backend without mounts).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePath

from headstart.backends.contract import Template
from headstart.backends.zygote import PreloadReport, Recording

__all__ = ["reason_to_start_cold", "reason_to_stay_before_main"]

OLDEST_PYTHON = (3, 8)


def reason_to_start_cold(recording: Recording, report: PreloadReport, session_env: Iterable[str]) -> str | None:
    """Return the first reason against forking, in plain words; None if there is none."""
    return (
        _wrong_interpreter(recording)
        or report.unforkable()
        or _left_behind(report)
        or _drawn(report)
        or _session_specific(recording, report, frozenset(session_env))
        or _set_by_program(recording, report)
    )


def reason_to_stay_before_main(report: PreloadReport, template: Template, *, private_folders: bool) -> str | None:
    """Return the first reason why a zygote must not run the program's own code up to its event loop; None if it may.

    Imports are code that is the same in every process; what comes after them may depend on the moment.
    """
    mounted = tuple(str(mount.target) for mount in template.mounts) if private_folders else ("/",)
    begin_empty = (template.private_home, "/tmp", "/var/tmp")  # noqa: S108 the sandbox's own
    for what, module in report.drew.items():
        return f"{module} takes {what}" if module != "?" else f"it takes {what}"
    for program, module in report.programs.items():
        return f"{module} runs {program}"
    for path, module in report.looked_at.items():
        if _is_within(path, mounted) or not _is_within(path, begin_empty):
            return f"{module} looks at {path}"
    return None


def _is_within(path: str, folders: Iterable[str]) -> bool:
    return any(PurePath(path).is_relative_to(folder) for folder in folders)


def _wrong_interpreter(recording: Recording) -> str | None:
    facts = recording.facts
    if facts.implementation != "cpython" or facts.version < OLDEST_PYTHON:
        version = ".".join(map(str, facts.version[:2]))
        return f"it runs on {facts.implementation} {version}; zygotes need CPython 3.8 or newer"
    return None


def _left_behind(report: PreloadReport) -> str | None:
    for path, module in report.written.items():
        return f"importing {module} writes {path}"
    for what, module in report.connected.items():
        return f"importing {module} opens a connection ({what})"
    return None


def _drawn(report: PreloadReport) -> str | None:
    for module, what in report.draws.items():
        return f"importing {module} takes {what}, which all its forks would share"
    return None


def _session_specific(recording: Recording, report: PreloadReport, session_env: frozenset[str]) -> str | None:
    ours, theirs = recording.facts, report.facts
    names = ours.environ.keys() | theirs.environ.keys()
    varying = session_env | {name for name in names if ours.environ.get(name) != theirs.environ.get(name)}
    for read, module in report.reads.items():
        name = read.removeprefix("env:")
        if read.startswith("env:") and name in varying:
            return f"importing {module} reads {name}, which differs between sessions"
        if read == "env:*" and varying & report.retained:
            return f"importing {module} keeps the value of {min(varying & report.retained)}, which differs between sessions"
        if read == "cwd" and ours.cwd != theirs.cwd:
            return f"importing {module} reads the working directory, which differs between sessions"
    return None


def _set_by_program(recording: Recording, report: PreloadReport) -> str | None:
    """A variable that the program sets before it imports its reader was not set yet when preloading."""
    for name in sorted(recording.environ_changed - report.environ_written):
        module = report.reads.get(f"env:{name}")
        if module is not None:
            return f"importing {module} reads {name}, which the program itself sets first"
    return None
