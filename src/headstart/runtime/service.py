"""The runtime as one object: `Service` implements `ToolRuntime`.

It wires the parts and owns nothing of its own: the `Driver` decides, the `Fleet` holds
sandboxes, `Sessions` the sessions, the `Learner` learns, the `Store` and the `Journal`
remember. A call goes through here in four steps: it arrives (an event), a lease is granted
or refused (an instruction), it is sent and answered, and it has returned (an event).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_never, cast

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError

from headstart.backends.contract import Backend
from headstart.clock import Clock
from headstart.config.model import ServerSettings, Settings
from headstart.core.actions import Effect, action_key, canonical_arguments
from headstart.core.broker import Broker
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    DrainRequested,
    GrantLease,
    Instruction,
    LeaseRefusal,
    RaisePriority,
    RefuseLease,
    SessionClosed,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopSandbox,
)
from headstart.core.stream import GenerationStarted, ModelEvent
from headstart.errors import (
    BudgetExceeded,
    HeadstartError,
    SandboxLost,
    ServerUnavailable,
    SessionUnknown,
    StartTimedOut,
)
from headstart.ids import CallId, IdSource, PrincipalId, ResourceId, SandboxId, SessionId
from headstart.runtime import faults
from headstart.runtime.catalogues import Catalogues
from headstart.runtime.contract import (
    Catalogue,
    ClientChannel,
    JsonObject,
    LearnProgress,
    ServerEntry,
    SessionScope,
)
from headstart.runtime.driver import Driver
from headstart.runtime.fleet import Fleet, Home, LiveSandbox
from headstart.runtime.handshake import as_catalogue
from headstart.runtime.journal import BootIds, Header, Journal, open_journal
from headstart.runtime.launch import HostFacts
from headstart.runtime.learning import Learner, SandboxLearning
from headstart.runtime.policies import broker_policy
from headstart.runtime.preparations import Preparations, open_preparations
from headstart.runtime.remotes import RemoteHome, Remotes
from headstart.runtime.rpc import Exchange
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Session, Sessions
from headstart.runtime.store import Known, Store, open_store

__all__ = ["Service"]

DRAIN_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a service is wired from."""

    settings: Settings
    backend: Backend
    clock: Clock
    ids: IdSource
    tasks: TaskGroup
    store: Store
    journal: Journal
    preparations: Preparations
    servers: ConfiguredServers
    header: Header


@dataclass(frozen=True, slots=True)
class _Lease:
    """Where a call goes (None: to a remote server), and what it may touch."""

    sandbox: LiveSandbox | None
    effect: Effect


class _Waiting:
    """A call whose lease is not decided yet."""

    __slots__ = ("decided", "decision")

    def __init__(self) -> None:
        self.decided = anyio.Event()
        self.decision: GrantLease | RefuseLease | None = None


class Service:
    """Everything that runs; made by `Service.open`."""

    def __init__(self, parts: _Parts) -> None:
        self._settings = parts.settings
        self._backend = parts.backend
        self._clock = parts.clock
        self._ids = parts.ids
        self._tasks = parts.tasks
        self._store = parts.store
        self._journal = parts.journal
        self._preparations = parts.preparations
        self._servers = parts.servers
        self.broker = Broker(parts.header.policy, BootIds(parts.header.boot))
        self._driver = Driver(decider=self.broker, journal=parts.journal, clock=parts.clock, execute=self._execute)
        self._sessions = Sessions(parts.tasks)
        self._catalogues = Catalogues(
            servers=self._servers,
            store=self._store,
            sessions=self._sessions,
            clock=self._clock,
            report=self._driver.handle,
        )
        self._fleet = Fleet(
            backend=self._backend,
            clock=self._clock,
            servers=self._servers,
            preparations=self._preparations,
            home=self._home(),
            tasks=self._tasks,
        )
        self._learner = Learner(
            tasks=self._tasks,
            clock=self._clock,
            timeout_s=self._settings.service.learn_timeout_s,
            at_once=parts.header.policy.pool.starts_at_once,
        )
        self._learn_in_sandbox = SandboxLearning(
            servers=self._servers,
            preparations=self._preparations,
            backend=self._backend,
            clock=self._clock,
            ids=self._ids,
            package_lock=self._fleet.package_lock,
        )
        self._remotes = Remotes(servers=self._servers, home=self._remote_home, clock=self._clock, tasks=self._tasks)
        self._waiting: dict[CallId, _Waiting] = {}
        self._tasks.start_soon(self._driver.run_timer, name="timer")

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *,
        settings: Settings,
        backend: Backend,
        clock: Clock,
        ids: IdSource,
        host: HostFacts | None = None,
    ) -> AsyncGenerator[Service]:
        """Run the service while the context is open; on leaving, it drains, bounded.

        `host` says where commands and caches are looked for; None reads this process's environment.

        Raises:
            ConfigError: The state folder cannot be used.
        """
        servers = ConfiguredServers(settings.servers, host or HostFacts.here())
        header = Header(
            boot=ids.new("run").partition("_")[2][:8],
            mode=settings.service.journal,
            policy=broker_policy(settings),
            began_wall_s=clock.wall_s(),
            began_s=clock.monotonic_s(),
        )
        async with (
            open_store(settings.state_dir, clock) as store,
            open_journal(settings.state_dir / "journal", header) as journal,
            open_preparations(backend) as preparations,
            anyio.create_task_group() as tasks,
        ):
            for problem in (await anyio.to_thread.run_sync(servers.read_specs)).values():
                _log.warning("%s. hint: %s", problem, problem.hint)
            service = cls(
                _Parts(
                    settings=settings,
                    backend=backend,
                    clock=clock,
                    ids=ids,
                    tasks=tasks,
                    store=store,
                    journal=journal,
                    preparations=preparations,
                    servers=servers,
                    header=header,
                )
            )
            try:
                yield service
            finally:
                with anyio.CancelScope(shield=True):
                    await service.drain()
                tasks.cancel_scope.cancel()

    # ------------------------------------------------------------ lists

    def servers(self, principal: PrincipalId) -> Sequence[ServerEntry]:
        """See `ToolRuntime.servers`."""
        nobody = SessionScope(session=SessionId(""), principal=principal)
        return [
            ServerEntry(
                name=name,
                remote=self._servers.get(name).remote,
                learned=self._catalogues.known(name, nobody) is not None,
            )
            for name in self._servers.names
        ]

    async def catalogue(
        self, server: ResourceId, scope: SessionScope, *, progress: LearnProgress | None = None
    ) -> Catalogue:
        """See `ToolRuntime.catalogue`."""
        known = self._catalogues.of_session(server, scope)
        if known is not None:
            return known
        key = self._catalogues.key(server, scope)

        async def work() -> Known:
            found = await self._learn(server, scope)
            self._catalogues.learned(scope.principal, server, key, found)
            return found

        return (await self._learner.learn((scope.principal, key), server, work, progress)).catalogue

    async def _learn(self, server: ResourceId, scope: SessionScope) -> Known:
        if self._servers.get(server).remote:
            lists = await self._remotes.open(scope, server).ready()
            return Known(catalogue=as_catalogue(server, self._servers.key(server, scope), lists))
        return await self._learn_in_sandbox(server, scope.principal)

    # ------------------------------------------------------------ sessions

    def open_session(self, scope: SessionScope) -> None:
        """See `ToolRuntime.open_session`."""
        self._enter(scope)

    def _enter(self, scope: SessionScope) -> Session:
        self._catalogues.introduce(scope.principal)
        session, is_new = self._sessions.open(scope)
        reach = scope.servers or self._servers.names
        if session.widen(reach):
            lost = self._store.held(session.id) if is_new else ()
            self._driver.handle(
                SessionOpened(
                    at_s=self._clock.monotonic_s(),
                    session=session.id,
                    principal=scope.principal,
                    resources=reach,
                    lost=lost,
                )
            )
        return session

    async def close_session(self, session: SessionId, *, reason: str) -> None:
        """See `ToolRuntime.close_session`."""
        if self._sessions.close(session) is not None:
            self._driver.handle(SessionClosed(at_s=self._clock.monotonic_s(), session=session, reason=reason))
            self._remotes.close(session)
        self._store.release(session)

    def listen(self, session: SessionId, channel: ClientChannel | None) -> None:
        """See `ToolRuntime.listen`."""
        self._sessions.listen(session, channel)

    def observe(self, event: ModelEvent) -> None:
        """See `ToolRuntime.observe`."""
        try:
            if isinstance(event, GenerationStarted):
                self._catalogues.introduce(event.principal)
            self._driver.handle(event)
        except Exception:  # noqa: BLE001 told and counted by the driver; a model's stream must not suffer from it
            return

    # ------------------------------------------------------------ calls

    async def request(
        self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None, channel: ClientChannel
    ) -> JsonObject:
        """See `ToolRuntime.request`."""
        settings = self._servers.get(server)
        session = self._enter(scope)
        effect = self._servers.effect(server, method, params, self._catalogues.known(server, scope))
        call = CallId(self._ids.new("call"))
        sandbox = await self._lease(self._arrival(call, session, server, method, params, effect))
        began_s = self._clock.monotonic_s()
        try:
            exchange = await self._exchange(scope, settings, method, params, channel, _Lease(sandbox, effect))
        except anyio.get_cancelled_exc_class():
            self._driver.handle(CallAbandoned(at_s=self._clock.monotonic_s(), call=call))
            raise
        except (MCPError, HeadstartError):
            self._returned(
                call, Exchange(result={"isError": True}, sent_s=began_s, answered_s=self._clock.monotonic_s())
            )
            raise
        self._returned(call, exchange)
        return exchange.result

    def _arrival(
        self,
        call: CallId,
        session: Session,
        server: ResourceId,
        method: str,
        params: JsonObject | None,
        effect: Effect,
    ) -> CallArrived:
        tool, asked = "", params
        if method == "tools/call" and params is not None:
            tool, asked = str(params.get("name", "")), params.get("arguments")
        return CallArrived(
            at_s=self._clock.monotonic_s(),
            call=call,
            session=session.id,
            resource=server,
            tool=tool,
            action=action_key(server, tool or method, _canonical(asked)),
            read_only=effect is Effect.READ,
        )

    async def _lease(self, arrival: CallArrived) -> LiveSandbox | None:
        """Wait for the decision on a call; returns its sandbox (None: a remote server)."""
        waiting = self._waiting[arrival.call] = _Waiting()
        try:
            self._driver.handle(arrival)
            await waiting.decided.wait()
        except anyio.get_cancelled_exc_class():
            self._driver.handle(CallAbandoned(at_s=self._clock.monotonic_s(), call=arrival.call))
            raise
        finally:
            del self._waiting[arrival.call]
        match waiting.decision:
            case GrantLease(sandbox=None):
                return None
            case GrantLease(sandbox=sandbox) if sandbox is not None:
                return self._granted(sandbox, arrival)
            case RefuseLease() as refused:
                raise self._refused(refused, arrival)
            case _:
                raise AssertionError(f"{arrival.call} was woken without a decision")

    def _granted(self, sandbox: SandboxId, arrival: CallArrived) -> LiveSandbox:
        live = self._fleet.get(sandbox)
        if live is None:
            raise ServerUnavailable(f"{arrival.resource}: its sandbox ended just now", server=arrival.resource)
        session = self._sessions.get(arrival.session)
        if session is not None:
            live.use(session)
            if not arrival.read_only:
                self._store.hold(session.id, arrival.resource, session.scope.principal)
        return live

    async def _exchange(
        self,
        scope: SessionScope,
        settings: ServerSettings,
        method: str,
        params: JsonObject | None,
        channel: ClientChannel,
        lease: _Lease,
    ) -> Exchange:
        with anyio.move_on_after(settings.call_timeout_s):
            if lease.sandbox is not None:
                return await lease.sandbox.supervised.request(method, params, channel)
            writes = lease.effect is not Effect.READ
            return await self._remotes.request(scope, settings.name, method, params, channel, writes=writes)
        raise faults.timed_out_call(settings, method)

    def _returned(self, call: CallId, exchange: Exchange) -> None:
        self._driver.handle(
            CallReturned(
                at_s=self._clock.monotonic_s(),
                call=call,
                sent_s=exchange.sent_s,
                answered_s=exchange.answered_s,
                is_error=exchange.result.get("isError") is True,
                result_bytes=exchange.result_bytes,
            )
        )

    def _refused(self, refused: RefuseLease, arrival: CallArrived) -> HeadstartError:
        server = arrival.resource
        match refused.refusal:
            case LeaseRefusal.STATE_LOST:
                self._store.release(arrival.session, server)
                return SandboxLost(refused.message, server=server, hint="call again: a fresh one starts, empty")
            case LeaseRefusal.NO_MEMORY:
                return BudgetExceeded(refused.message)
            case LeaseRefusal.SESSION_CLOSED:
                return SessionUnknown(refused.message)
            case _:
                cause = self._fleet.failures.get((self._principal_of(arrival.session), server))
                kind = StartTimedOut if isinstance(cause, StartTimedOut) else ServerUnavailable
                return kind(
                    refused.message,
                    server=server,
                    retry_after_s=refused.retry_after_s,
                    hint=cause.hint if cause is not None else None,
                )

    def _principal_of(self, session: SessionId) -> PrincipalId:
        known = self._sessions.get(session)
        return known.scope.principal if known is not None else PrincipalId("")

    async def notify(self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None) -> None:
        """See `ToolRuntime.notify`."""
        connection = self._remotes.get(scope.session, server)
        if connection is not None:
            await connection.notify(method, params)
        for live in self._fleet:
            if live.server == server and scope.session in live.sessions:
                await live.supervised.notify(method, params)

    # ------------------------------------------------------------ instructions

    def _execute(self, instruction: Instruction) -> None:
        match instruction:
            case StartSandbox():
                self._fleet.start(instruction)
            case StopSandbox():
                self._fleet.stop(instruction)
            case RaisePriority():
                self._fleet.raise_priority(instruction)
            case GrantLease() | RefuseLease():
                waiting = self._waiting.get(instruction.call)
                if waiting is not None:
                    waiting.decision = instruction
                    waiting.decided.set()
            case SetTimer():
                raise AssertionError("the driver keeps the timer")
            case _:
                assert_never(instruction)

    # ------------------------------------------------------------ what servers say

    def _home(self) -> Home:
        return Home(
            report=self._driver.handle,
            form_of=self._catalogues.form_of,
            fresh_lists=self._catalogues.fresh,
            lists_changed=self._lists_changed,
            tell=self._tell,
            listener=self._listener,
        )

    def _remote_home(self, session: SessionId, server: ResourceId) -> RemoteHome:
        return RemoteHome(
            server,
            tell=lambda name, method, params: self._tell(session, name, method, params),
            listener=lambda: self._listener(session),
            lists_changed=lambda method: self._remote_lists_changed(session, server, method),
        )

    def _tell(self, session: SessionId, server: ResourceId, method: str, params: JsonObject | None) -> None:
        known = self._sessions.get(session)
        if known is not None:
            known.tell(server, method, params)

    def _listener(self, session: SessionId) -> ClientChannel | None:
        known = self._sessions.get(session)
        return None if known is None else known.listener

    def _lists_changed(self, live: LiveSandbox, method: str) -> None:
        self._tasks.start_soon(self._read_changed_lists, live, method)

    def _remote_lists_changed(self, session: SessionId, server: ResourceId, method: str) -> None:
        self._tasks.start_soon(self._read_remote_lists, session, server, method)

    async def _read_changed_lists(self, live: LiveSandbox, method: str) -> None:
        lists = await live.supervised.read_lists()
        if lists is not None:
            key = self._servers.spec(live.server).digest
            live.own_lists = as_catalogue(live.server, key, lists)
            for name in live.sessions:
                session = self._sessions.get(name)
                if session is not None:
                    live.use(session)
                    session.tell(live.server, method, None)

    async def _read_remote_lists(self, name: SessionId, server: ResourceId, method: str) -> None:
        connection, session = self._remotes.get(name, server), self._sessions.get(name)
        if connection is None or session is None:
            return
        lists = await connection.read_lists()
        if lists is not None:
            session.own_lists[server] = as_catalogue(server, self._servers.key(server, session.scope), lists)
            session.tell(server, method, None)

    # ------------------------------------------------------------ its end, and what it looks like

    async def drain(self, *, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Refuse new calls, stop all sandboxes, and return when none is left or time is up."""
        self._driver.handle(DrainRequested(at_s=self._clock.monotonic_s()))
        self._remotes.close_all()
        with anyio.move_on_after(timeout_s) as limit:
            await self._fleet.wait_empty()
        if limit.cancelled_caught:
            _log.warning("%d sandboxes were still stopping after %g s and are killed", len(self._fleet), timeout_s)


def _canonical(asked: object) -> str:
    arguments = cast("JsonObject", asked) if isinstance(asked, dict) else {}
    try:
        return canonical_arguments(arguments)
    except ValueError:
        return repr(arguments)  # NaN and the like: it must only be told apart from others
