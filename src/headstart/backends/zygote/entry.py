"""From a launch command to the Python program behind it: which interpreter, which entry.

A command is followed as the kernel and the launchers would follow it, offline: through
PATH, shebangs (also `env`, and the `/bin/sh` tricks that pip uses for long paths and uv
for environments that can be moved), `uv run`, `uvx`, `pipx run`. What does not lead to a
Python script or module starts cold, with the reason in plain words.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headstart.backends.contract import Command, Preload
from headstart.backends.zygote.launchers import Launched, follow_launcher

__all__ = ["ColdReason", "EntryPlan", "plan_entry"]

HOPS = 5
"""A launcher may lead to a launcher, but not for ever."""

BESIDE_ITSELF = '"$(dirname -- "$(realpath -- "$0")")"/'
"""Where the scripts of an environment that can be moved, as `uvx` makes them, look for their interpreter."""

FLAGS = frozenset("bBdEIOPqRsSuv")
FLAGS_WITH_VALUE = frozenset("WX")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReason:
    """Why a program starts cold, in plain words that complete "starts cold: …"."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPlan:
    """A Python program: `interpreter *options *entry *args`.

    Attributes:
        interpreter: Absolute, unresolved (a venv's python is a link, and means the venv).
        entry: `(script,)`, absolute, or `("-m", module)`.
        cwd: Where a launcher would have changed to; None where it stays.
    """

    interpreter: str
    entry: tuple[str, ...]
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    cwd: str | None = None

    def preload(self, modules: Sequence[str], *, advance: bool = False) -> Preload:
        return Preload(
            interpreter=self.interpreter,
            modules=tuple(modules),
            entry=self.entry,
            args=self.args,
            options=self.options,
            cwd=self.cwd,
            advance=advance,
        )


def plan_entry(command: Command) -> EntryPlan | ColdReason:
    """Find the Python program that a command starts.

    Blocking: it reads files, and asks an installed `uv` (bounded) where a tool lives.
    """
    try:
        return _follow(command)
    except OSError as exc:
        return ColdReason(text=f"its program cannot be read: {exc}")


def _follow(command: Command) -> EntryPlan | ColdReason:
    argv: list[str] = list(command.argv)
    moved_to: str | None = None
    for _ in range(HOPS):
        program = _find(argv[0], command)
        if program is None:
            return ColdReason(text=f"{argv[0]} was not found")
        if _is_python(program):
            return _plan_python(program, argv[1:], command, moved_to)
        match follow_launcher(program, argv[1:], command):
            case Launched(argv=following, cwd=cwd):
                argv, moved_to = list(following), cwd or moved_to
                command = replace(command, cwd=moved_to or command.cwd)
            case str(reason):
                return ColdReason(text=reason)
            case None:
                interpreter = _shebang(program)
                if interpreter is None:
                    return ColdReason(text=f"{program.name} is not a Python program")
                argv = [*interpreter, str(program), *argv[1:]]
    return ColdReason(text=f"{command.argv[0]} leads through more than {HOPS} launchers")


def _find(name: str, command: Command) -> Path | None:
    """Return the file that executing `name` would execute, absolute and with links kept."""
    if "/" in name:
        path = Path(command.cwd or "/") / name
        return path if path.is_file() else None
    found = shutil.which(name, path=command.env.get("PATH", os.defpath))
    return Path(found).absolute() if found else None


def _is_python(program: Path) -> bool:
    name = program.name
    return name == "python" or (name.startswith("python") and name[6:].replace(".", "").isdigit())


def _shebang(script: Path) -> list[str] | None:
    """Return the words of a script's `#!` line (with the `/bin/sh` tricks of pip and uv undone), None without one."""
    with script.open("rb") as file:
        head = file.read(2_048).decode("utf-8", "replace").splitlines()
    if not head or not head[0].startswith("#!"):
        return None
    words = head[0][2:].split(maxsplit=1)
    if not words:
        return None
    if Path(words[0]).name == "env":
        rest = words[1] if len(words) > 1 else ""
        return shlex.split(rest.removeprefix("-S")) or None
    if Path(words[0]).name == "sh" and len(head) > 1 and head[1].startswith("'''exec' "):
        command = head[1].removeprefix("'''exec' ")
        if command.startswith(BESIDE_ITSELF):
            command = f"{shlex.quote(str(script.resolve().parent))}/{command.removeprefix(BESIDE_ITSELF)}"
        return shlex.split(command)[:1] or None
    return words if _is_python(Path(words[0])) else None


def _plan_python(program: Path, words: Sequence[str], command: Command, moved_to: str | None) -> EntryPlan | ColdReason:
    """Read python's own command line: options, then `-m module` or a script, then its arguments."""
    options: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            script = str(Path(command.cwd or "/") / word)
            return EntryPlan(
                interpreter=str(program),
                options=tuple(options),
                entry=(os.path.normpath(script),),
                args=tuple(rest),
                cwd=moved_to,
            )
        taken = _read_option(word, rest)
        if taken is None:
            return ColdReason(text=f"python {word} is not a script or module that can be preloaded")
        kept, module = taken
        options += kept
        if module is not None:
            return EntryPlan(
                interpreter=str(program),
                options=tuple(options),
                entry=("-m", module),
                args=tuple(rest),
                cwd=moved_to,
            )
    return ColdReason(text="python is started without a program")


def _read_option(word: str, rest: Iterator[str]) -> tuple[list[str], str | None] | None:
    """Return the options in one word (`-uX utf8` has two) and the module if it ends in `m`; None for others."""
    options: list[str] = []
    if word.startswith("--"):
        return None
    for place, letter in enumerate(word[1:], 2):
        value = word[place:]
        if letter in FLAGS:
            options.append("-" + letter)
        elif letter in FLAGS_WITH_VALUE:
            return [*options, f"-{letter}{value or next(rest, '')}"], None
        elif letter == "m":
            module = value or next(rest, "")
            return (options, module) if module else None
        else:
            return None
    return (options, None) if options else None
