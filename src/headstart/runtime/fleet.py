"""All sandboxes of this service: carries out start, stop, raise and limit, and finds them by id.

Each sandbox is one task (`Supervised.live`) of the service's task group. What a sandbox's
server says outside of any request goes from here to the sessions that use it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from headstart.backends.contract import Backend, Prepared
from headstart.clock import Clock
from headstart.core.events import (
    Event,
    LimitCpu,
    PrepareForm,
    Priority,
    RaisePriority,
    SandboxStopped,
    StartSandbox,
    StopReason,
    StopSandbox,
)
from headstart.errors import ServerUnavailable
from headstart.ids import PrincipalId, ResourceId, SandboxId, SessionId
from headstart.runtime.contract import Catalogue, ClientChannel, JsonObject, SessionScope
from headstart.runtime.forms import Forms
from headstart.runtime.habits import Habits
from headstart.runtime.handshake import Lists
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Session
from headstart.runtime.statistics import SandboxStatus
from headstart.runtime.supervisor import Order, Supervised

__all__ = ["Fleet", "Home", "LiveSandbox"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What the fleet asks of the service around it.

    Attributes:
        report: Takes events.
        fresh_lists: Told what a fresh server says of itself.
        lists_changed: Told that a running server says that a list of its own has changed.
        tell: Forwards a notification to a session's listener.
        listener: Where a session listens.
        stateless: Tells whether a server spoke the stateless protocol when it was last met.
    """

    report: Callable[[Event], None]
    fresh_lists: Callable[[PrincipalId, ResourceId, Lists], None]
    lists_changed: Callable[[LiveSandbox, str], None]
    tell: Callable[[SessionId, ResourceId, str, JsonObject | None], None]
    listener: Callable[[SessionId], ClientChannel | None]
    stateless: Callable[[ResourceId, SessionScope], bool]


class LiveSandbox:
    """A sandbox, and for whom it is.

    Attributes:
        sessions: Who has used it.
        stop_reason: Why it is being stopped.
        form: From what it was started, as far as that is decided.
    """

    def __init__(self, order: StartSandbox, home: Home) -> None:
        self.order = order
        self.sessions: dict[SessionId, None] = {}
        self.stop_reason: StopReason | None = None
        self.form: PrepareForm | None = None
        self.own_lists: Catalogue | None = None
        """Its lists, if its server has changed them while it ran."""
        self._home = home
        self._supervised: Supervised | None = None

    @property
    def id(self) -> SandboxId:
        return self.order.sandbox

    @property
    def server(self) -> ResourceId:
        return self.order.resource

    @property
    def supervised(self) -> Supervised:
        if self._supervised is None:
            raise RuntimeError(f"{self.id} has no supervisor yet")
        return self._supervised

    def supervise(self, supervised: Supervised) -> None:
        self._supervised = supervised

    def use(self, session: Session) -> None:
        """Note that a session uses this sandbox, and sees its lists."""
        self.sessions[session.id] = None
        if self.own_lists is not None:
            session.own_lists[self.server] = self.own_lists
        else:
            session.own_lists.pop(self.server, None)

    def status(self) -> SandboxStatus:
        """Tell what it is and costs."""
        return SandboxStatus(
            id=self.id,
            server=self.server,
            principal=self.order.principal,
            sessions=tuple(self.sessions),
            because=self.order.cause.because,
            ready=self.supervised.was_ready,
            memory_bytes=self.supervised.usage.memory_bytes,
            cpu_s=self.supervised.usage.cpu_s,
            stands_still=self.supervised.stands_still,
        )

    # ------------------------------------------------------------ what the conversation asks of its owner

    def notified(self, method: str, params: JsonObject | None) -> None:
        if method.endswith("list_changed"):
            self._home.lists_changed(self, method)
            return
        for session in self.sessions:
            self._home.tell(session, self.server, method, params)

    def fallback_channel(self) -> ClientChannel | None:
        """With one session it is clear whom the server means; with several it is not."""
        return self._home.listener(next(iter(self.sessions))) if len(self.sessions) == 1 else None


class Fleet:
    """The sandboxes, by id."""

    def __init__(
        self,
        *,
        backend: Backend,
        clock: Clock,
        servers: ConfiguredServers,
        forms: Forms,
        home: Home,
        tasks: TaskGroup,
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._servers = servers
        self._forms = forms
        self._home = home
        self._tasks = tasks
        self._live: dict[SandboxId, LiveSandbox] = {}
        self._package_locks: dict[str, anyio.Lock] = {}
        self.habits = Habits()
        self.failures: dict[tuple[PrincipalId, ResourceId], ServerUnavailable] = {}
        """The last failure of each server, until it starts again."""
        self._fewer = anyio.Event()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[LiveSandbox]:
        return iter(tuple(self._live.values()))

    def get(self, sandbox: SandboxId) -> LiveSandbox | None:
        return self._live.get(sandbox)

    def package_lock(self, package: str | None) -> anyio.Lock | None:
        return None if package is None else self._package_locks.setdefault(package, anyio.Lock())

    # ------------------------------------------------------------ instructions

    def start(self, order: StartSandbox) -> None:
        live = LiveSandbox(order, self._home)
        server = self._servers.get(order.resource)
        supervised = Supervised(
            Order(
                sandbox=order.sandbox,
                server=server,
                prepared=lambda: self._prepared(live),
                cold_instead=lambda why: self._cold_instead(live, why),
                owner=live,
                session_env=lambda: self._servers.spec(order.resource).session_env,
                background=order.priority is Priority.PREDICTED,
                cpu_limit_s=order.cpu_limit_s,
                package_lock=lambda: self.package_lock(self._servers.spec(order.resource).package),
                on_lists=lambda lists: self._came_up(live, lists),
                stateless=lambda: self._home.stateless(
                    order.resource, SessionScope(session=SessionId(""), principal=order.principal)
                ),
                habits=self.habits,
            ),
            backend=self._backend,
            clock=self._clock,
            report=self._home.report,
        )
        live.supervise(supervised)
        self._live[order.sandbox] = live
        self._tasks.start_soon(self._run, live, name=f"{order.resource} {order.sandbox}")

    def stop(self, instruction: StopSandbox) -> None:
        live = self._live.get(instruction.sandbox)
        if live is not None:
            live.stop_reason = instruction.reason
            live.supervised.stop()
        else:
            self._home.report(SandboxStopped(at_s=self._clock.monotonic_s(), sandbox=instruction.sandbox))

    def raise_priority(self, instruction: RaisePriority) -> None:
        live = self._live.get(instruction.sandbox)
        if live is not None:
            live.supervised.raise_priority()

    def limit_cpu(self, instruction: LimitCpu) -> None:
        live = self._live.get(instruction.sandbox)
        if live is not None:
            live.supervised.limit_cpu(instruction.cpu_s)

    # ------------------------------------------------------------ tasks

    async def _run(self, live: LiveSandbox) -> None:
        where = (live.order.principal, live.server)
        try:
            await live.supervised.live()
        finally:
            del self._live[live.id]
            self._fewer.set()
            self._fewer = anyio.Event()
            if live.supervised.failure is not None:
                self.failures[where] = live.supervised.failure
                _log.warning("%s", live.supervised.failure.in_full)
            elif live.supervised.was_ready:
                self.failures.pop(where, None)
            self._home.report(live.supervised.end())

    async def _prepared(self, live: LiveSandbox) -> Prepared:
        prepared = await self._forms.prepared(live.order.principal, live.server)
        live.form = prepared.form
        return prepared

    async def _cold_instead(self, live: LiveSandbox, why: str) -> Prepared:
        live.form = PrepareForm.COLD
        await self._forms.broken(live.order.principal, live.server, why)
        return await self._forms.cold(live.order.principal, live.server)

    def _came_up(self, live: LiveSandbox, lists: Lists) -> None:
        if live.form is PrepareForm.ZYGOTE:
            self._forms.forked(live.order.principal, live.server)
        self._home.fresh_lists(live.order.principal, live.server, lists)

    async def wait_empty(self) -> None:
        """Return once no sandbox is left."""
        while self._live:
            await self._fewer.wait()

    async def wait_without(self, session: SessionId) -> None:
        """Return once no sandbox is left that a session has used."""
        while any(session in live.sessions for live in self._live.values()):
            await self._fewer.wait()
