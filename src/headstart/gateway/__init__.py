"""In front of the tools: MCP in, the runtime behind.

Above it, `cli` composes it into the service's one port; below it, it talks to
`runtime.contract.ToolRuntime` only.
"""

from headstart.gateway.app import Gateway, GatewayOptions, open_gateway

__all__ = ["Gateway", "GatewayOptions", "open_gateway"]
