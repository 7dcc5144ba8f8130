"""Whether the built-in server `sandbox` is served, and what its sandboxes are made with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headstart.backends.contract import Capabilities, Network
from headstart.config.model import Settings
from headstart.sandbox import SandboxOptions
from headstart.sandbox.hosted import SandboxHost
from headstart.sandbox.options import HOST
from headstart.sandbox.templates import TemplateStore
from headstart.sandbox.tools import SANDBOX_SERVER, SandboxServer

__all__ = ["sandbox_server", "serves_sandbox", "why_no_sandbox_server"]


def sandbox_server(settings: Settings, host: SandboxHost, capabilities: Capabilities) -> SandboxServer | None:
    """Return the built-in server, None if it is not to be served.

    Raises:
        ConfigError: Its sandboxes cannot be made as configured.
    """
    if not serves_sandbox(settings, capabilities):
        return None
    given: dict[str, Any] = asdict(settings.sandbox)
    del given["enabled"]
    given["mounts"] = {str(mount.path): mount.mode for mount in settings.sandbox.mounts}
    options = SandboxOptions(**{name: value for name, value in given.items() if value is not None}).complete()
    if options.template != HOST:
        TemplateStore(settings.state_dir / "templates").read(options.template)  # so that a wrong name is told now
    return SandboxServer(host, options, capabilities, away_s=settings.service.session_idle_s)


def serves_sandbox(settings: Settings, capabilities: Capabilities) -> bool:
    """Whether the built-in server is served."""
    return _is_enabled(settings, capabilities) and not _is_shadowed(settings)


def why_no_sandbox_server(settings: Settings, capabilities: Capabilities) -> str | None:
    """Say why the built-in server is not served, with the cure; None if it is, or was switched off."""
    if settings.sandbox.enabled is False:
        return None
    if _is_shadowed(settings):
        cure = "rename yours to have both, or say enabled = false under [sandbox]"
        return f"your server called {SANDBOX_SERVER} is served in place of the built-in one. hint: {cure}"
    if not _is_enabled(settings, capabilities):
        cure = "enabled = true under [sandbox] serves it all the same"
        return f"the built-in server {SANDBOX_SERVER} is not served, since nothing isolates it here. hint: {cure}"
    return None


def _is_shadowed(settings: Settings) -> bool:
    return any(server.name == SANDBOX_SERVER for server in settings.servers)


def _is_enabled(settings: Settings, capabilities: Capabilities) -> bool:
    """Unless somebody has said so, an agent is not given what reaches the whole host."""
    enabled = settings.sandbox.enabled
    return Network.NONE in capabilities.network if enabled is None else enabled
