"""Sandboxes from Python: create one, run commands in it, read and write its files.

async with headstart.Sandbox.create() as box:
await box.files.write("hello.py", b"print('hello')")
print((await box.run("python3 hello.py")).stdout)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstart.runtime.kept import SandboxCheckpoint
    from headstart.sandbox.hosted.client import HostedSandbox, HostedSandboxes, connect
    from headstart.sandbox.hosted.messages import HostedInfo
    from headstart.sandbox.kernels import CellError, CellResult, Kernel, Shell, ShellResult
    from headstart.sandbox.options import SandboxOptions
    from headstart.sandbox.output import OnOutput
    from headstart.sandbox.result import CommandResult
    from headstart.sandbox.sandbox import Branch, Sandbox
    from headstart.sandbox.sandboxes import Sandboxes
    from headstart.sandbox.templates import TemplateOrder

__all__ = [
    "Branch",
    "CellError",
    "CellResult",
    "CommandResult",
    "HostedInfo",
    "HostedSandbox",
    "HostedSandboxes",
    "Kernel",
    "OnOutput",
    "Sandbox",
    "SandboxCheckpoint",
    "SandboxOptions",
    "Sandboxes",
    "Shell",
    "ShellResult",
    "TemplateOrder",
    "connect",
]

_WHERE = {
    "Branch": "headstart.sandbox.sandbox",
    "CellError": "headstart.sandbox.kernels",
    "CellResult": "headstart.sandbox.kernels",
    "CommandResult": "headstart.sandbox.result",
    "HostedInfo": "headstart.sandbox.hosted.messages",
    "HostedSandbox": "headstart.sandbox.hosted.client",
    "HostedSandboxes": "headstart.sandbox.hosted.client",
    "Kernel": "headstart.sandbox.kernels",
    "OnOutput": "headstart.sandbox.output",
    "Sandbox": "headstart.sandbox.sandbox",
    "SandboxCheckpoint": "headstart.runtime.kept",
    "SandboxOptions": "headstart.sandbox.options",
    "Sandboxes": "headstart.sandbox.sandboxes",
    "Shell": "headstart.sandbox.kernels",
    "ShellResult": "headstart.sandbox.kernels",
    "TemplateOrder": "headstart.sandbox.templates",
    "connect": "headstart.sandbox.hosted.client",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: a client of the service must not wait for the backends."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
