"""In front of the tools: MCP in, the runtime behind.

Above it, `cli` composes it into the service's one port; below it, it talks to
`runtime.contract.ToolRuntime` only.
"""

from headstart.gateway.app import Gateway, GatewayOptions, open_gateway
from headstart.gateway.guard import PortGuard, principal_of_key
from headstart.gateway.sessions import ForgetfulMemory, SessionLimits

__all__ = [
    "ForgetfulMemory",
    "Gateway",
    "GatewayOptions",
    "PortGuard",
    "SessionLimits",
    "open_gateway",
    "principal_of_key",
]
