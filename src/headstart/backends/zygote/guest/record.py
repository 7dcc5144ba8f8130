"""Run a program cold, exactly as it would run by itself, and tell what it has imported when asked.

A thread waits on the control socket, because the program has the main one; it answers
`dump` with the modules in the order in which their imports *began*, and the facts by which a
preloaded twin is checked. When the socket closes it ends, and the program goes on.

`sys.modules` has them in the order in which they were finished. Modules that import each
other in a circle can only be imported from the side that the program came from, so a finder
that finds nothing sits in front of the others and notes who is looked for.
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
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--chdir", default=None)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    words: list[str] = options.words[1:] if options.words[:1] == ["--"] else options.words
    if options.chdir is not None:
        os.chdir(options.chdir)
    control = facts.inherited_socket(options.control)
    before = dict(os.environ)
    begun = Begun()
    sys.meta_path.insert(0, begun)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - half the protocol
    listener = threading.Thread(target=_answer, args=(control, before, begun), name="headstart-recorder", daemon=True)
    listener.start()
    return program.split_entry(words)


class Begun:
    """A finder that notes the names it is asked for."""

    def __init__(self) -> None:
        self.names: dict[str, None] = dict.fromkeys(sys.modules)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        del path, target
        self.names.setdefault(name)


def _answer(control: socket.socket, before: dict[str, str], begun: Begun) -> None:
    """Answer every `dump` until the other end closes."""
    with control:
        while True:
            received = wire.receive(control)
            if received is None:
                return
            wire.send(control, _recording(before, begun))


def _recording(before: dict[str, str], begun: Begun) -> wire.Message:
    now = dict(os.environ)
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    modules = [
        {"name": name, "file": origin}
        for name, origin in ((name, _origin(name)) for name in {**begun.names, **dict.fromkeys(sys.modules)})
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
