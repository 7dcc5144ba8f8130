"""The files as users write them: shapes on disk, checked by pydantic.

Two files. The `mcpServers` JSON that MCP clients already have is read and never edited;
a server may carry a `headstart` object there. `headstart.toml` holds everything else, and
under `[servers.NAME]` the same keys as that object, for those who leave the JSON alone.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["HeadstartFile", "McpFile", "McpServerEntry", "ServerOptions"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SandboxMountOption(_Strict):
    """A host path that shows at the same path inside."""

    path: str
    mode: Literal["ro", "rw", "overlay"] = "ro"


class MountOption(SandboxMountOption):
    target: str | None = None


class WarmupOption(_Strict):
    tool: str
    arguments: dict[str, object] = {}


class ServerOptions(_Strict):
    """The `headstart` object of a server, or its `[servers.NAME]` table."""

    instance: Literal["session", "shared"] | None = None
    shared: bool | None = None
    zygote: Literal["auto", "never", "always"] | None = None
    network: Literal["none", "host"] | None = None
    mounts: list[MountOption | str] | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    cpu_cores: Annotated[float, Field(gt=0)] | None = None
    pids: Annotated[int, Field(gt=0)] | None = None
    warmup: WarmupOption | None = None
    trust_annotations: bool | None = None
    effects: dict[str, Literal["read", "write", "external"]] | None = None
    keywords: list[str] | None = None
    session_env: list[str] | None = None
    start_timeout_s: Annotated[float, Field(gt=0)] | None = None
    call_timeout_s: Annotated[float, Field(gt=0)] | None = None


class McpServerEntry(BaseModel):
    """One entry of `mcpServers`; keys of other clients (`alwaysAllow`, …) are theirs and ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    type: str | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    disabled: bool = False
    headstart: ServerOptions | None = None


class McpFile(BaseModel):
    """An `mcpServers` file; `servers` is what some editors call the same thing."""

    model_config = ConfigDict(extra="ignore")

    mcpServers: dict[str, object] | None = None  # noqa: N815 the key on disk
    servers: dict[str, object] | None = None


class PoolTable(_Strict):
    mode: Literal["eager", "on-demand", "reserved", "predictive"] | None = None
    zygotes: bool | None = None
    memory_mb: Annotated[int, Field(gt=0)] | None = None
    starts_at_once: Annotated[int, Field(gt=0)] | None = None
    gamma: Annotated[int, Field(gt=0)] | None = None
    prefetch: Literal["priced", "paper"] | None = None
    waste_price: Annotated[float, Field(ge=0)] | None = None
    waste_cpu_share: Annotated[float, Field(ge=0)] | None = None
    waste_cpu_burst_s: Annotated[float, Field(ge=0)] | None = None
    waste_memory_mb: Annotated[int, Field(ge=0)] | None = None
    reserved_sets: Annotated[int, Field(ge=0)] | None = None
    idle_stop_s: Annotated[float, Field(gt=0)] | None = None


class ServiceTable(_Strict):
    host: str | None = None
    port: Annotated[int, Field(ge=0, le=65535)] | None = None
    keys: list[str] | None = None
    allowed_hosts: list[str] | None = None
    allowed_origins: list[str] | None = None
    backend: Literal["auto", "local", "process"] | None = None
    session_idle_s: Annotated[float, Field(gt=0)] | None = None
    session_cap: Annotated[int, Field(gt=0)] | None = None
    learn_timeout_s: Annotated[float, Field(gt=0)] | None = None
    journal: Literal["digests", "full"] | None = None
    learn: bool | None = None
    learn_text: bool | None = None
    node: str | None = None


class SandboxTable(_Strict):
    """The built-in server `sandbox`, and what its sandboxes are made with."""

    enabled: bool | None = None
    template: str | None = None
    network: Literal["none", "host"] | None = None
    mounts: list[SandboxMountOption | str] | None = None
    memory_mb: Annotated[float, Field(gt=0)] | None = None
    cpu_cores: Annotated[float, Field(gt=0)] | None = None
    pids: Annotated[int, Field(gt=0)] | None = None
    disk_mb: Annotated[float, Field(gt=0)] | None = None
    env: dict[str, str] | None = None


class UpstreamOption(_Strict):
    """An upstream with more to say than its URL."""

    url: str
    proxy: str | None = None


class HeadstartFile(_Strict):
    """`headstart.toml`."""

    mcp: str | list[str] = []
    pool: PoolTable = PoolTable()
    service: ServiceTable = ServiceTable()
    sandbox: SandboxTable = SandboxTable()
    upstreams: dict[str, UpstreamOption | str] = {}
    servers: dict[str, ServerOptions] = {}
