"""One sandbox's life, owned by one task from start to removal.

`live` is that task: create, attach, shake hands, warm up, report ready, serve, and whatever
happens, remove. Everyone else holds the `Supervised` object and may only ask: `request`,
`notify`, `stop`, `raise_priority`, `limit_cpu`. What happened is reported as events; for every start
there is exactly one of these stories, the last line of which is what `end` returns::

    SandboxBecameReady … SandboxExited                 it died of itself
    SandboxBecameReady … SandboxStopped                it was told to stop
    SandboxStartFailed                                 it never came up
    SandboxStopped                                     it was told to stop while starting

The end is reported once nothing of the sandbox is left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from mcp.shared.exceptions import MCPError

from headstart.backends.contract import Backend, ByteStreams, ExitStatus, Prepared, RunningSandbox, Usage
from headstart.clock import Clock
from headstart.config.model import ServerSettings
from headstart.core.events import (
    Event,
    PrepareForm,
    SandboxBecameReady,
    SandboxExited,
    SandboxMeasured,
    SandboxStartFailed,
    SandboxStopped,
)
from headstart.errors import BackendError, ServerUnavailable
from headstart.ids import SandboxId
from headstart.runtime import faults
from headstart.runtime.allowance import Allowance
from headstart.runtime.contract import ClientChannel, JsonObject
from headstart.runtime.habits import Habits
from headstart.runtime.handshake import HandshakeRefused, Lists, introduce, read_lists
from headstart.runtime.identities import identity_of
from headstart.runtime.link import StdioLink, open_stdio_link
from headstart.runtime.outbox import LinkClosed
from headstart.runtime.rpc import Conversation, Exchange, Owner

__all__ = ["Order", "PreparedSource", "Supervised"]

MEASURE_EVERY_S = 5.0
EXIT_GRACE_S = 1.0
DRAIN_GRACE_S = 0.25
END_GRACE_S = 5.0

_log = logging.getLogger(__name__)


class ColdInstead(Protocol):
    """Gives the template that starts by exec, after a zygote could not be forked."""

    async def __call__(self, why: str) -> Prepared: ...


class PreparedSource(Protocol):
    """Gives the prepared template of one server, making it first if need be."""

    async def __call__(self) -> Prepared: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be started.

    Attributes:
        cold_instead: Asked once if a zygote cannot be forked; None: the start fails.
        background: Nobody waits for it yet.
        cpu_limit_s: CPU-seconds that it may use in all until `limit_cpu` says otherwise; None: what it needs.
        session_env: Gives the environment that is its session's own; may read the disk.
        package_lock: Gives what is held while it starts, so that two starts of one `npx`
            package do not race for its cache; None where that cannot happen.
        on_lists: Told what the fresh server says of itself, before it counts as ready.
        stateless: Tells whether the server is known to speak the stateless protocol.
        habits: Told what the server does that it should not.
    """

    sandbox: SandboxId
    server: ServerSettings
    prepared: PreparedSource
    cold_instead: ColdInstead | None = None
    owner: Owner
    session_env: Callable[[], dict[str, str]] = dict[str, str]
    background: bool = False
    cpu_limit_s: float | None = None
    package_lock: Callable[[], anyio.Lock | None] = lambda: None
    on_lists: Callable[[Lists], None] | None = None
    stateless: Callable[[], bool] = lambda: False
    habits: Habits = field(default_factory=Habits)


class Supervised:
    """A sandbox and the conversation with the server in it."""

    def __init__(self, order: Order, *, backend: Backend, clock: Clock, report: Callable[[Event], None]) -> None:
        self.order = order
        self._backend = backend
        self._clock = clock
        self._report = report
        self._scope = anyio.CancelScope()
        self._stopping = False
        self._background = order.background
        self._sandbox: RunningSandbox | None = None
        self._link: StdioLink | None = None
        self._conversation: Conversation | None = None
        self._status: ExitStatus | None = None
        self._exited = anyio.Event()
        self._package: anyio.Lock | None = None
        self._lists: Lists | None = None
        self._ready = False
        self._start_measured = anyio.Event()
        self._over = anyio.Event()
        self._urgent = anyio.Event()
        self._stood_still_s = 0.0
        self._allowance = Allowance(
            order.cpu_limit_s,
            cores=order.server.cpu_cores,
            ask=self._measure_once,
            may_stand=lambda: not self._others_want_package(),
            standing=self._time_stopped,
        )
        self.failure: ServerUnavailable | None = None
        """Why it did not start, or how it died."""
        self.usage = Usage(memory_bytes=0, cpu_s=0.0, processes=0)

    @property
    def id(self) -> SandboxId:
        return self.order.sandbox

    @property
    def was_ready(self) -> bool:
        return self._ready

    # ------------------------------------------------------------ what others may ask

    async def request(self, method: str, params: JsonObject | None, channel: ClientChannel | None) -> Exchange:
        """Ask the server; only after it was reported ready.

        Raises:
            MCPError: The server's own error.
            ServerUnavailable: It ended before it answered; the message says how.
        """
        conversation = self._conversation
        if conversation is None:
            raise self.failure or self._gone()
        try:
            return await conversation.request(method, params, channel=channel)
        except LinkClosed:
            with anyio.move_on_after(END_GRACE_S):  # so that the next call does not meet the same one again
                await self._over.wait()
            raise self.failure or self._gone() from None

    async def notify(self, method: str, params: JsonObject | None) -> None:
        """Tell the server something; nothing happens if it has ended."""
        if self._conversation is not None:
            try:
                await self._conversation.notify(method, params)
            except LinkClosed:
                _log.debug("%s has ended; %s was not delivered", self.order.server.name, method)

    async def read_lists(self) -> Lists | None:
        """Read all lists again; None if the server has ended or refuses."""
        if self._conversation is None or self._lists is None:
            return None
        try:
            return await read_lists(self._conversation, self._lists.initialize)
        except (LinkClosed, HandshakeRefused) as exc:
            _log.info("%s: its changed lists could not be read: %s", self.order.server.name, exc)
            return None

    def stop(self) -> None:
        """End it, starting or ready; `SandboxStopped` follows."""
        self._stopping = True
        self._scope.cancel()

    def raise_priority(self) -> None:
        """Somebody waits for it now."""
        self._background = False
        self._urgent.set()

    def limit_cpu(self, cpu_s: float | None) -> None:
        """Have it stand still before it has used more CPU-seconds in all; None: it may use what it needs."""
        self._allowance.change(cpu_s)

    @property
    def stands_still(self) -> bool:
        """It has used what it may, and nobody needs it yet."""
        return self._allowance.holds

    # ------------------------------------------------------------ its life

    async def live(self) -> None:
        """Run the sandbox from start to removal. Cancelling removes it as well."""
        began_s = self._clock.monotonic_s()
        try:
            await self._create()
            if self._sandbox is not None:
                await self._attend(self._sandbox, began_s)
        except Exception as exc:  # noqa: BLE001 a supervised task: one sandbox's trouble must not end the others
            _log.exception("%s: its supervisor failed", self.order.server.name)
            name = self.order.server.name
            self.failure = ServerUnavailable(f"{name}: headstart failed at it: {exc!r}", server=name)
        finally:
            self._release_package()
            with anyio.CancelScope(shield=True):
                if self._sandbox is not None:
                    await self._sandbox.aclose()
            self._over.set()

    async def _create(self) -> None:
        order = self.order
        with self._scope_for_start() as scope:
            scope.deadline = anyio.current_time() + order.server.start_timeout_s
            try:
                await self._acquire_package()
                self._sandbox = await self._start(await order.prepared())
            except BackendError as exc:
                self.failure = ServerUnavailable(
                    f"{order.server.name}: no sandbox could be started: {exc}", server=order.server.name, hint=exc.hint
                )
            except ServerUnavailable as exc:
                self.failure = exc
        if scope.cancelled_caught and not self._stopping:
            self.failure = faults.never_answered(order.server, None)

    async def _start(self, prepared: Prepared) -> RunningSandbox:
        order = self.order
        identity = replace(identity_of(order.sandbox), hostname="sandbox", env=order.session_env())
        try:
            return await self._backend.start(prepared, identity, background=self._background)
        except BackendError as exc:
            if prepared.form is PrepareForm.COLD or order.cold_instead is None:
                raise
            cold = await order.cold_instead(str(exc))
        return await self._backend.start(cold, identity, background=self._background)

    async def _acquire_package(self) -> None:
        lock = self.order.package_lock()
        if lock is not None:
            await lock.acquire()
            self._package = lock

    def _release_package(self) -> None:
        if self._package is not None:
            self._package.release()
            self._package = None

    def _others_want_package(self) -> bool:
        return self._package is not None and self._package.statistics().tasks_waiting > 0

    def _scope_for_start(self) -> anyio.CancelScope:
        self._scope = anyio.CancelScope()
        if self._stopping:
            self._scope.cancel()
        return self._scope

    async def _attend(self, sandbox: RunningSandbox, began_s: float) -> None:
        server = self.order.server
        try:
            with self._scope_for_start() as attaching:
                attaching.deadline = anyio.current_time() + server.start_timeout_s
                async with sandbox.attach() as streams:
                    attaching.deadline = float("inf")
                    await self._serve(sandbox, streams, began_s)
                if streams.forced_by is not None and self._ready and self.failure is None:
                    self.order.habits.outlives_stdin(server, streams.forced_by)
            if attaching.cancelled_caught and not self._stopping:
                self.failure = faults.never_attached(server)
        except BackendError as exc:
            self.failure = ServerUnavailable(f"{server.name}: its sandbox failed: {exc}", server=server.name)

    async def _serve(self, sandbox: RunningSandbox, streams: ByteStreams, began_s: float) -> None:
        """Talk to the server until one side ends; its own scope, so that detaching is never cut short."""
        with self._scope_for_start() as scope:
            await self._converse(sandbox, streams, began_s)
        if scope.cancelled_caught and not self._stopping and not self._ready:
            self.failure = faults.never_answered(self.order.server, self._link)
        self._link = self._conversation = None
        if self._stopping:
            await self._read_usage(sandbox)
        if self._allowance.holds:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()  # it cannot be asked to end, and has done nothing for anybody

    async def _converse(self, sandbox: RunningSandbox, streams: ByteStreams, began_s: float) -> None:
        order, server = self.order, self.order.server
        told = partial(order.habits.prints_on_stdout, server)
        async with open_stdio_link(
            streams, server=server.name, owner=order.owner, clock=self._clock, on_junk=told
        ) as link:
            self._link = link
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_exit, streams, link)
                tasks.start_soon(self._hurry, sandbox)
                tasks.start_soon(self._allowance.keep, sandbox)
                self._scope.deadline = anyio.current_time() + server.start_timeout_s
                if await self._become_ready(sandbox, link, tasks, began_s):
                    self._scope.deadline = float("inf")
                    self._release_package()
                    tasks.start_soon(self._measure, sandbox)
                    await link.ended.wait()
                    await self._learn_status()
                    self.failure = faults.died(server, self._status, link)
                tasks.cancel_scope.cancel()

    async def _become_ready(self, sandbox: RunningSandbox, link: StdioLink, tasks: TaskGroup, began_s: float) -> bool:
        server = self.order.server
        try:
            introduced = await introduce(link.peer, stateless=self.order.stateless())
            tasks.start_soon(self._measure_start, sandbox)  # meanwhile: it costs as much as a list
            talk = introduced.conversation
            lists = await read_lists(talk, introduced.initialize)
            if server.warmup is not None:
                arguments = dict(server.warmup.arguments)
                await talk.request("tools/call", {"name": server.warmup.tool, "arguments": arguments})
                await self._read_usage(sandbox)
        except LinkClosed:
            await self._learn_status()
            self.failure = faults.exited_early(server, self._status, link)
            return False
        except HandshakeRefused as exc:
            self.failure = faults.handshake_refused(server, str(exc), link)
            return False
        except MCPError as exc:
            tool = server.warmup.tool if server.warmup else "?"
            self.failure = faults.handshake_refused(server, f"its warm-up call {tool} failed: {exc.message}", link)
            return False
        self._lists, self._conversation = lists, talk
        await self._start_measured.wait()
        if self.order.on_lists is not None:
            self.order.on_lists(lists)
        self._ready = True
        now_s = self._clock.monotonic_s()
        self._report(
            SandboxBecameReady(
                at_s=now_s,
                sandbox=self.id,
                start_s=now_s - began_s - self._stood_still_s,
                cpu_s=self.usage.cpu_s,
                memory_bytes=self.usage.memory_bytes,
            )
        )
        return True

    # ------------------------------------------------------------ its tasks

    async def _watch_exit(self, streams: ByteStreams, link: StdioLink) -> None:
        try:
            self._status = await streams.wait()
        except BackendError as exc:
            _log.debug("%s: how it ended is not known: %s", self.id, exc)
        self._exited.set()
        with anyio.move_on_after(DRAIN_GRACE_S):  # an answer may have been written just before the end
            await link.ended.wait()
        link.peer.close()
        link.ended.set()

    async def _learn_status(self) -> None:
        with anyio.move_on_after(EXIT_GRACE_S):
            await self._exited.wait()

    async def _hurry(self, sandbox: RunningSandbox) -> None:
        if not self.order.background:
            return
        await self._urgent.wait()
        try:
            await sandbox.raise_priority()
        except BackendError as exc:
            _log.debug("%s keeps its low priority: %s", self.id, exc)

    @contextmanager
    def _time_stopped(self) -> Generator[None]:
        """It stands still: what its start takes, and may take, goes on afterwards."""
        scope, since_s = self._scope, self._clock.monotonic_s()
        left_s, scope.deadline = scope.deadline - anyio.current_time(), float("inf")
        try:
            yield
        finally:
            scope.deadline = anyio.current_time() + left_s
            self._stood_still_s += self._clock.monotonic_s() - since_s

    async def _measure_start(self, sandbox: RunningSandbox) -> None:
        await self._read_usage(sandbox)
        self._start_measured.set()

    async def _measure(self, sandbox: RunningSandbox) -> None:
        while True:
            await anyio.sleep(MEASURE_EVERY_S)
            await self._measure_once(sandbox)

    async def _measure_once(self, sandbox: RunningSandbox) -> None:
        if await self._read_usage(sandbox):
            usage = self.usage
            self._report(
                SandboxMeasured(
                    at_s=self._clock.monotonic_s(),
                    sandbox=self.id,
                    memory_bytes=usage.memory_bytes,
                    cpu_s=usage.cpu_s,
                )
            )

    async def _read_usage(self, sandbox: RunningSandbox) -> bool:
        try:
            with anyio.move_on_after(1.0):
                self.usage = await sandbox.usage()
                return True
        except BackendError as exc:
            _log.debug("%s cannot be measured: %s", self.id, exc)
        return False

    # ------------------------------------------------------------ its end

    def end(self) -> SandboxStopped | SandboxExited | SandboxStartFailed:
        """Return how it ended; nothing of it is left once `live` has returned."""
        now_s, cpu_s = self._clock.monotonic_s(), self.usage.cpu_s
        if self._stopping:
            return SandboxStopped(at_s=now_s, sandbox=self.id, cpu_s=cpu_s)
        message = str(self.failure or self._gone())
        if self._ready:
            return SandboxExited(at_s=now_s, sandbox=self.id, message=message)
        return SandboxStartFailed(at_s=now_s, sandbox=self.id, message=message, cpu_s=cpu_s)

    def _gone(self) -> ServerUnavailable:
        name = self.order.server.name
        return ServerUnavailable(f"{name}: its sandbox has been stopped", server=name)
