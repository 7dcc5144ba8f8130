"""What is said when a server fails: what, where, and the cure.

Models read the messages and the hints. What a server wrote is in neither: its stderr may hold
secrets, and of a shared one what another session did. The operator is told that as well.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from headstart.backends.contract import ExitStatus
from headstart.config.model import ServerSettings
from headstart.errors import ServerUnavailable, StartTimedOut
from headstart.runtime.link import StdioLink

__all__ = [
    "died",
    "exited_early",
    "handshake_refused",
    "how_it_ended",
    "never_answered",
    "never_attached",
    "timed_out_call",
]

SHOWN_LINES = 8
LAUNCHERS = ("npx", "uvx", "uv", "pipx")


def how_it_ended(status: ExitStatus | None, link: StdioLink | None) -> str:
    """Tell the end of a server in a few words."""
    if link is not None and link.failure is not None:
        return link.failure
    if status is None:
        return "it closed its stdout but is still running"
    if status.out_of_memory:
        return "it was killed because its memory limit was reached"
    if status.signal is not None:
        return f"it was killed by signal {status.signal}"
    return f"it exited with code {status.code}"


def exited_early(server: ServerSettings, status: ExitStatus | None, link: StdioLink) -> ServerUnavailable:
    message = f"{server.name}: {how_it_ended(status, link)} before its handshake was done"
    return ServerUnavailable(message, server=server.name, hint=_start_hint(server, status), detail=_last_words(link))


def never_answered(server: ServerSettings, link: StdioLink | None) -> StartTimedOut:
    return StartTimedOut(
        f"{server.name}: it did not answer its handshake within {server.start_timeout_s:g} s",
        server=server.name,
        detail=_last_words(link) if link is not None else "",
        hint=f"raise {server.option('start_timeout_s')}, or run it by hand: {_command(server)}",
    )


def never_attached(server: ServerSettings) -> StartTimedOut:
    """The sandbox itself did not start the command; the server is not to blame."""
    return StartTimedOut(
        f"{server.name}: its sandbox did not start the command within {server.start_timeout_s:g} s",
        server=server.name,
        hint=f"raise {server.option('start_timeout_s')}; headstart doctor checks the backend",
    )


def handshake_refused(server: ServerSettings, reason: str, link: StdioLink) -> ServerUnavailable:
    return ServerUnavailable(
        f"{server.name}: {reason}",
        server=server.name,
        detail=_last_words(link),
        hint=f"check the versions of the server's packages; by hand: {_command(server)}",
    )


def died(server: ServerSettings, status: ExitStatus | None, link: StdioLink) -> ServerUnavailable:
    """A server ended while a call was open."""
    return ServerUnavailable(
        f"{server.name}: {how_it_ended(status, link)} during the call",
        server=server.name,
        detail=_last_words(link),
        hint=_memory_hint(server, status)
        or f"{_how_to_call_again(link)}: a fresh one starts, without what this one held",
    )


def timed_out_call(server: ServerSettings, method: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"{server.name}: {method} got no answer within {server.call_timeout_s:g} s and was cancelled",
        server=server.name,
        hint=f"raise {server.option('call_timeout_s')}",
    )


def _last_words(link: StdioLink) -> str:
    source, lines = "stderr", link.stderr.last(SHOWN_LINES)
    if not lines:
        source, lines = "stdout (no MCP message)", link.stdout_junk.last(SHOWN_LINES)
    if not lines:
        return "it wrote nothing to stderr"
    return f"its last lines on {source}:" + "".join(f"\n  | {line}" for line in lines)


def _how_to_call_again(link: StdioLink) -> str:
    return "call again" if link.failure is None else "ask it for less at once"


def _start_hint(server: ServerSettings, status: ExitStatus | None) -> str:
    by_hand = f"run it by hand to see why: {_command(server)}"
    return _memory_hint(server, status) or _download_hint(server) or _mount_hint(server) or by_hand


def _download_hint(server: ServerSettings) -> str | None:
    """A launcher without network can only start what is in its cache."""
    if Path(server.command or "").name not in LAUNCHERS or server.network != "none":
        return None
    return (
        f"run it once by hand, so that its package is in the cache: {_command(server)}; "
        f'or have {server.option("network")} say "host"'
    )


def _mount_hint(server: ServerSettings) -> str | None:
    """A path that is here but was not shown inside is the likeliest reason."""
    shown = [mount.target or mount.path for mount in server.mounts]
    for argument in server.args:
        path = Path(argument)
        if path.is_absolute() and path.is_dir() and not any(path.is_relative_to(one) for one in shown):
            return f"{path} is not visible in its sandbox: add it to {server.option('mounts')}"
    return None


def _memory_hint(server: ServerSettings, status: ExitStatus | None) -> str | None:
    if status is None or not status.out_of_memory:
        return None
    return f"raise {server.option('memory_mb')}"


def _command(server: ServerSettings) -> str:
    """Name what to run; arguments may hold secrets, and this is told to models, too."""
    program = shlex.quote(server.command or "")
    return f"{program} with mcpServers.{server.name}.args" if server.args else program
