"""Runs the service that `headstart serve` was asked for: listens, opens everything, serves, tidies up."""

from __future__ import annotations

import errno
import gc
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import uvicorn

from headstart.cli.app import Application, open_application
from headstart.cli.built_in import serves_sandbox, why_no_sandbox_server
from headstart.cli.service_file import ServiceFile, host_for_url, keep_service_file
from headstart.cli.state import only_one
from headstart.cli.terminal import say
from headstart.clock import SystemClock
from headstart.config.model import Settings
from headstart.errors import ConfigError
from headstart.proxy.port import PortProtocol
from headstart.runtime.tasks import open_tasks

__all__ = ["run_service"]

_GRACE_S = 3
_KEEP_ALIVE_S = 120
"""Longer than clients keep idle connections (5 s is common), so that it is they who close them: a
server that does so at the moment of the next request makes that request fail."""


def run_service(settings: Settings) -> None:
    """Serve until told to stop.

    Raises:
        ConfigError: The port is taken, or a service runs on this state directory already.
        BackendUnavailable: Sandboxes cannot be isolated here.
    """
    with only_one(settings.state_dir), _listening(settings.service.host, settings.service.port) as listener:
        anyio.run(_serve, settings, listener, backend_options={"use_uvloop": True})


async def _serve(settings: Settings, listener: socket.socket) -> None:
    port = int(listener.getsockname()[1])
    settings = replace(settings, service=replace(settings.service, port=port))
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with open_tasks() as tasks:
            ending = _Ending(tasks.cancel_scope)
            tasks.start_soon(_stop_on_signal, signals, ending.begin)
            try:
                await _open_and_serve(settings, listener, ending)
            finally:
                tasks.cancel_scope.cancel()
    say("headstart: stopped")


class _Ending:
    """How the service is told to end: while it opens, by cancelling that; once it serves, by its server.

    Args:
        opening: What is cancelled as long as there is no server.
    """

    def __init__(self, opening: anyio.CancelScope) -> None:
        self._opening = opening
        self._server: _Server | None = None

    def serves(self, server: _Server) -> None:
        """Note that there is a server to be told, from now on."""
        self._server = server

    def begin(self) -> None:
        if self._server is None:
            self._opening.cancel()
        else:
            self._server.should_exit = True


async def _open_and_serve(settings: Settings, listener: socket.socket, ending: _Ending) -> None:
    token = secrets.token_urlsafe(32)
    async with open_application(settings, token=token, stop=ending.begin) as application:
        server = _Server(
            uvicorn.Config(
                application.asgi,
                loop="none",
                http=PortProtocol,  # uvicorn's on httptools, with heads bounded and trailers told
                ws="none",  # an upgrade arrives as plain HTTP and is answered 426 by the proxy
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,  # who the client is, is not for the client to say
                date_header=False,
                timeout_graceful_shutdown=_GRACE_S,
                timeout_keep_alive=_KEEP_ALIVE_S,
            ),
            end_streams=application.gateway.drain,
        )
        ending.serves(server)
        url = _url(listener)
        gc.freeze()  # what stands now stands until the end: walking it again is a pause of 0.1 s in every stream
        with keep_service_file(settings.state_dir, ServiceFile(pid=os.getpid(), url=url, token=token)):
            _announce(settings, url, application)
            await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before we have cleaned up.

    Args:
        config: See uvicorn.
        end_streams: Called when it begins to shut down, so that it need not wait for streams
            that clients hold open for ever.
    """

    def __init__(self, config: uvicorn.Config, *, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end_streams()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _stop_on_signal(signals: AsyncIterator[signal.Signals], stop: Callable[[], None]) -> None:
    async for _ in signals:
        say("headstart: stopping")
        stop()


def _announce(settings: Settings, url: str, application: Application) -> None:
    if not settings.servers and not settings.upstreams:
        say(f"headstart: {url} hosts sandboxes (headstart sandbox create); no servers and no upstreams are configured")
        say("hint: headstart init --from .mcp.json writes a headstart.toml; --mcp FILE names servers directly")
    unusable = application.service.unusable
    usable = [server.name for server in settings.servers if server.name not in unusable]
    count = f"{len(usable)} of {len(settings.servers)}" if unusable else str(len(usable))
    beside = " and the built-in sandbox" if serves_sandbox(settings, application.backend.capabilities) else ""
    noun = "server" if count == "1" else "servers"
    say(f"headstart: {url}/mcp serves {count} {noun} ({', '.join(usable) or 'none'}){beside}")
    if told := why_no_sandbox_server(settings, application.backend.capabilities):
        say(f"headstart: {told}")
    for problem in unusable.values():
        say(f"headstart: cannot start {problem}. hint: {problem.hint}")
    for told in application.service.broker.statistics(SystemClock().monotonic_s()).pool.too_large:
        say(f"headstart: too little memory: {told}")
    for upstream in settings.upstreams:
        path = "/v1" if upstream.prefix == "default" else f"/{upstream.prefix}/v1"
        way = f", {upstream.way}" if upstream.proxy is not None else ""
        say(f"headstart: {url}{path} → {upstream.shown_url}{way}")
    zygotes = "with zygotes" if settings.pool.zygotes else "without zygotes"
    say(
        f"headstart: pool {settings.pool.mode.value}, {zygotes}; isolation: {application.backend.capabilities.isolation}"
    )


@contextmanager
def _listening(host: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2_048)
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            hint = "headstart stop, if it is an old one; or choose another with --port"
            raise ConfigError(f"port {port} on {host} is in use", where="headstart serve", hint=hint) from exc
        hint = "service.host must be an address of this machine, service.port one that you may use"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {exc.strerror}", where="headstart serve", hint=hint
        ) from exc
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host_for_url(host)}:{port}"
