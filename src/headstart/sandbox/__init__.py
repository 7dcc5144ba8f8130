"""Sandboxes from Python: create one, run commands in it, read and write its files.

async with headstart.Sandbox.create() as box:
await box.files.write("hello.py", b"print('hello')")
print((await box.run("python3 hello.py")).stdout)
"""

from headstart.runtime.lineage import SandboxCheckpoint
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
