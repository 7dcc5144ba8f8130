"""Interpreters that keep their state in a sandbox: a Python kernel and a bash session.

Above are `Sandbox` and its users; below, `RunningSandbox.start`. What runs inside the sandbox is
in `guest/`.
"""

from headstart.sandbox.kernels.python import Kernel
from headstart.sandbox.kernels.result import CellError, CellResult, ShellResult
from headstart.sandbox.kernels.shell import Shell

__all__ = ["CellError", "CellResult", "Kernel", "Shell", "ShellResult"]
