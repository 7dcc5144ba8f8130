"""Puts the service together: backend, runtime, gateway, proxy and control routes on one port, sandboxes behind a socket."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.api.control import CONTROL_PREFIX, control_app
from headstart.backends.contract import Backend
from headstart.cli.backends import open_backend
from headstart.cli.built_in import sandbox_server
from headstart.cli.controlled import Control
from headstart.clock import SystemClock
from headstart.config.model import Settings
from headstart.gateway.app import Gateway, GatewayOptions, open_gateway
from headstart.gateway.guard import PortGuard
from headstart.gateway.sessions import SessionLimits
from headstart.ids import LOCAL_PRINCIPAL, PRINCIPAL_SCOPE_KEY, PrincipalId, RandomIds
from headstart.proxy.app import ModelProxy, open_proxy
from headstart.proxy.refusals import Refusal
from headstart.runtime.service import Service
from headstart.sandbox.hosted import SandboxHost, open_door
from headstart.sandbox.templates import TemplateStore

__all__ = ["Application", "nothing_at", "open_application"]


@dataclass(frozen=True, slots=True)
class Application:
    """All that runs behind the port.

    Attributes:
        asgi: What the HTTP server serves.
    """

    asgi: ASGIApp
    backend: Backend
    service: Service
    gateway: Gateway


MODEL_ROUTES = ("/chat/completions", "/completions", "/embeddings", "/messages", "/models", "/responses")
"""What SDKs ask for behind their base URL."""


class _Routes:
    """Who answers which path."""

    def __init__(self, *, gateway: Gateway, proxy: ModelProxy, control: ASGIApp) -> None:
        self._gateway = gateway
        self._proxy = proxy
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.startswith(CONTROL_PREFIX):
            await self._control(scope, receive, send)
        elif scope["type"] == "http" and self._gateway.serves(path):
            self._proxy.catch_up()  # a fast client calls within milliseconds of the bytes that asked for it
            await self._gateway(scope, receive, send)
        elif scope["type"] == "websocket" or self._proxy.claims(path):
            await self._proxy(scope, receive, send)
        else:
            await nothing_at(path).send(send)


def nothing_at(path: str) -> Refusal:
    """Tell a client that came to a wrong path, in the shape that the SDKs of models show, where to go."""
    hint = "MCP is at /mcp and /mcp/<server>, models are at /v1 and /<upstream>/v1; /s/<id> in front names a session"
    if path.endswith(MODEL_ROUTES):
        hint = "give the SDK a base URL that ends in /v1 (headstart env prints it)"
    return Refusal(status=404, code="no_route", message=f"nothing is at {path}", hint=hint)


@asynccontextmanager
async def open_application(settings: Settings, *, token: str, stop: Callable[[], None]) -> AsyncGenerator[Application]:
    """Run everything while the block runs; on leaving, it drains, bounded, and leaves nothing behind.

    Args:
        settings: What to serve.
        token: What the control routes ask for.
        stop: Called when the control routes are asked to stop.

    Raises:
        ConfigError: The state directory cannot be used.
        BackendUnavailable: This machine cannot isolate as configured.
    """
    clock, ids = SystemClock(), RandomIds()
    service_settings = settings.service
    async with (
        open_backend(settings) as backend,
        SandboxHost.open(
            backend,
            templates=TemplateStore(settings.state_dir / "templates"),
            folder=settings.state_dir / "hosted",
            clock=clock,
            ids=ids,
            node=service_settings.node,
        ) as host,
        Service.open(
            settings=settings,
            backend=backend,
            clock=clock,
            ids=ids,
            built_in=sandbox_server(settings, host, backend.capabilities),
        ) as service,
        open_gateway(
            service,
            options=GatewayOptions(
                sessions=SessionLimits(idle_s=service_settings.session_idle_s, cap=service_settings.session_cap)
            ),
            memory=service.session_memory,
            remotes={server.name: server.url for server in settings.servers if server.url is not None},
            clock=clock,
            ids=ids,
        ) as gateway,
        open_proxy(
            settings.upstreams, observe=service.observe, principal_of=_principal_of, clock=clock, ids=ids
        ) as proxy,
        open_door(host, settings.state_dir),
    ):
        service.count_hosted(host.memory_bytes)
        control = Control(
            settings=settings, backend=backend, service=service, proxy=proxy, host=host, clock=clock, stop=stop
        )
        routes = _Routes(gateway=gateway, proxy=proxy, control=control_app(control, token=token))
        guard = PortGuard(
            routes,
            host=service_settings.host,
            keys=service_settings.keys,
            allowed_hosts=service_settings.allowed_hosts,
            allowed_origins=service_settings.allowed_origins,
            self_checked=(CONTROL_PREFIX, "/.well-known/"),
        )
        yield Application(guard, backend, service, gateway)


def _principal_of(scope: Scope) -> PrincipalId:
    principal: PrincipalId = scope.get(PRINCIPAL_SCOPE_KEY, LOCAL_PRINCIPAL)
    return principal
