"""A service over the real process backend, with real MCP servers written with the SDK."""

import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from headstart.backends.contract import Backend
from headstart.backends.process import open_process_backend
from headstart.clock import SystemClock
from headstart.config.model import PoolMode, PoolSettings, ServerSettings, ServiceSettings, Settings
from headstart.ids import LOCAL_PRINCIPAL, PrincipalId, RandomIds, ResourceId, SessionId
from headstart.runtime.contract import JsonObject, SessionScope
from headstart.runtime.service import Service

SERVERS = Path(__file__).parent / "servers"
NOTES = ResourceId("notes")


def stdio_server(script: str, *args: str, name: ResourceId = NOTES, **more: Any) -> ServerSettings:
    """The settings of one of the servers in `servers/`."""
    return ServerSettings(
        name=name, command=sys.executable, args=(str(SERVERS / script), *args), network="host", **more
    )


def scope(name: str = "ses", *, principal: PrincipalId = LOCAL_PRINCIPAL, **more: Any) -> SessionScope:
    return SessionScope(session=SessionId(name), principal=principal, **more)


def call(tool: str, **arguments: object) -> JsonObject:
    return {"name": tool, "arguments": arguments}


def text_of(result: JsonObject) -> str:
    return "".join(part["text"] for part in result["content"])


@dataclass
class RecordingChannel:
    """A client that notes what it is told, and answers what it is asked."""

    answers: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    told: list[tuple[str, JsonObject | None]] = field(default_factory=list[tuple[str, JsonObject | None]])
    heard: anyio.Event = field(default_factory=anyio.Event)
    capabilities: JsonObject = field(default_factory=lambda: {"roots": {}, "sampling": {}, "elicitation": {}})
    log_level: str | None = None

    async def progress(self, params: JsonObject) -> None:
        self._note("notifications/progress", params)

    async def notify(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> None:
        self._note(method, params)

    async def request(self, method: str, params: JsonObject | None, *, server: ResourceId | None = None) -> JsonObject:
        self._note(method, params)
        return self.answers[method]

    def _note(self, method: str, params: JsonObject | None) -> None:
        self.told.append((method, params))
        self.heard.set()

    async def wait_for(self, method: str) -> JsonObject | None:
        """Return what came with the first message of this method, waiting for it."""
        with anyio.fail_after(10):
            while True:
                for told, params in self.told:
                    if told == method:
                        return params
                self.heard = anyio.Event()
                await self.heard.wait()


def scripted(name: str, folder: Path, **more: Any) -> ServerSettings:
    """The settings of a server that `FakeBackend` plays; its command must exist to be found."""
    command = folder / f"mcp-{name}"
    if not command.exists():  # its time is part of what it is known by
        command.touch(mode=0o755)
    return ServerSettings(name=ResourceId(name), command=str(command), **more)


OpenService = Callable[..., AbstractAsyncContextManager[Service]]


@pytest.fixture
def open_service(tmp_path: Path) -> OpenService:
    """Opens services that share one state folder, one after the other."""

    @asynccontextmanager
    async def opened(
        *servers: ServerSettings, pool: PoolSettings | None = None, backend: Backend | None = None, **service: Any
    ) -> AsyncGenerator[Service]:
        settings = Settings(
            servers=servers,
            state_dir=tmp_path / "state",
            pool=pool or PoolSettings(mode=PoolMode.ON_DEMAND, zygotes=False),
            service=ServiceSettings(**service),
        )
        parts: dict[str, Any] = {"settings": settings, "clock": SystemClock(), "ids": RandomIds()}
        if backend is not None:
            async with Service.open(backend=backend, **parts) as running:
                yield running
        else:
            async with open_process_backend(tmp_path / "backend") as own, Service.open(backend=own, **parts) as running:
                yield running

    return opened
