"""In front of the tools: MCP in, the runtime behind.

Above it, `cli` composes `app.open_gateway` and `guard.PortGuard` into the service's one
port; below it, it talks to `runtime.contract.ToolRuntime` only. Nothing is imported
here, because `stdio` must start without the rest.
"""

__all__: list[str] = []
