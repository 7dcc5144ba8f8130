"""Sandboxes from Python: create one, run commands in it, read and write its files.

async with headstart.Sandbox.create() as box:
await box.files.write("hello.py", b"print('hello')")
print((await box.run("python3 hello.py")).stdout)
"""

from headstart.sandbox.options import SandboxOptions
from headstart.sandbox.result import CommandResult
from headstart.sandbox.sandboxes import OnOutput, Sandbox, Sandboxes

__all__ = ["CommandResult", "OnOutput", "Sandbox", "SandboxOptions", "Sandboxes"]
