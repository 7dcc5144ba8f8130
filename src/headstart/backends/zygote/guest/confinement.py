"""Load the backend's `fork(plan)` and `enter(plan, wanted)` into a stranger's interpreter.

Guest modules of the backends import each other by their full names
(`headstart.backends.spawner.guest.…`). Those names are shown for the time of the import
only, as bare folders without any `__init__`, and are taken away again: the program that
was preloaded may have a `headstart` of its own.
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

from . import fork

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
"""The `headstart` folder, four above this file."""


def load(path: str) -> fork.Confinement:
    """Return what the guest module at `path` promises."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "headstart"}
    try:
        module = _import(path)
        return fork.Confinement(fork=module.fork, enter=module.enter)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "headstart"]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _import(path: str) -> Any:
    folder, file = os.path.split(path)
    name = os.path.splitext(file)[0]
    if not path.startswith(ROOT + os.sep):
        return _package("_headstart_zygote.confine", folder, name)
    for part in sorted(os.listdir(os.path.join(ROOT, "backends"))):
        _show("headstart.backends." + part, os.path.join(ROOT, "backends", part))
        _show("headstart.backends." + part + ".guest", os.path.join(ROOT, "backends", part, "guest"))
    _show("headstart", ROOT)
    _show("headstart.backends", os.path.join(ROOT, "backends"))
    return importlib.import_module(os.path.relpath(path, os.path.dirname(ROOT))[:-3].replace(os.sep, "."))


def _package(package: str, folder: str, name: str) -> Any:
    _show(package, folder)
    return importlib.import_module(package + "." + name)


def _show(name: str, folder: str) -> None:
    module = types.ModuleType(name)
    module.__path__ = [folder]
    sys.modules[name] = module
