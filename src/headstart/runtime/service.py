"""The runtime as one object: `Service` implements `ToolRuntime`.

It wires the parts and owns nothing of its own: the `Driver` decides, the `Fleet` holds
sandboxes, `Sessions` the sessions, the `Learner` learns, the `Store` and the `Journal`
remember. A call goes through here in four steps: it arrives (an event), a lease is granted
or refused (an instruction), it is sent and answered, and it has returned (an event).
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import assert_never

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from headstart.backends.contract import Backend
from headstart.clock import Clock
from headstart.config.model import Settings
from headstart.core.broker import Broker
from headstart.core.events import (
    DrainRequested,
    GrantLease,
    HostedMemoryMeasured,
    Instruction,
    LimitCpu,
    RaisePriority,
    RefuseLease,
    SessionClosed,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopSandbox,
)
from headstart.core.stream import GenerationStarted, ModelEvent
from headstart.errors import BackendError, CatalogueUnavailable, HeadstartError, ServerUnavailable
from headstart.ids import LOCAL_PRINCIPAL, IdSource, PrincipalId, ResourceId, SessionId
from headstart.runtime.calls import CallPaths, Calls
from headstart.runtime.catalogues import Catalogues, named
from headstart.runtime.contract import (
    BuiltIn,
    Catalogue,
    ClientChannel,
    JsonObject,
    LearnProgress,
    ServerEntry,
    SessionMemory,
    SessionScope,
)
from headstart.runtime.driver import Driver
from headstart.runtime.fleet import Fleet, Home
from headstart.runtime.forms import FormParts, Forms, zygotes_possible
from headstart.runtime.handshake import as_catalogue
from headstart.runtime.journal import BootIds, Forgot, Header, Journal, LearnedBefore, RunEnded, open_journal
from headstart.runtime.launch import HostFacts
from headstart.runtime.learning import Learner, SandboxLearning
from headstart.runtime.policies import broker_policy
from headstart.runtime.preparations import Preparations, open_preparations
from headstart.runtime.remote import RemoteConnection
from headstart.runtime.remotes import Asked, Remotes
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Session, Sessions
from headstart.runtime.statistics import ServerStatus, Statistics
from headstart.runtime.store import Forgotten, FormChoice, Known, Store, nothing_known, open_store
from headstart.runtime.tasks import open_tasks
from headstart.runtime.trace_record import Trace
from headstart.runtime.traces import Traces
from headstart.runtime.voices import Voices

__all__ = ["Service"]

DRAIN_TIMEOUT_S = 10.0
HOUSEKEEPING_EVERY_S = 1.0
SAVE_EVERY = 5
RECHECK_EVERY = 60
"""Turns of housekeeping between two looks at the files of zygotes."""

WORTH_TELLING_BYTES = 8_000_000
"""How much more or less memory hosted sandboxes have to use to be told of: each time is a line in the journal."""

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
    unusable: Mapping[ResourceId, ServerUnavailable]
    header: Header
    built_in: BuiltIn | None


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
        self._built_in = parts.built_in
        self._hosted_memory: Callable[[], Awaitable[int]] | None = None
        self._hosted_told_bytes = 0
        self.unusable = parts.unusable
        """Servers that could not be started as it was opened (their command does not exist), and why."""
        self.broker = Broker(parts.header.policy, BootIds(parts.header.boot))
        self._driver = Driver(decider=self.broker, journal=parts.journal, clock=parts.clock, execute=self._execute)
        self._sessions = Sessions(parts.tasks)
        self._forms = Forms(
            FormParts(
                pool=self._settings.pool,
                servers=self._servers,
                store=self._store,
                preparations=self._preparations,
                backend=self._backend,
                clock=self._clock,
                ids=self._ids,
                changed=self._form_changed,
            )
        )
        self._catalogues = Catalogues(
            servers=self._servers,
            store=self._store,
            sessions=self._sessions,
            forms=self._forms,
            clock=self._clock,
            report=self._driver.report,
        )
        self._traces = Traces(self.broker, self._store, self._clock, choice_of=self._choice, note=self._journal.append)
        voices = Voices(
            sessions=self._sessions,
            servers=self._servers,
            connections=self._connection,
            tasks=self._tasks,
        )
        self._fleet = Fleet(
            backend=self._backend,
            clock=self._clock,
            servers=self._servers,
            forms=self._forms,
            home=Home(
                report=self._driver.report,
                fresh_lists=self._catalogues.fresh,
                lists_changed=voices.lists_changed,
                tell=voices.tell,
                listener=voices.listener,
                stateless=self._catalogues.stateless,
            ),
            tasks=self._tasks,
        )
        self._remotes = Remotes(
            servers=self._servers,
            home=voices.remote_home,
            stateless=self._catalogues.stateless,
            clock=self._clock,
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
            habits=self._fleet.habits,
        )
        self._calls = Calls(
            CallPaths(
                servers=self._servers,
                catalogues=self._catalogues,
                store=self._store,
                fleet=self._fleet,
                remotes=self._remotes,
            ),
            clock=self._clock,
            ids=self._ids,
            report=self._driver.handle,
            report_soon=self._driver.handle_soon,
        )
        self._introduced: set[PrincipalId] = set()
        self._tasks.start_soon(self._driver.run_timer, name="timer")
        self._tasks.start_soon(self._forms.run, name="forms")
        self._tasks.start_soon(self._keep_house, name="housekeeping")
        self._tasks.start_soon(self._traces.recover, self._settings.state_dir / "journal", parts.header.boot)
        if not self._settings.service.keys:
            self._introduce(LOCAL_PRINCIPAL)  # everybody's: zygotes and reserved sets need not wait for a client

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
        built_in: BuiltIn | None = None,
    ) -> AsyncGenerator[Service]:
        """Run the service while the context is open; on leaving, it drains, bounded.

        `host` says where commands and caches are looked for; None reads this process's environment. `built_in` is
        served beside the configured servers.

        Raises:
            ConfigError: The state folder cannot be used.
        """
        servers = ConfiguredServers(settings.servers, host or HostFacts.here(), built_in)
        header = Header(
            boot=ids.new("run").partition("_")[2][:8],
            mode=settings.service.journal,
            policy=broker_policy(settings, zygotes=zygotes_possible(settings.pool, backend)),
            began_wall_s=clock.wall_s(),
            began_s=clock.monotonic_s(),
        )
        async with (
            open_store(settings.state_dir, clock) as store,
            open_journal(settings.state_dir / "journal", header) as journal,
            open_preparations(backend) as preparations,
            open_tasks() as tasks,
        ):
            unusable = await anyio.to_thread.run_sync(servers.read_specs)
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
                    unusable=unusable,
                    header=header,
                    built_in=built_in,
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
        return [self._entry(name, principal) for name in self._servers.names]

    def _entry(self, name: ResourceId, principal: PrincipalId) -> ServerEntry:
        learned = self._catalogues.known(name, _nobody_of(principal)) is not None
        failure = None if learned else self._learning_failure(name, principal)
        problem = "" if failure is None else str(failure)
        return ServerEntry(name=name, remote=self._servers.get(name).remote, learned=learned, problem=problem)

    def _learning_failure(self, name: ResourceId, principal: PrincipalId) -> HeadstartError | None:
        try:
            return self._learner.failure((principal, self._catalogues.key(name, _nobody_of(principal))))
        except CatalogueUnavailable as exc:  # its command is not there
            return exc

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

        found = await self._learner.learn((scope.principal, key), server, work, progress)
        return named(found.catalogue, server)

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
        self._introduce(scope.principal)
        session, is_new = self._sessions.open(scope)
        reach = scope.servers or self._servers.names
        if session.widen(reach):
            lost = self._lost(session.id) if is_new else ()
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

    def _lost(self, session: SessionId) -> tuple[ResourceId, ...]:
        """Return the servers that held state of a new session before the service was started, and do no more."""
        built_in = self._built_in
        kept = built_in.catalogue.server if built_in is not None and built_in.take_up(session) else None
        return tuple(server for server in self._store.held(session) if server != kept)

    def _introduce(self, principal: PrincipalId) -> None:
        """Give the broker what was learned of a principal before, and its servers; once."""
        if principal in self._introduced:
            return
        self._introduced.add(principal)
        learned = self._store.learned(principal)
        if learned is not None:
            self._journal.append(LearnedBefore(principal=principal, data=learned))
            try:
                self.broker.import_learned(principal, json.loads(learned))
            except ValueError as exc:
                _log.warning("%s; it is learned anew", exc)
        self._catalogues.introduce(principal)

    async def close_session(self, session: SessionId, *, reason: str) -> None:
        """See `ToolRuntime.close_session`."""
        if self._sessions.close(session) is not None:
            self._driver.report(SessionClosed(at_s=self._clock.monotonic_s(), session=session, reason=reason))
            self._remotes.close(session)
            if self._built_in is not None:
                self._built_in.close(session)
            self._traces.collect()
        self._store.release(session)

    def listen(self, session: SessionId, channel: ClientChannel | None) -> None:
        """See `ToolRuntime.listen`."""
        self._sessions.listen(session, channel)

    def observe(self, event: ModelEvent) -> None:
        """See `ToolRuntime.observe`."""
        try:
            if isinstance(event, GenerationStarted):
                self._introduce(event.principal)
            self._driver.report(event)
        except Exception:  # noqa: BLE001 a model's stream must not suffer from what we make of it
            _log.exception("%s could not be taken", type(event).__name__)

    # ------------------------------------------------------------ calls

    async def request(
        self, scope: SessionScope, server: ResourceId, method: str, params: JsonObject | None, channel: ClientChannel
    ) -> JsonObject:
        """See `ToolRuntime.request`."""
        return await self._calls.request(self._enter(scope), server, Asked(method, params), channel)

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
            case LimitCpu():
                self._fleet.limit_cpu(instruction)
            case GrantLease() | RefuseLease():
                self._calls.decided(instruction)
            case SetTimer():
                raise AssertionError("the driver keeps the timer")
            case _:
                assert_never(instruction)

    def _connection(self, session: SessionId, server: ResourceId) -> RemoteConnection | None:
        return self._remotes.get(session, server)

    def _choice(self, principal: PrincipalId, server: ResourceId) -> FormChoice | None:
        """Return from what a server is started, None if it is none that is, or nobody has looked yet."""
        return self._forms.choice(principal, server) if self._servers.get(server).is_process else None

    def _form_changed(self, principal: PrincipalId, server: ResourceId) -> None:
        self._catalogues.register(principal, server)

    # ------------------------------------------------------------ its end, and what it looks like

    async def drain(self, *, timeout_s: float = DRAIN_TIMEOUT_S) -> None:
        """Refuse new calls, stop all sandboxes, and return when none is left or time is up."""
        self._driver.report(DrainRequested(at_s=self._clock.monotonic_s()))
        self._remotes.close_all()
        with anyio.move_on_after(timeout_s) as limit:
            await self._fleet.wait_empty()
        if limit.cancelled_caught:
            _log.warning("%d sandboxes were still stopping after %g s and are killed", len(self._fleet), timeout_s)

        self._traces.save_open()
        self._journal.append(RunEnded())
        self._save_learned()

    async def _keep_house(self) -> None:
        for turn in itertools.count(1):
            await anyio.sleep(HOUSEKEEPING_EVERY_S)
            self._traces.collect()
            await self._measure_hosted()
            if turn % SAVE_EVERY == 0:
                self._save_learned()
            if turn % RECHECK_EVERY == 0:
                await self._forms.recheck()

    def count_hosted(self, memory_bytes: Callable[[], Awaitable[int]]) -> None:
        """Count in the pool's budget what sandboxes use that live beside the pool's; it is asked about once a second."""
        self._hosted_memory = memory_bytes

    async def _measure_hosted(self) -> None:
        if self._hosted_memory is None:
            return
        used_bytes = await self._hosted_memory()
        if abs(used_bytes - self._hosted_told_bytes) >= WORTH_TELLING_BYTES:
            self._hosted_told_bytes = used_bytes
            self._driver.report(HostedMemoryMeasured(at_s=self._clock.monotonic_s(), memory_bytes=used_bytes))

    def _save_learned(self) -> None:
        for principal in self._introduced:
            self._store.save_learned(principal, json.dumps(self.broker.export_learned(principal)))

    @property
    def session_memory(self) -> SessionMemory:
        """Where tool clients are remembered over restarts."""
        return self._store

    async def learn(self, server: ResourceId, principal: PrincipalId) -> ServerStatus:
        """Learn a server's lists and choose its form, waiting for both; what `headstart init` does.

        Raises:
            CatalogueUnavailable: It could not be learned; the message says why.
        """
        scope = SessionScope(session=SessionId(self._ids.new("init")), principal=principal)
        self._introduce(principal)
        await self.catalogue(server, scope)
        if self._servers.get(server).is_process:
            try:
                await self._forms.decide(principal, server)
            except BackendError as exc:
                _log.warning("%s starts cold: %s", server, exc)
        self._remotes.close(scope.session)
        return self._server_status(server, principal)

    async def trace(self, session: str) -> Trace | None:
        """Return a session's steps (`last`: of the one with the newest step), None if it is not known."""
        self._driver.settle()
        return await self._traces.find(session)

    async def forget(self, principal: PrincipalId | None) -> Forgotten:
        """Erase what was learned of a principal (None: of everybody), traces and journals too.

        Live sessions go on. Journals hold all principals' events mixed, so all of them go.

        Raises:
            HeadstartError: Nothing is known of that principal, and so nothing was erased.
        """
        if principal is not None and principal not in self._introduced and not await self._store.knows(principal):
            raise nothing_known(principal)
        for one in [principal] if principal is not None else list(self._introduced):
            self._journal.append(Forgot(principal=one))
            self.broker.forget(one)
        self._traces.forget(principal)
        erased = await self._store.forget_principal(principal)
        return replace(erased, journals=await self._journal.erase())

    async def wait_idle(self) -> None:
        """Return once there is no sandbox, starting, live or stopping."""
        await self._fleet.wait_empty()

    async def recheck_zygotes(self) -> None:
        """Make the zygotes again whose program has changed on disk; done about once a minute anyway."""
        await self._forms.recheck()

    async def wait_prepared(self) -> None:
        """Return once every server that is known has its form, and its zygote if it has one."""
        await self._forms.wait_settled()

    async def wait_stopped(self, session: SessionId) -> None:
        """Return once no sandbox is left that this session has used."""
        await self._fleet.wait_without(session)

    async def statistics(self) -> Statistics:
        """Measure and count what is there now."""
        self._driver.settle()
        return Statistics(
            sessions=len(self._sessions),
            remote_connections=len(self._remotes),
            sandboxes=tuple(live.status() for live in self._fleet),
            zygotes=await self._preparations.zygotes(),
            servers=tuple(
                self._server_status(name, principal)
                for principal in sorted(self._introduced) or (LOCAL_PRINCIPAL,)
                for name in self._servers.names
            ),
            forms_undecided=self._forms.undecided,
            events=self._driver.handled,
            events_broken=self._driver.broken,
            journal_dropped=self._journal.dropped,
            leftovers=await self._backend.leftovers(),
            state_moved_aside=self._store.moved_aside,
            state_writes_failed=self._store.failed_writes,
        )

    def _server_status(self, name: ResourceId, principal: PrincipalId) -> ServerStatus:
        settings = self._servers.get(name)
        choice = self._forms.choice(principal, name)
        failure = self._fleet.failures.get((principal, name)) or self._learning_failure(name, principal)
        return ServerStatus(
            name=name,
            principal=principal,
            remote=settings.remote,
            built_in=settings.built_in,
            form=self._forms.form_of(principal, name),
            reason="not looked at yet" if choice is None else choice.reason,
            last_failure=None if failure is None else failure.in_full,
        )


def _nobody_of(principal: PrincipalId) -> SessionScope:
    return SessionScope(session=SessionId(""), principal=principal)
