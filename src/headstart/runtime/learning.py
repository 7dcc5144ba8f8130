"""Learning what servers offer: once per launch spec and credentials' scope, for everybody who waits.

A stdio server is started in a sandbox of its own, outside of the pool, at low priority; it
also gives the first estimates of what a start costs. The learning outlives whoever asked
for it: a client that gives up waiting leaves it to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import anyio
from anyio.abc import TaskGroup

from headstart.backends.contract import Backend
from headstart.clock import Clock
from headstart.core.events import Event, PrepareForm, SandboxBecameReady
from headstart.errors import CatalogueUnavailable, HeadstartError, ServerUnavailable, UnauthorizedUpstream
from headstart.ids import IdSource, PrincipalId, ResourceId, SandboxId
from headstart.runtime.contract import LearnProgress
from headstart.runtime.habits import Habits
from headstart.runtime.handshake import Lists, as_catalogue
from headstart.runtime.preparations import PreparationKey, Preparations
from headstart.runtime.rpc import Nobody
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.store import Estimate, Known
from headstart.runtime.supervisor import Order, Supervised
from headstart.runtime.templates import LaunchSpec

__all__ = ["Learner", "SandboxLearning"]

FAILURE_REMEMBERED_S = 15.0
RETRY_PATIENCE_S = 2.0
"""How long a list waits for a server that could not be learned before: it is told of it when it comes after all."""
SLOT_PATIENCE_S = 5.0
"""A learning that takes longer is not waiting for the CPU, and leaves its slot to the next one."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Flight:
    """One learning under way, or lately failed."""

    began_s: float
    patience_s: float
    """How long after its beginning somebody still waits for it."""
    done: anyio.Event = field(default_factory=anyio.Event)
    known: Known | None = None
    failure: HeadstartError | None = None
    failed_s: float = 0.0


class Learner:
    """Runs learnings, one per key."""

    def __init__(self, *, tasks: TaskGroup, clock: Clock, timeout_s: float, at_once: int) -> None:
        self._tasks = tasks
        self._clock = clock
        self._timeout_s = timeout_s
        self._slots = anyio.CapacityLimiter(at_once)
        self._flights: dict[tuple[PrincipalId, str], _Flight] = {}
        self._failed_before: set[tuple[PrincipalId, str]] = set()

    async def learn(
        self,
        where: tuple[PrincipalId, str],
        server: ResourceId,
        work: Callable[[], Awaitable[Known]],
        progress: LearnProgress | None,
    ) -> Known:
        """Return what `work` learns; at most one runs per key, and waiting for it is bounded.

        The bound is the learning's, not the asker's: what hangs is waited for once, not by every session anew.

        Raises:
            CatalogueUnavailable: It failed, or takes longer than `learn_timeout_s`.
            UnauthorizedUpstream: A remote server wants credentials.
        """
        flight = self._flight(where, server, work)
        if progress is not None:
            await progress(done=0, total=1, message=f"{server} is being learned")
        with anyio.move_on_after(flight.patience_s - self._age_s(flight)):
            await flight.done.wait()
        if flight.known is None:
            raise self._why_not(server, flight)
        if progress is not None:
            await progress(done=1, total=1, message=f"{server} is known: {len(flight.known.catalogue.tools)} tools")
        return flight.known

    def failure(self, where: tuple[PrincipalId, str]) -> HeadstartError | None:
        """Return why the last learning failed, None if it did not, or is not over."""
        flight = self._flights.get(where)
        return None if flight is None else flight.failure

    def _flight(
        self, where: tuple[PrincipalId, str], server: ResourceId, work: Callable[[], Awaitable[Known]]
    ) -> _Flight:
        self._forget_old_failures()
        flight = self._flights.get(where)
        if flight is None:
            patience_s = min(self._timeout_s, RETRY_PATIENCE_S) if where in self._failed_before else self._timeout_s
            flight = self._flights[where] = _Flight(self._clock.monotonic_s(), patience_s)
            self._tasks.start_soon(self._run, where, flight, work, name=f"learn {server}")
        return flight

    def _age_s(self, flight: _Flight) -> float:
        return self._clock.monotonic_s() - flight.began_s

    def _forget_old_failures(self) -> None:
        now_s = self._clock.monotonic_s()
        for where, flight in list(self._flights.items()):
            if flight.failure is not None and now_s - flight.failed_s > FAILURE_REMEMBERED_S:
                del self._flights[where]

    async def _run(self, where: tuple[PrincipalId, str], flight: _Flight, work: Callable[[], Awaitable[Known]]) -> None:
        try:
            await self._slots.acquire_on_behalf_of(flight)
            self._tasks.start_soon(self._hold_slot, flight)
            flight.known = await work()
            del self._flights[where]
            self._failed_before.discard(where)
        except UnauthorizedUpstream as exc:
            flight.failure = exc
            del self._flights[where]  # the next one may come with credentials
        except HeadstartError as exc:
            _log.warning("%s", exc.in_full)
            self._failed(where, flight, exc)
        except Exception as exc:  # noqa: BLE001 a supervised task: one server's trouble must not end the service
            _log.exception("learning %s failed", where)
            self._failed(where, flight, HeadstartError(f"headstart failed at it: {exc!r}"))
        finally:
            flight.done.set()

    def _failed(self, where: tuple[PrincipalId, str], flight: _Flight, failure: HeadstartError) -> None:
        flight.failure, flight.failed_s = failure, self._clock.monotonic_s()
        self._failed_before.add(where)

    async def _hold_slot(self, flight: _Flight) -> None:
        with anyio.move_on_after(SLOT_PATIENCE_S):
            await flight.done.wait()
        self._slots.release_on_behalf_of(flight)

    def _why_not(self, server: ResourceId, flight: _Flight) -> HeadstartError:
        match flight.failure:
            case None:
                return CatalogueUnavailable(
                    f"{server}: its tools are still being learned after {round(self._age_s(flight), 1):g} s",
                    hint="ask again in a moment; if it never answers, run it by hand to see why; "
                    "if it needs longer, raise learn_timeout_s of [service]",
                )
            case UnauthorizedUpstream():
                return flight.failure
            case failure:
                return CatalogueUnavailable(
                    f"its tools are not known: {failure}", hint=failure.hint, detail=failure.detail
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLearning:
    """Learns stdio servers in sandboxes of their own, outside of the pool."""

    servers: ConfiguredServers
    preparations: Preparations
    backend: Backend
    clock: Clock
    ids: IdSource
    package_lock: Callable[[str | None], anyio.Lock | None]
    habits: Habits

    async def __call__(self, server: ResourceId, principal: PrincipalId) -> Known:
        """Start a server cold, read its lists, stop it.

        Raises:
            ServerUnavailable: It did not start; the message says why.
        """
        spec = await anyio.to_thread.run_sync(self.servers.spec, server)
        seen: list[Lists] = []
        ready: list[SandboxBecameReady] = []

        def report(event: Event) -> None:
            if isinstance(event, SandboxBecameReady):
                ready.append(event)
                supervised.stop()

        order = self._order(server, principal, spec, seen)
        supervised = Supervised(order, backend=self.backend, clock=self.clock, report=report)
        await supervised.live()
        if not ready:
            raise supervised.failure or ServerUnavailable(f"{server}: it did not start", server=server)
        estimate = Estimate(start_s=ready[0].start_s, cpu_s=ready[0].cpu_s, memory_bytes=ready[0].memory_bytes)
        return Known(catalogue=as_catalogue(server, spec.digest, seen[-1]), estimate=estimate)

    def _order(self, server: ResourceId, principal: PrincipalId, spec: LaunchSpec, seen: list[Lists]) -> Order:
        key = PreparationKey(principal, f"{spec.digest}/learning", PrepareForm.COLD)
        learned = replace(spec, template=spec.filling)
        return Order(
            sandbox=SandboxId(self.ids.new("learn")),
            server=self.servers.get(server),
            prepared=lambda: self.preparations.get(key, learned),
            owner=Nobody(),
            session_env=lambda: spec.session_env,
            package_lock=lambda: self.package_lock(spec.package),
            on_lists=seen.append,
            habits=self.habits,
        )
