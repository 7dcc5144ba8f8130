"""The settings as the rest of the code sees them: plain frozen values, already checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headstart.ids import ResourceId

__all__ = [
    "RESERVED_PREFIXES",
    "EffectName",
    "ForwardProxy",
    "MountSetting",
    "PoolMode",
    "PoolSettings",
    "SandboxSettings",
    "ServerSettings",
    "ServiceSettings",
    "Settings",
    "Upstream",
    "WarmupCall",
]

EffectName = str
"""`read`, `write` or `external`."""


class PoolMode(Enum):
    """Who is warm when."""

    EAGER = "eager"
    ON_DEMAND = "on-demand"
    RESERVED = "reserved"
    PREDICTIVE = "predictive"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSetting:
    """A host path a server may see.

    Attributes:
        written: As the user gave it, where that was a relative path; for messages.
    """

    path: Path
    mode: str = "ro"
    """`ro`, `rw` or `overlay` (writable, and gone with the sandbox)."""
    target: Path | None = None
    written: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupCall:
    """A READ call that a fresh sandbox answers before it counts as warm."""

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """One entry of `mcpServers`, with its `headstart` object.

    Attributes:
        command, args, env, cwd: A stdio server's launch spec; `command` is None for a remote one.
        folder: Of the file that it stands in: where its client would start it, without a `cwd`.
        url, headers: A remote server's (streamable HTTP).
        shared: One sandbox for all sessions of a principal.
        zygote: `auto`, `never`, or `always` (fail instead of starting cold).
        network: `none` or `host`.
        trust_annotations: Believe the server's own tool hints.
        effects: Tool name to effect, the operator's override.
        keywords: More words that point to this server.
        session_env: Names in `env` whose values differ per session.
        start_timeout_s / call_timeout_s: Deadlines; None means no limit for calls.
        built_in: It is part of the service: it has neither a command nor a URL.
        options_key / options_file: Where all but the launch spec is set or would be, for messages; see `option`.
    """

    name: ResourceId
    command: str | None = None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: Path | None = None
    folder: Path | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    shared: bool = False
    zygote: str = "auto"
    network: str = "none"
    mounts: tuple[MountSetting, ...] = ()
    memory_mb: int | None = None
    cpu_cores: float | None = None
    pids: int | None = None
    warmup: WarmupCall | None = None
    trust_annotations: bool = False
    effects: Mapping[str, EffectName] = field(default_factory=dict[str, str])
    keywords: tuple[str, ...] = ()
    session_env: tuple[str, ...] = ()
    start_timeout_s: float = 120.0
    call_timeout_s: float | None = None
    disabled: bool = False
    built_in: bool = False
    options_key: str = field(default="", compare=False)
    options_file: str = field(default="", compare=False)

    def option(self, name: str) -> str:
        """Say where the user sets an option.

        >>> ServerSettings(name=ResourceId("git")).option("mounts")
        'mcpServers.git.headstart.mounts'
        """
        key = f"{self.options_key or f'mcpServers.{self.name}.headstart'}.{name}"
        return f"{key} ({self.options_file})" if self.options_file else key

    @property
    def remote(self) -> bool:
        return self.url is not None

    @property
    def is_process(self) -> bool:
        """Whether it is a program that is started in a sandbox."""
        return not self.remote and not self.built_in

    @property
    def offline(self) -> bool:
        """Whether it is to be started without a network."""
        return self.is_process and self.network == "none"

    @property
    def base(self) -> Path | None:
        """What the relative paths of its launch spec are relative to."""
        return self.cwd or self.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How much may be done early, and with what.

    Attributes:
        memory_mb: For all sandboxes and zygotes together.
        starts_at_once: Start slots; None means one per CPU core.
        gamma: Distinct keyword hits that make a server a candidate.
        prefetch: `priced` or `paper` (SpecBox's thresholds).
        waste_price: λ of the bet rule: seconds that one wasted CPU-second is worth.
        waste_cpu_share: Wasted CPU-seconds allowed per second of wall time.
        waste_cpu_burst_s: Wasted CPU-seconds allowed at once, after a quiet time.
        waste_memory_mb: Memory that unclaimed bets may hold at any time.
        reserved_sets: In `reserved`: complete sets kept warm for sessions that have not come yet.
        idle_stop_s: When a sandbox that only served READ calls may be stopped at the latest.
    """

    mode: PoolMode = PoolMode.PREDICTIVE
    zygotes: bool = True
    memory_mb: int = 4_000
    starts_at_once: int | None = None
    gamma: int = 2
    prefetch: str = "priced"
    waste_price: float = 0.2
    waste_cpu_share: float = 0.5
    waste_cpu_burst_s: float = 20.0
    waste_memory_mb: int = 1_500
    reserved_sets: int = 1
    idle_stop_s: float = 600.0


RESERVED_PREFIXES = frozenset({"headstart", "k", "mcp", "s", "v1"})
"""What the first part of a path means something else by; no upstream has such a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardProxy:
    """An HTTP proxy on the way to a model server.

    Attributes:
        credentials: `user:password`, never shown.
        source: Where it was set, for messages.
    """

    host: str
    port: int
    credentials: str | None = field(default=None, repr=False)
    source: str

    @property
    def shown(self) -> str:
        """Its URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A model server behind the proxy: `/<prefix>/v1/…` goes to `<base_url>/…`.

    `base_url` ends in the API's version, as SDKs take it (`https://api.openai.com/v1`).
    The upstream named `default` also answers at `/v1/…`. `proxy` is what it is reached through, None if directly.
    """

    prefix: str
    base_url: str
    proxy: ForwardProxy | None = None

    @property
    def way(self) -> str:
        """How it is reached, in words; without credentials."""
        return "directly" if self.proxy is None else f"through {self.proxy.shown} ({self.proxy.source})"

    @property
    def shown_url(self) -> str:
        """Its base URL without the query, which may hold a key."""
        return self.base_url.partition("?")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The port and who may use it.

    Attributes:
        keys: API keys; each is its own principal. Required off loopback.
        session_idle_s / session_cap: When abandoned sessions end, and how many are kept.
        learn_timeout_s: How long a first list waits for learning.
        journal: `digests` or `full` (content too).
        learn: Add to what is known of a principal's habits; without it, what was learned before is used.
        node: What this machine is called in the ids of hosted sandboxes, where there are several; None: nothing.
        learn_text: Remember texts that led to calls; None: only while there is one principal.
    """

    host: str = "127.0.0.1"
    port: int = 8787
    keys: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    backend: str = "auto"
    """`auto` (local, or refuse), `local` or `process` (no isolation)."""
    session_idle_s: float = 1_800.0
    session_cap: int = 1_000
    learn_timeout_s: float = 60.0
    journal: str = "digests"
    learn: bool = True
    learn_text: bool | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    """The built-in MCP server `sandbox`.

    Attributes:
        enabled: Whether it is served; None: where sandboxes are isolated.
        template, …: What its sandboxes are made with; None is what any sandbox has.
    """

    enabled: bool | None = None
    template: str | None = None
    network: str | None = None
    mounts: tuple[MountSetting, ...] = ()
    memory_mb: float | None = None
    cpu_cores: float | None = None
    pids: int | None = None
    disk_mb: float | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything, from all files, defaults filled in.

    Attributes:
        state_dir: Where state lives (0700); the files in it are 0600.
    """

    servers: tuple[ServerSettings, ...]
    state_dir: Path
    pool: PoolSettings = PoolSettings()
    service: ServiceSettings = ServiceSettings()
    upstreams: tuple[Upstream, ...] = ()
    sandbox: SandboxSettings = SandboxSettings()
