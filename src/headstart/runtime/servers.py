"""The servers that there are: their launch specs, keys, effects, and how the core is told of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from headstart.config.model import ServerSettings
from headstart.core.actions import Annotations, Effect, effect_of
from headstart.core.events import PrepareForm, ResourceRegistered, ToolProfile
from headstart.errors import ServerUnavailable
from headstart.ids import PrincipalId, ResourceId
from headstart.runtime.contract import BuiltIn, Catalogue, JsonObject, SessionScope
from headstart.runtime.launch import HostFacts
from headstart.runtime.store import Known
from headstart.runtime.templates import LaunchSpec, launch_spec, remote_digest

__all__ = ["ConfiguredServers"]

READ_METHODS = frozenset(
    {"resources/read", "prompts/get", "completion/complete", "ping", "logging/setLevel"}
    | {"tools/list", "resources/list", "resources/templates/list", "prompts/list"}
)


class ConfiguredServers:
    """The servers of the config that are not disabled, in its order, and then what is part of the service."""

    def __init__(self, servers: Iterable[ServerSettings], host: HostFacts, built_in: BuiltIn | None = None) -> None:
        self._servers = {server.name: server for server in servers if not server.disabled}
        self._built_in = built_in
        if built_in is not None:
            name = built_in.catalogue.server
            self._servers[name] = ServerSettings(name=name, built_in=True, trust_annotations=True)
        self._host = host
        self._specs: dict[ResourceId, LaunchSpec] = {}

    @property
    def names(self) -> tuple[ResourceId, ...]:
        return tuple(self._servers)

    def get(self, name: ResourceId) -> ServerSettings:
        """Return a server's settings.

        Raises:
            ServerUnavailable: There is none of this name.
        """
        server = self._servers.get(name)
        if server is None:
            raise ServerUnavailable(
                f"no server is called {name!r}",
                server=name,
                hint=f"the configured ones are {', '.join(self._servers) or '(none)'}",
            )
        return server

    def built_in(self, name: ResourceId) -> BuiltIn | None:
        """Return the server of this name if it is part of the service."""
        return self._built_in if self.get(name).built_in else None

    def spec(self, name: ResourceId) -> LaunchSpec:
        """Return a stdio server's launch spec; the first time this reads the file system.

        Raises:
            ServerUnavailable: Its command does not exist; asked again, it is looked for again.
        """
        if name not in self._specs:
            self._specs[name] = launch_spec(self.get(name), self._host)
        return self._specs[name]

    def read_specs(self) -> dict[ResourceId, ServerUnavailable]:
        """Find all launch specs (slow; for a thread), and return what is wrong with which server."""
        problems: dict[ResourceId, ServerUnavailable] = {}
        for server in self._servers.values():
            if server.is_process:
                try:
                    self.spec(server.name)
                except ServerUnavailable as exc:
                    problems[server.name] = exc
        return problems

    def renew_spec(self, name: ResourceId) -> LaunchSpec:
        """Look again, since what is installed has changed (slow; for a thread).

        Raises:
            ServerUnavailable: As `spec`; whoever asks next looks again.
        """
        self._specs.pop(name, None)
        return self.spec(name)

    def key(self, name: ResourceId, scope: SessionScope) -> str:
        """Return the key of what is known of a server: its launch spec and the credentials' scope."""
        server, built_in = self.get(name), self.built_in(name)
        if built_in is not None:
            return built_in.catalogue.digest
        if server.remote:
            return f"{remote_digest(server)}/{scope.credentials}" if scope.credentials else remote_digest(server)
        return self.spec(name).digest

    def alike(self, name: ResourceId) -> tuple[ResourceId, ...]:
        """Return the servers with this one's launch spec, itself among them."""
        digest = self._digest(name)
        others = (each for each in self._servers if each != name and digest is not None)
        return (name, *(each for each in others if self._digest(each) == digest))

    def _digest(self, name: ResourceId) -> str | None:
        """Return the digest of a launch spec, None if what it starts has not been found (yet)."""
        server = self.get(name)
        if server.remote:
            return remote_digest(server)
        if server.built_in:
            return None
        spec = self._specs.get(name)
        return None if spec is None else spec.digest

    # ------------------------------------------------------------ effects

    def effect(self, name: ResourceId, method: str, params: JsonObject | None, known: Known | None) -> Effect:
        """Decide what a request may touch."""
        if method in READ_METHODS:
            return Effect.READ
        if method != "tools/call":
            return Effect.WRITE  # a subscription is state of the sandbox
        tool = str((params or {}).get("name", ""))
        return self._tool_effect(self.get(name), tool, _annotations(known.catalogue.tools if known else (), tool))

    def _tool_effect(self, server: ServerSettings, tool: str, annotations: Annotations) -> Effect:
        override = server.effects.get(tool)
        return effect_of(
            override=Effect(override) if override is not None else None,
            annotations=annotations,
            annotations_trusted=server.trust_annotations,
        )

    # ------------------------------------------------------------ for the core

    def registration(
        self, name: ResourceId, principal: PrincipalId, known: Known | None, form: PrepareForm, now_s: float
    ) -> ResourceRegistered:
        """Tell the core what is known of a server."""
        server = self.get(name)
        event = ResourceRegistered(
            at_s=now_s,
            principal=principal,
            resource=name,
            tools=tuple(self._profiles(server, known.catalogue)) if known else (),
            keywords=server.keywords,
            description=_instructions(known.catalogue) if known else "",
            shared=server.shared,
            session_specific=bool(server.session_env),
            remote=not server.is_process,
            looked_for=not server.built_in,
            form=form,
        )
        return event if known is None or known.estimate is None else _with_estimate(event, known)

    def _profiles(self, server: ServerSettings, catalogue: Catalogue) -> Iterable[ToolProfile]:
        for tool in catalogue.tools:
            name = str(tool.get("name", ""))
            schema = _object(tool.get("inputSchema"))
            yield ToolProfile(
                name=name,
                description=str(tool.get("description") or ""),
                argument_names=tuple(_object(schema.get("properties"))),
                read_only=self._tool_effect(server, name, _annotations((tool,), name)) is Effect.READ,
            )


def _with_estimate(event: ResourceRegistered, known: Known) -> ResourceRegistered:
    estimate = known.estimate
    if estimate is None:
        return event
    return replace(event, start_s=estimate.start_s, start_cpu_s=estimate.cpu_s, memory_bytes=estimate.memory_bytes)


def _annotations(tools: Sequence[Mapping[str, object]], name: str) -> Annotations:
    for tool in tools:
        if tool.get("name") == name:
            hints = _object(tool.get("annotations"))
            return Annotations(
                read_only=_flag(hints.get("readOnlyHint")),
                destructive=_flag(hints.get("destructiveHint")),
                open_world=_flag(hints.get("openWorldHint")),
            )
    return Annotations()


def _instructions(catalogue: Catalogue) -> str:
    return str(catalogue.initialize.get("instructions") or "")


def _object(value: object) -> JsonObject:
    return cast("JsonObject", value) if isinstance(value, dict) else {}


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
