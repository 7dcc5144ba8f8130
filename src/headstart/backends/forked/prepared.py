"""A zygote in its sandbox, and how long both live.

The zygote runs in a sandbox of its own, the *nest*, and its forks are nested in there. The
zygote may be let go of, or crash, while forks live on: the nest stays until the last of
them has ended.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from headstart.backends.contract import Command, Preload, Template, Usage
from headstart.backends.spawner.accounting import tree_usage
from headstart.backends.spawner.channel import Channel, Execution
from headstart.backends.spawner.client import SpawnerClient
from headstart.backends.spawner.link import Link
from headstart.backends.spawner.sandbox import SpawnedSandbox
from headstart.backends.spawner.streams import StdioPipes
from headstart.backends.zygote import ForkRequest, ZygoteProcess, zygote_command
from headstart.core.events import PrepareForm
from headstart.errors import BackendError

__all__ = ["Fork", "Nest", "open_nest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A server that was forked: the channel to its init, its stdio and its execution."""

    channel: Channel
    pipes: StdioPipes
    server: Execution


class Nest:
    """A zygote and the sandbox that it and its forks live in; made by `open_nest`."""

    def __init__(
        self, template: Template, sandbox: SpawnedSandbox, zygote: ZygoteProcess, client: SpawnerClient
    ) -> None:
        self._client = client
        self._template = template
        self._sandbox = sandbox
        self._zygote = zygote
        self._preload_cpu_s = 0.0
        self._forks: dict[Channel, StdioPipes] = {}
        self._wanted = True

    @property
    def template(self) -> Template:
        return self._template

    @property
    def form(self) -> PrepareForm:
        return PrepareForm.ZYGOTE

    @property
    def polite(self) -> bool:
        """Whether servers are given time to end by themselves: in forks as in the sandbox around them."""
        return self._sandbox.polite

    @property
    def preload_cpu_s(self) -> float:
        return self._preload_cpu_s

    async def usage(self) -> Usage:
        """Count the zygote's own share and a fork that nobody has wanted yet, without the others."""
        forks = [channel.pid for channel in self._forks]
        return await anyio.to_thread.run_sync(tree_usage, self._sandbox.pid, forks)

    async def preload(self, preload: Preload, *, confine: Path, ahead: Mapping[str, Any] | None) -> None:
        """Have the zygote import what it is to; once."""
        report = await self._zygote.preload(preload, confine=confine, ahead=ahead)
        self._preload_cpu_s = report.cpu_s

    async def fork(self, command: Command, *, plan: Mapping[str, Any]) -> Fork:
        """Fork a server and return once it is confined. If cancelled, nothing is left of it.

        Every fork must be followed by one `let_go` of its channel, after it has ended.

        Raises:
            BackendError: The zygote is gone, or the fork could not be confined.
        """
        link, theirs = Link.pair()
        channel = Channel(link, spawner=self._client.pid)
        server = channel.adopt()
        self._client.serve(channel)
        pipes = StdioPipes.open()
        self._forks[channel] = pipes
        try:
            with theirs, ExitStack() as handed_over:
                handed_over.callback(pipes.hand_over)
                request = ForkRequest(
                    env=command.env,
                    cwd=command.cwd,
                    stdio=pipes.theirs,
                    plan=plan,
                    plan_fds={"control_fd": theirs.fileno()},
                )
                await self._zygote.fork(request)
            await channel.wait_ready()
        except BaseException:
            await channel.end()
            pipes.close()
            await self.let_go(channel)
            raise
        return Fork(channel=channel, pipes=pipes, server=server)

    async def let_go(self, fork: Channel) -> None:
        """Forget a fork; the last one of an unwanted nest takes the nest along."""
        self._forks.pop(fork, None)
        await self._leave_if_unused()

    async def aclose(self) -> None:
        """End the zygote; its forks live on."""
        self._wanted = False
        self._zygote.close()
        await self._leave_if_unused()

    def abandon(self) -> None:
        """Close what is open here, when everything has ended with the spawner anyway."""
        self._zygote.close()
        for pipes in self._forks.values():
            pipes.close()

    async def _leave_if_unused(self) -> None:
        if not self._wanted and not self._forks:
            await self._sandbox.aclose()


async def open_nest(
    template: Template,
    sandbox: SpawnedSandbox,
    client: SpawnerClient,
    *,
    confine: Path,
    ahead: Mapping[str, Any] | None = None,
) -> Nest:
    """Start the template's zygote in `sandbox` and let it preload.

    The nest owns the sandbox from here on, also if this fails.

    Args:
        template: What to preload, and what forks will be.
        sandbox: Where the zygote and its forks live.
        client: To the spawner that has started it.
        confine: The backend's guest module.
        ahead: The plan that most forks will have, if they share one: a fork is kept ready for it.

    Raises:
        BackendError: It cannot be preloaded, or must not be forked.
    """
    if template.preload is None:
        raise BackendError(f"{template.name} has nothing to preload")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nest = Nest(template, sandbox, ZygoteProcess(ours, name=template.name), client)
    client.call_at_end(nest.abandon)
    try:
        with theirs:
            await _start_preloader(template.preload, sandbox, theirs)
        await nest.preload(template.preload, confine=confine, ahead=ahead)
    except BaseException:
        await nest.aclose()
        raise
    return nest


async def _start_preloader(preload: Preload, sandbox: SpawnedSandbox, control: socket.socket) -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        descriptors = [nothing, nothing, nothing, control.fileno()]
        await sandbox.start_entry_as(zygote_command(preload, control=3), descriptors)
    finally:
        os.close(nothing)
