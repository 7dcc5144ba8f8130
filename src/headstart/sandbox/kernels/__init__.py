"""Interpreters that keep their state in a sandbox: a Python kernel and a bash session.

Above are `Sandbox` and its users; below, `RunningSandbox.start`. What runs inside the sandbox is
in `guest/`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.sandbox.kernels.python import Kernel
    from headstart.sandbox.kernels.result import CellError, CellResult, ShellResult
    from headstart.sandbox.kernels.shell import Shell

__all__ = ["CellError", "CellResult", "Kernel", "Shell", "ShellResult"]

_WHERE = {
    "CellError": "headstart.sandbox.kernels.result",
    "CellResult": "headstart.sandbox.kernels.result",
    "Kernel": "headstart.sandbox.kernels.python",
    "Shell": "headstart.sandbox.kernels.shell",
    "ShellResult": "headstart.sandbox.kernels.result",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: who reads results must not wait for what runs code."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
