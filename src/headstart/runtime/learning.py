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
from headstart.runtime.handshake import Lists, as_catalogue
from headstart.runtime.preparations import PreparationKey, Preparations
from headstart.runtime.rpc import Nobody
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.store import Estimate, Known
from headstart.runtime.supervisor import Order, Supervised
from headstart.runtime.templates import LaunchSpec

__all__ = ["Learner", "SandboxLearning"]

FAILURE_REMEMBERED_S = 15.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Flight:
    """One learning under way, or lately failed."""

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

    async def learn(
        self,
        where: tuple[PrincipalId, str],
        server: ResourceId,
        work: Callable[[], Awaitable[Known]],
        progress: LearnProgress | None,
    ) -> Known:
        """Return what `work` learns; at most one runs per key, and waiting for it is bounded.

        Raises:
            CatalogueUnavailable: It failed, or takes longer than `learn_timeout_s`.
            UnauthorizedUpstream: A remote server wants credentials.
        """
        flight = self._flight(where, server, work)
        if progress is not None:
            await progress(done=0, total=1, message=f"{server} is being learned")
        with anyio.move_on_after(self._timeout_s):
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
            flight = self._flights[where] = _Flight()
            self._tasks.start_soon(self._run, where, flight, work, name=f"learn {server}")
        return flight

    def _forget_old_failures(self) -> None:
        now_s = self._clock.monotonic_s()
        for where, flight in list(self._flights.items()):
            if flight.failure is not None and now_s - flight.failed_s > FAILURE_REMEMBERED_S:
                del self._flights[where]

    async def _run(self, where: tuple[PrincipalId, str], flight: _Flight, work: Callable[[], Awaitable[Known]]) -> None:
        try:
            async with self._slots:
                flight.known = await work()
            del self._flights[where]
        except UnauthorizedUpstream as exc:
            flight.failure = exc
            del self._flights[where]  # the next one may come with credentials
        except HeadstartError as exc:
            flight.failure, flight.failed_s = exc, self._clock.monotonic_s()
        except Exception as exc:  # noqa: BLE001 a supervised task: one server's trouble must not end the service
            _log.exception("learning %s failed", where)
            flight.failure, flight.failed_s = (
                HeadstartError(f"headstart failed at it: {exc!r}"),
                self._clock.monotonic_s(),
            )
        finally:
            flight.done.set()

    def _why_not(self, server: ResourceId, flight: _Flight) -> HeadstartError:
        match flight.failure:
            case None:
                return CatalogueUnavailable(
                    f"{server}: its tools are still being learned after {self._timeout_s:g} s",
                    hint="ask again in a moment; if it never answers, run it by hand to see why; "
                    "if it needs longer, raise learn_timeout_s of [service]",
                )
            case UnauthorizedUpstream():
                return flight.failure
            case failure:
                return CatalogueUnavailable(f"its tools are not known: {failure}", hint=failure.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLearning:
    """Learns stdio servers in sandboxes of their own, outside of the pool."""

    servers: ConfiguredServers
    preparations: Preparations
    backend: Backend
    clock: Clock
    ids: IdSource
    package_lock: Callable[[str | None], anyio.Lock | None]

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
        )
