"""A tool client's requests, from arrival to return.

Each has exactly one of these stories, as the core is told it::

    CallArrived … (refused)                     never sent; the client gets the error
    CallArrived … (granted) … CallReturned      answered, by the server or by an error
    CallArrived … CallAbandoned                 the client left or cancelled, or we failed at it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import anyio
from mcp.shared.exceptions import MCPError

from headstart.clock import Clock
from headstart.config.model import ServerSettings
from headstart.core.actions import Effect, action_key, canonical_arguments
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    LeaseRefusal,
    RefuseLease,
)
from headstart.errors import (
    BudgetExceeded,
    HeadstartError,
    SandboxLost,
    ServerUnavailable,
    SessionUnknown,
    StartTimedOut,
)
from headstart.ids import CallId, IdSource, ResourceId, SandboxId
from headstart.runtime import faults
from headstart.runtime.catalogues import Catalogues
from headstart.runtime.contract import BuiltIn, ClientChannel, JsonObject
from headstart.runtime.fleet import Fleet, LiveSandbox
from headstart.runtime.remotes import Asked, Remotes
from headstart.runtime.rpc import Exchange
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.sessions import Session
from headstart.runtime.store import Store

__all__ = ["CallPaths", "Calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPaths:
    """The parts of the service that a call passes."""

    servers: ConfiguredServers
    catalogues: Catalogues
    store: Store
    fleet: Fleet
    remotes: Remotes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    id: CallId
    session: Session
    server: ServerSettings
    asked: Asked
    effect: Effect


class _Waiting:
    """A call whose lease is not decided yet; most are decided before anybody has to wait."""

    __slots__ = ("_decided", "decision")

    def __init__(self) -> None:
        self._decided: anyio.Event | None = None
        self.decision: GrantLease | RefuseLease | None = None

    def decide(self, decision: GrantLease | RefuseLease) -> None:
        self.decision = decision
        if self._decided is not None:
            self._decided.set()

    async def wait(self) -> GrantLease | RefuseLease | None:
        if self.decision is None:
            self._decided = anyio.Event()
            await self._decided.wait()
        return self.decision


class Calls:
    """All calls that are open."""

    def __init__(
        self,
        paths: CallPaths,
        *,
        clock: Clock,
        ids: IdSource,
        report: Callable[[Event], None],
        report_soon: Callable[[Event], None],
    ) -> None:
        self._paths = paths
        self._clock = clock
        self._ids = ids
        self._report = report
        self._report_soon = report_soon
        self._waiting: dict[CallId, _Waiting] = {}

    async def request(self, session: Session, server: ResourceId, asked: Asked, channel: ClientChannel) -> JsonObject:
        """Carry out one request; see `ToolRuntime.request`."""
        call = self._begin(session, server, asked)
        sandbox = await self._lease(call)
        began_s = self._clock.monotonic_s()
        try:
            exchange = await self._exchange(call, sandbox, channel)
        except (MCPError, HeadstartError) as failure:
            died = sandbox is not None and sandbox.supervised.failure is not None
            if died or isinstance(failure, SandboxLost):
                self._paths.store.release(session.id, server)  # what it held is gone, and this call says so
            now_s = self._clock.monotonic_s()
            self._returned(call, Exchange(result={"isError": True}, sent_s=began_s, answered_s=now_s))
            raise
        except BaseException:  # cancelled, or a bug (of ours, of the channel's): the lease must not outlive it
            self._abandoned(call)
            raise
        self._returned(call, exchange)
        return exchange.result

    def decided(self, decision: GrantLease | RefuseLease) -> None:
        """Tell a call that waits what was decided; nothing happens if it was given up."""
        waiting = self._waiting.get(decision.call)
        if waiting is not None:
            waiting.decide(decision)

    # ------------------------------------------------------------ before it is sent

    def _begin(self, session: Session, server: ResourceId, asked: Asked) -> _Call:
        settings = self._paths.servers.get(server)
        known = self._paths.catalogues.known(server, session.scope)
        effect = self._paths.servers.effect(server, asked.method, asked.params, known)
        call = CallId(self._ids.new("call"))
        return _Call(id=call, session=session, server=settings, asked=asked, effect=effect)

    async def _lease(self, call: _Call) -> LiveSandbox | None:
        """Wait for the decision; returns the call's sandbox (None: a remote or built-in server)."""
        waiting = self._waiting[call.id] = _Waiting()
        try:
            self._report(self._arrival(call))
            decision = await waiting.wait()
            if isinstance(decision, GrantLease):
                return self._granted(call, decision.sandbox)
        except BaseException:
            self._abandoned(call)
            raise
        finally:
            del self._waiting[call.id]
        if decision is None:
            raise AssertionError(f"{call.id} was woken without a decision")
        raise self._refused(call, decision)

    def _arrival(self, call: _Call) -> CallArrived:
        tool, asked = "", cast("object", call.asked.params)
        if call.asked.method == "tools/call" and call.asked.params is not None:
            tool, asked = str(call.asked.params.get("name", "")), call.asked.params.get("arguments")
        return CallArrived(
            at_s=self._clock.monotonic_s(),
            call=call.id,
            session=call.session.id,
            resource=call.server.name,
            tool=tool,
            action=action_key(call.server.name, tool or call.asked.method, _canonical(asked)),
            read_only=call.effect is Effect.READ,
        )

    def _granted(self, call: _Call, sandbox: SandboxId | None) -> LiveSandbox | None:
        live = None if sandbox is None else self._live(call, sandbox)
        if not call.server.remote:
            self._note_held(call)
        return live

    def _live(self, call: _Call, sandbox: SandboxId) -> LiveSandbox:
        live = self._paths.fleet.get(sandbox)
        if live is None:
            raise ServerUnavailable(f"{call.server.name}: its sandbox ended just now", server=call.server.name)
        live.use(call.session)
        return live

    def _note_held(self, call: _Call) -> None:
        """Remember who has state in something that ends with the service."""
        if call.effect is not Effect.READ:
            self._paths.store.hold(call.session.id, call.server.name, call.session.scope.principal)
        else:
            self._paths.store.still_held(call.session.id, call.server.name)

    def _refused(self, call: _Call, refused: RefuseLease) -> HeadstartError:
        server = call.server.name
        match refused.refusal:
            case LeaseRefusal.STATE_LOST:
                self._paths.store.release(call.session.id, server)
                return SandboxLost(refused.message, server=server, hint="call again: a fresh one starts, empty")
            case LeaseRefusal.NO_MEMORY:
                return BudgetExceeded(refused.message)
            case LeaseRefusal.SESSION_CLOSED:
                return SessionUnknown(refused.message)
            case _:
                return self._not_started(call, refused)

    def _not_started(self, call: _Call, refused: RefuseLease) -> ServerUnavailable:
        cause = self._paths.fleet.failures.get((call.session.scope.principal, call.server.name))
        kind = StartTimedOut if isinstance(cause, StartTimedOut) else ServerUnavailable
        return kind(
            refused.message,
            server=call.server.name,
            retry_after_s=refused.retry_after_s,
            hint=cause.hint if cause is not None else None,
            detail=cause.detail if cause is not None else "",
        )

    # ------------------------------------------------------------ from sending to return

    async def _exchange(self, call: _Call, sandbox: LiveSandbox | None, channel: ClientChannel) -> Exchange:
        method, params = call.asked.method, call.asked.params
        with anyio.move_on_after(call.server.call_timeout_s):
            if sandbox is not None:
                return await sandbox.supervised.request(method, params, channel)
            built_in = self._paths.servers.built_in(call.server.name)
            if built_in is not None:
                return await self._ask(built_in, call)
            writes = call.effect is not Effect.READ
            scope = call.session.scope
            return await self._paths.remotes.request(scope, call.server.name, call.asked, channel, writes=writes)
        raise faults.timed_out_call(call.server, method)

    async def _ask(self, built_in: BuiltIn, call: _Call) -> Exchange:
        sent_s = self._clock.monotonic_s()
        result = await built_in.request(call.session.id, call.asked.method, call.asked.params)
        return Exchange(result=result, sent_s=sent_s, answered_s=self._clock.monotonic_s())

    def _abandoned(self, call: _Call) -> None:
        """Tell the core; never raises, so that what ended the call is what its client is told."""
        self._report_soon(CallAbandoned(at_s=self._clock.monotonic_s(), call=call.id))

    def _returned(self, call: _Call, exchange: Exchange) -> None:
        """Tell the core; it takes as long as deciding on a lease, and the answer need not wait for it."""
        self._report_soon(
            CallReturned(
                at_s=self._clock.monotonic_s(),
                call=call.id,
                sent_s=exchange.sent_s,
                answered_s=exchange.answered_s,
                is_error=exchange.result.get("isError") is True,
                result_bytes=exchange.result_bytes,
            )
        )


def _canonical(asked: object) -> str:
    arguments = cast("JsonObject", asked) if isinstance(asked, dict) else {}
    try:
        return canonical_arguments(arguments)
    except ValueError:
        return repr(arguments)  # NaN and the like: it must only be told apart from others
