"""The built-in MCP server `sandbox`: each session has a transactional sandbox of its own.

Below are `SandboxHost`, which owns the sandboxes, and the runtime's `BuiltIn`, which this implements;
above is whoever puts a service together.
"""

from headstart.sandbox.tools.server import SANDBOX_SERVER, SandboxServer

__all__ = ["SANDBOX_SERVER", "SandboxServer"]
