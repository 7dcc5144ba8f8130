"""What to set so that a given agent goes through Headstart: two URLs, in each one's own words.

What is printed is made for `eval`: it sets variables and does nothing else. Every other
step (a command that changes an agent's own settings, a line of its config) is a comment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headstart.errors import ConfigError

if TYPE_CHECKING:
    from headstart.config.model import Upstream

__all__ = ["AGENTS", "Endpoint", "instructions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where the service is, for one session or for all.

    Attributes:
        root: `http://127.0.0.1:8787`, with `/s/<id>` behind it if a session was named.
        upstreams: What the proxy stands in front of.
        key: True if the service asks for a key.
    """

    root: str
    upstreams: tuple[Upstream, ...]
    key: bool = False

    @property
    def mcp(self) -> str:
        return f"{self.root}/mcp"

    def named(self, prefix: str) -> str | None:
        """The base URL of the upstream with this prefix, without an API version; None if there is none."""
        known = any(upstream.prefix == prefix for upstream in self.upstreams)
        return f"{self.root}/{prefix}" if known else None

    def model(self, *preferred: str) -> str:
        """The base URL for a model API: the first upstream of these names, else the default one."""
        for upstream in self.upstreams:
            if upstream.prefix in preferred:
                return f"{self.root}/{upstream.prefix}/v1"
        if self.upstreams and not any(upstream.prefix == "default" for upstream in self.upstreams):
            return f"{self.root}/{self.upstreams[0].prefix}/v1"
        return f"{self.root}/v1"


def _openai(endpoint: Endpoint) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={endpoint.model('openai')}",
        f"export MCP_URL={endpoint.mcp}",
        "# give MCP_URL to your MCP client (streamable HTTP)",
    ]


def _openai_agents(endpoint: Endpoint) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={endpoint.model('openai')}",
        f'# MCPServerStreamableHttp(params={{"url": "{endpoint.mcp}"}})',
        '# set_default_openai_api("chat_completions")   # the Responses API passes through, but is not read yet',
    ]


def _claude_code(endpoint: Endpoint) -> list[str]:
    tools = ["# once, for the tools:", f"#   claude mcp add --transport http headstart {endpoint.mcp}"]
    base = endpoint.named("anthropic")
    if base is None:
        return [
            *tools,
            "# the model is not served: no upstream is called anthropic. To have it go through Headstart too,",
            "# add this to headstart.toml under [upstreams], and start the service again:",
            '#   anthropic = "https://api.anthropic.com/v1"',
        ]
    return [
        f"export ANTHROPIC_BASE_URL={base}",
        *tools,
        "# Anthropic messages pass through, but are not read yet: prefetching works, prewarming from tokens does not",
    ]


def _codex(endpoint: Endpoint) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={endpoint.model('openai')}",
        "# in ~/.codex/config.toml:",
        "#   [mcp_servers.headstart]",
        f'#   url = "{endpoint.mcp}"',
    ]


def _langgraph(endpoint: Endpoint) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={endpoint.model('openai')}",
        f'# MultiServerMCPClient({{"headstart": {{"transport": "streamable_http", "url": "{endpoint.mcp}"}}}})',
    ]


def _cursor(endpoint: Endpoint) -> list[str]:
    remote, local = {"url": endpoint.mcp}, {"command": "headstart", "args": ["mcp"]}
    return _in_settings(endpoint, ".cursor/mcp.json", "mcpServers", remote=remote, local=local)


def _vscode(endpoint: Endpoint) -> list[str]:
    remote = {"type": "http", "url": endpoint.mcp}
    local = {"type": "stdio", "command": "headstart", "args": ["mcp"]}
    return _in_settings(endpoint, ".vscode/mcp.json", "servers", remote=remote, local=local)


def _opencode(endpoint: Endpoint) -> list[str]:
    remote, local = {"type": "remote", "url": endpoint.mcp}, {"type": "local", "command": ["headstart", "mcp"]}
    return _in_settings(endpoint, "opencode.json", "mcp", remote=remote, local=local)


def _in_settings(
    endpoint: Endpoint, file: str, table: str, *, remote: Mapping[str, object], local: Mapping[str, object]
) -> list[str]:
    return [
        f"export OPENAI_BASE_URL={endpoint.model('openai')}",
        f"# in {file}:",
        f"#   {json.dumps({table: {'headstart': remote}})}",
        "# or over stdio:",
        f"#   {json.dumps({table: {'headstart': local}})}",
    ]


AGENTS: Mapping[str, Callable[[Endpoint], list[str]]] = {
    "openai": _openai,
    "openai-agents": _openai_agents,
    "langgraph": _langgraph,
    "claude-code": _claude_code,
    "codex": _codex,
    "cursor": _cursor,
    "vscode": _vscode,
    "opencode": _opencode,
}


def instructions(agent: str, endpoint: Endpoint) -> str:
    """Return lines for a shell to evaluate: variables, and comments for everything else.

    Raises:
        ConfigError: The agent is not known here; the hint lists those that are.
    """
    if agent not in AGENTS:
        raise ConfigError(
            "no such agent", where="headstart env", key=agent, hint=f"known: {', '.join(AGENTS)}; any other: openai"
        )
    lines = AGENTS[agent](endpoint)
    if endpoint.key:
        lines.append("# the service asks for a key: send it as X-Headstart-Key, and to /mcp also as a bearer token")
    return "\n".join(lines)
