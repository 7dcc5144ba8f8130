"""From what each server is started, why, and the zygotes that are kept for it.

Choosing (`zygotes.choose_form`) starts a server several times and measures it, so it is done
once per launch spec, one server at a time, in the background or by `headstart init`; what
was chosen is remembered. Zygotes that are only made again are made as many at once as there
are start slots. Until a zygote stands ready, its server starts cold: a start never waits
for one.

Zygotes hold memory. They may hold `ZYGOTE_SHARE` of the budget; the pool decides about the
rest, so the two together never pass it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import anyio.to_thread

from headstart.backends.contract import Backend, Prepared
from headstart.clock import Clock
from headstart.config.model import PoolSettings, ServerSettings
from headstart.core.events import PrepareForm
from headstart.errors import BackendError, ServerUnavailable
from headstart.ids import IdSource, PrincipalId, ResourceId
from headstart.runtime.preparations import PreparationKey, Preparations
from headstart.runtime.servers import ConfiguredServers
from headstart.runtime.store import Estimate, FormChoice, Store
from headstart.runtime.templates import LaunchSpec
from headstart.runtime.zygotes import CheckedForm, FormCheck, choose_form, restore_form

__all__ = ["ZYGOTE_SHARE", "FormParts", "Forms", "zygotes_possible"]

ZYGOTE_SHARE = 0.25
MAX_WAITING = 1_000
MOST_FAILURES = 5

_log = logging.getLogger(__name__)


def zygotes_possible(pool: PoolSettings, backend: Backend) -> bool:
    """Whether any server may start from a zygote here."""
    return pool.zygotes and backend.capabilities.zygotes


@dataclass(frozen=True, slots=True, kw_only=True)
class FormParts:
    """What choosing needs.

    Attributes:
        changed: Told when a server is started from something else than before.
    """

    pool: PoolSettings
    servers: ConfiguredServers
    store: Store
    preparations: Preparations
    backend: Backend
    clock: Clock
    ids: IdSource
    changed: Callable[[PrincipalId, ResourceId], None]


class Forms:
    """The choices of all principals."""

    def __init__(self, parts: FormParts) -> None:
        self._parts = parts
        self._send, self._waiting = anyio.create_memory_object_stream[tuple[PrincipalId, ResourceId]](MAX_WAITING)
        self._deciding: dict[PreparationKey, anyio.Lock] = {}
        self._checking = anyio.Lock()
        self._counting = anyio.Lock()
        self._failures: dict[tuple[PrincipalId, ResourceId], int] = {}
        self._undecided = 0
        self._settled = anyio.Event()
        self._told: dict[tuple[PrincipalId, ResourceId], FormChoice] = {}

    # ------------------------------------------------------------ asked by others

    def form_of(self, principal: PrincipalId, server: ResourceId) -> PrepareForm:
        """From what a start would come now."""
        return PrepareForm.COLD if self.zygote(principal, server) is None else PrepareForm.ZYGOTE

    def zygote(self, principal: PrincipalId, server: ResourceId) -> Prepared | None:
        """Return the zygote that stands ready, if there is one and the server may start from it.

        Two servers with one launch spec have one zygote; what the config says of them may differ.
        """
        if self._refusal(self._parts.servers.get(server)) is not None:
            return None
        try:
            spec = self._parts.servers.spec(server)
        except ServerUnavailable:
            return None
        return self._parts.preparations.ready(_key(principal, spec))

    def choice(self, principal: PrincipalId, server: ResourceId) -> FormChoice | None:
        """Return what was chosen and why, None if nobody has looked yet."""
        return self._told.get((principal, server))

    def estimate(self, principal: PrincipalId, server: ResourceId) -> Estimate | None:
        """Return what a start from the server's zygote was seen to take."""
        choice = self.choice(principal, server)
        if choice is None or choice.form is PrepareForm.COLD:
            return None
        start_s, cpu_s, memory = (choice.details.get(f"zygote_{what}") for what in ("start_s", "cpu_s", "memory_bytes"))
        if start_s is None or cpu_s is None or memory is None:
            return None
        return Estimate(start_s=start_s, cpu_s=cpu_s, memory_bytes=memory)

    def consider(self, principal: PrincipalId, server: ResourceId) -> None:
        """Choose in the background, when others are done; never blocks."""
        try:
            self._send.send_nowait((principal, server))
        except anyio.WouldBlock:
            _log.debug("%s is not looked at now: too many servers wait for it", server)
        else:
            self._undecided += 1

    async def run(self) -> None:
        """Choose for those that were to be considered, in the order in which they were."""
        with self._send, self._waiting:
            async with anyio.create_task_group() as tasks:
                for _ in range(self._parts.pool.starts_at_once or os.cpu_count() or 1):
                    tasks.start_soon(self._run_one_by_one)

    async def _run_one_by_one(self) -> None:
        async for principal, server in self._waiting:
            try:
                await self.decide(principal, server)
            except (BackendError, ServerUnavailable) as exc:
                self._could_not_choose(principal, server, str(exc))
            except Exception as exc:  # noqa: BLE001 a supervised task: one server's trouble must not end the others
                _log.exception("the choice for %s failed", server)
                self._could_not_choose(principal, server, f"headstart failed at choosing: {exc!r}")
            finally:
                self._undecided -= 1
                self._settled.set()
                self._settled = anyio.Event()

    async def recheck(self) -> None:
        """Make the zygotes again whose program has changed on disk."""
        changed: dict[ResourceId, None] = {}
        for (_, server), choice in list(self._told.items()):
            if choice.form is PrepareForm.ZYGOTE and not await anyio.to_thread.run_sync(is_current, choice):
                changed[server] = None
        for server in changed:
            await self._renew(server)

    async def _renew(self, server: ResourceId) -> None:
        """Begin anew with a server whose program has changed, for everybody who uses it.

        What is known of it holds until a fresh sandbox says something else.
        """
        _log.info("the files of %s have changed", server)
        principals = [principal for principal, name in self._told if name == server]
        before = self._parts.servers.spec(server)
        for principal in principals:
            await self._parts.preparations.drop(_key(principal, before))
        try:
            after = await anyio.to_thread.run_sync(self._parts.servers.renew_spec, server)
        except ServerUnavailable as exc:
            for principal in principals:
                self._could_not_choose(principal, server, str(exc))
            return
        for principal in principals:
            self._failures.pop((principal, server), None)
            self._parts.store.carry_over(principal, before.digest, after.digest)
            reason = "its zygote is made again: its files have changed"
            self._tell(principal, server, FormChoice(form=PrepareForm.COLD, reason=reason))
            self.consider(principal, server)

    @property
    def undecided(self) -> int:
        """How many wait to be looked at, the one at hand included."""
        return self._undecided

    async def wait_settled(self) -> None:
        """Return once nobody waits to be looked at."""
        while self._undecided:
            await self._settled.wait()

    async def prepared(self, principal: PrincipalId, server: ResourceId) -> Prepared:
        """Return what a start comes from now.

        Raises:
            ServerUnavailable: The operator wants a zygote (`always`) and there can be none.
            BackendError: The template cannot be prepared.
        """
        zygote = self.zygote(principal, server)
        if zygote is None and self._parts.servers.get(server).zygote == "always":
            choice = await self.decide(principal, server)
            zygote = self.zygote(principal, server)
            if zygote is None:
                raise ServerUnavailable(
                    f"{server}: it may only start from a zygote, but none can be made: {choice.reason}",
                    server=server,
                    hint=f'set {self._parts.servers.get(server).option("zygote")} to "auto"',
                )
        return zygote or await self.cold(principal, server)

    async def cold(self, principal: PrincipalId, server: ResourceId) -> Prepared:
        """Return the template that starts by exec."""
        spec = self._parts.servers.spec(server)
        return await self._parts.preparations.get(PreparationKey(principal, spec.digest, PrepareForm.COLD), spec)

    async def broken(self, principal: PrincipalId, server: ResourceId, why: str) -> None:
        """A zygote has died: start cold from now on, and make another one, unless they keep dying."""
        _log.warning("the zygote of %s is made again: %s", server, why)
        await self._parts.preparations.drop(_key(principal, self._parts.servers.spec(server)))
        failures = self._failures[principal, server] = self._failures.get((principal, server), 0) + 1
        if failures > MOST_FAILURES:
            reason = f"its zygote failed {failures} times, the last time: {why}"
            self._tell(principal, server, FormChoice(form=PrepareForm.COLD, reason=reason))
            return
        self._tell(principal, server, FormChoice(form=PrepareForm.COLD, reason=f"its zygote is made again: {why}"))
        self.consider(principal, server)

    def forked(self, principal: PrincipalId, server: ResourceId) -> None:
        """A sandbox came up from the zygote: whatever failed before is over."""
        self._failures.pop((principal, server), None)

    # ------------------------------------------------------------ choosing

    async def decide(self, principal: PrincipalId, server: ResourceId) -> FormChoice:
        """Choose, unless it is chosen; make the zygote, unless it stands ready."""
        settings = self._parts.servers.get(server)
        refusal = self._refusal(settings)
        if refusal is not None:
            choice = FormChoice(form=PrepareForm.COLD, reason=refusal)
            self._tell(principal, server, choice)
            return choice
        spec = await anyio.to_thread.run_sync(self._parts.servers.spec, server)
        key = _key(principal, spec)
        async with self._deciding.setdefault(key, anyio.Lock()):
            told = self._told.get((principal, server))
            if told is not None and told.form is PrepareForm.ZYGOTE and self._parts.preparations.ready(key) is not None:
                return told
            choice = await self._choose(principal, settings, spec)
            self._tell(principal, server, choice)
            return choice

    def _refusal(self, settings: ServerSettings) -> str | None:
        if settings.remote:
            return "it is remote: nothing is started"
        if settings.built_in:
            return "it is part of the service: nothing is started"
        if settings.zygote == "never":
            return 'its config says zygote = "never"'
        if not self._parts.pool.zygotes:
            return "zygotes are off in [pool]"
        if not self._parts.backend.capabilities.zygotes:
            return f"the {self._parts.backend.name} backend cannot fork processes here"
        return None

    async def _choose(self, principal: PrincipalId, settings: ServerSettings, spec: LaunchSpec) -> FormChoice:
        checked = await self._remembered(principal, spec) or await self._check(principal, settings, spec)
        choice = checked.stored()
        if checked.form is PrepareForm.COLD:
            return choice
        if checked.prepared is not None:
            self._parts.preparations.adopt(_key(principal, spec), checked.prepared)
        else:
            await self._parts.preparations.get(_key(principal, spec), spec, checked.preload)
        return await self._within_budget(principal, spec, choice)

    async def _remembered(self, principal: PrincipalId, spec: LaunchSpec) -> CheckedForm | None:
        stored = self._parts.store.form(principal, spec.digest)
        return None if stored is None else await anyio.to_thread.run_sync(restore_form, stored)

    async def _check(self, principal: PrincipalId, settings: ServerSettings, spec: LaunchSpec) -> CheckedForm:
        check = FormCheck(
            backend=self._parts.backend,
            warmup=settings.warmup,
            effects=settings.effects,
            session_env=settings.session_env,
            clock=self._parts.clock,
            ids=self._parts.ids,
        )
        async with self._checking:
            checked = await choose_form(spec.template, check)
        self._parts.store.choose_form(principal, spec.digest, checked.stored())
        return checked

    async def _within_budget(self, principal: PrincipalId, spec: LaunchSpec, choice: FormChoice) -> FormChoice:
        allowed = self._parts.pool.memory_mb * 1_000_000 * ZYGOTE_SHARE
        async with self._counting:  # of two that are one too many together, one goes
            held = sum(zygote.memory_bytes for zygote in await self._parts.preparations.zygotes())
            if held <= allowed:
                return choice
            await self._parts.preparations.drop(_key(principal, spec))
        reason = f"zygotes would hold {held / 1e6:.0f} MB; {allowed / 1e6:.0f} MB of pool.memory_mb are theirs"
        return FormChoice(form=PrepareForm.COLD, reason=reason)

    def _could_not_choose(self, principal: PrincipalId, server: ResourceId, why: str) -> None:
        _log.info("%s starts cold: %s", server, why)
        self._tell(principal, server, FormChoice(form=PrepareForm.COLD, reason=why))

    def _tell(self, principal: PrincipalId, server: ResourceId, choice: FormChoice) -> None:
        before = self._told.get((principal, server))
        self._told[principal, server] = choice
        if before is None or before.form is not choice.form:
            self._parts.changed(principal, server)


def is_current(choice: FormChoice) -> bool:
    """Whether the files that a choice was made from are still the same; reads the disk."""
    return restore_form(choice) is not None


def _key(principal: PrincipalId, spec: LaunchSpec) -> PreparationKey:
    return PreparationKey(principal, spec.digest, PrepareForm.ZYGOTE)
