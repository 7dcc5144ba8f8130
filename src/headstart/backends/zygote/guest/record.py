"""Run a program cold, exactly as it would run by itself, and tell what it has imported when asked.

A thread waits on the control socket, because the program has the main one; it answers
`dump` with the modules in the order of their import, and the facts by which a preloaded
twin is checked. When the socket closes it ends, and the program goes on.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import os
import socket
import sys
import threading
from collections.abc import Sequence

from . import facts, program, wire


def main(arguments: Sequence[str]) -> program.Job:
    parser = argparse.ArgumentParser(prog="record")
    parser.add_argument("--control", required=True)
    parser.add_argument("--chdir", default=None)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    if options.chdir is not None:
        os.chdir(options.chdir)
    control = facts.connect(options.control)
    before = dict(os.environ)
    listener = threading.Thread(target=_answer, args=(control, before), name="headstart-recorder", daemon=True)
    listener.start()
    return program.split_entry(words)


def _answer(control: socket.socket, before: dict[str, str]) -> None:
    """Answer every `dump` until the other end closes."""
    with control:
        while True:
            received = wire.receive(control)
            if received is None:
                return
            wire.send(control, _recording(before))


def _recording(before: dict[str, str]) -> wire.Message:
    now = dict(os.environ)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    modules = [
        {"name": name, "file": origin}
        for name, origin in ((name, _origin(name)) for name in list(sys.modules))
        if origin is not None
    ]
    return {"op": "recorded", "modules": modules, "environ_changed": changed, "facts": facts.interpreter(before)}


def _origin(name: str) -> str | None:
    """Return the file (or `built-in`) that `import name` would load; None if it cannot be imported by name."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if (
        not isinstance(spec, importlib.machinery.ModuleSpec)
        or spec.name != name
        or name.startswith(("__main__", "_headstart_zygote"))
    ):
        return None
    if spec.origin is None and spec.submodule_search_locations is not None:
        return "namespace"
    return spec.origin
