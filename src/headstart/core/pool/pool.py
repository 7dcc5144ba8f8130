"""The pool's state machine: events in, instructions out.

`sandboxes.py` has a sandbox's table, `starts.py` admits starts, `eviction.py` chooses
victims, `restarts.py` spaces what fails, `stakes.py` settles bets. What the pool
promises, whatever the mode:

- a session has at most one sandbox per server, and a sandbox that a session has claimed
  is never another's (a shared server has one per principal, for all of its sessions);
- every call that arrives ends in exactly one of: granted, refused, abandoned;
- calls of a session that need the same sandbox wait for the same start, and run in it
  side by side;
- whatever stays when sessions come and go is bounded by what is registered and alive.

What may be late. The runtime acts while events are on their way, so these are legal and
change nothing: `CallReturned` and `CallAbandoned` for a call that was refused or whose
session has closed; `SessionClosed` for a session that is closed; `SandboxMeasured`
for a sandbox that is gone; and, for one that is stopping, what `sandboxes.py` lists.
"""

from __future__ import annotations

from headstart.core.bets import Bet, BetKind
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    DrainRequested,
    Event,
    GrantLease,
    HostedMemoryMeasured,
    Instruction,
    LimitCpu,
    Priority,
    RaisePriority,
    RefuseLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxExited,
    SandboxMeasured,
    SandboxStartFailed,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    StartSandbox,
    StopReason,
    StopSandbox,
    TimerFired,
)
from headstart.core.policy import Refusal
from headstart.core.pool import refusals
from headstart.core.pool.calls import Call, CallBook, OpenSession
from headstart.core.pool.deadlines import Deadlines
from headstart.core.pool.estimates import Estimate, Estimates
from headstart.core.pool.eviction import cheapest_first
from headstart.core.pool.facts import PoolFact, SandboxFellIdle
from headstart.core.pool.inventory import Inventory
from headstart.core.pool.placements import Placements
from headstart.core.pool.policy import Mode, PoolPolicy
from headstart.core.pool.provision import Provision
from headstart.core.pool.restarts import Restarts
from headstart.core.pool.sandboxes import Happening, Sandbox, SandboxState, Stake
from headstart.core.pool.servers import Servers
from headstart.core.pool.stakes import Stakes
from headstart.core.pool.starts import Room, StartQueue
from headstart.core.pool.statistics import PoolStatistics, view
from headstart.errors import InvalidTransition
from headstart.ids import CallId, IdSource, PrincipalId, ResourceId, SandboxId, SessionId

__all__ = ["Pool"]

_NOT_READY = frozenset({SandboxState.QUEUED, SandboxState.STARTING})


class Pool:
    """The sandboxes of all sessions of all principals.

    Args:
        policy: Its mode and limits.
        ids: Makes sandbox ids.
        estimates: What starts take; the pool teaches it what they took.

    Attributes:
        inventory: All sandboxes, for looking only.
        book: The open sessions and calls, for looking only.
    """

    def __init__(self, policy: PoolPolicy, ids: IdSource, estimates: Estimates) -> None:
        self._policy = policy
        self._estimates = estimates
        self._servers = Servers(estimates, memory_bytes=policy.memory_bytes)
        self.inventory = Inventory()
        self._deadlines = Deadlines(self.inventory)
        self._stakes = Stakes(estimates)
        self.book = CallBook()
        self._restarts = Restarts(
            first_s=policy.backoff_s, cap_s=policy.backoff_cap_s, forgiven_after_s=policy.forgiven_after_s
        )
        self._provision = Provision(
            policy=policy,
            ids=ids,
            servers=self._servers,
            inventory=self.inventory,
            restarts=self._restarts,
            deadlines=self._deadlines,
        )
        self._placements = Placements(
            policy=policy,
            servers=self._servers,
            inventory=self.inventory,
            book=self.book,
            restarts=self._restarts,
            deadlines=self._deadlines,
        )
        self._starts = StartQueue(
            self.inventory,
            policy,
            usual_start_s=lambda each: estimates.of(each.principal, each.resource, each.form).start_s,
            may_start=lambda each: self._restarts.may_start(each.principal, each.resource, self._now_s),
            evict=lambda each: self._stop(each, StopReason.EVICTED),
            start=self._start,
        )
        self._out: list[Instruction] = []
        self._draining = False
        self._now_s = float("-inf")

    # ------------------------------------------------------------ the door

    def handle(self, event: Event) -> list[Instruction]:  # noqa: C901, PLR0912 (one branch per event)
        """Take one event and return what is to be done; events of the model mean nothing here.

        Raises:
            InvalidTransition: The event contradicts what went before.
        """
        self._now_s = max(self._now_s, event.at_s)
        match event:
            case CallArrived():
                self._call_arrived(event)
            case CallReturned():
                self._call_returned(event)
            case CallAbandoned():
                self._call_abandoned(event)
            case SandboxBecameReady():
                self._became_ready(event)
            case SandboxStartFailed():
                self._start_failed(event)
            case SandboxExited():
                self._exited(event)
            case SandboxStopped():
                self._stopped(event)
            case SandboxMeasured():
                self._measured(event)
            case HostedMemoryMeasured():
                self.inventory.hosted_bytes = event.memory_bytes
                self._relieve()
            case SessionOpened():
                self._session_opened(event)
            case SessionClosed():
                self._session_closed(event)
            case ResourceRegistered():
                self._registered(event)
            case DrainRequested():
                self._drain()
            case TimerFired():
                pass
            case _:
                return []
        return self._settle()

    def take_facts(self) -> list[PoolFact]:
        """Hand over what became of bets, and what fell idle, since the last time."""
        facts, self._stakes.facts = self._stakes.facts, []
        return facts

    def crowding(self) -> float:
        """Return how many starts there are, on a slot or queued, for each start slot."""
        return (
            len(self._starts.holding_slots(self._now_s)) + self.inventory.all_queued()
        ) / self._policy.starts_at_once

    def next_deadline_s(self) -> float | None:
        """Return when `TimerFired` is wanted next, or None."""
        dues = (
            self._deadlines.next_s(),
            self._provision.next_refill_s(),
            self._starts.next_slot_s(self._now_s),
        )
        return min((due_s for due_s in dues if due_s is not None), default=None)

    def estimate(self, principal: PrincipalId, resource: ResourceId) -> Estimate:
        """Return what a start takes and holds.

        Raises:
            KeyError: The server is not registered.
        """
        spec = self._servers.find(principal, resource)
        if spec is None:
            raise KeyError(resource)
        return self._servers.estimate(spec)

    def is_idle(self, sandbox: SandboxId) -> bool:
        """Whether it is leased, warm and without a call."""
        found = self.inventory.find(sandbox)
        return found is not None and found.idle

    def statistics(self, at_s: float) -> PoolStatistics:
        """Return a snapshot."""
        return PoolStatistics(
            sandboxes=tuple(view(each, at_s) for each in self.inventory),
            used_bytes=self.inventory.used_bytes,
            memory_bytes=self._policy.memory_bytes,
            set_aside_bytes=self._policy.set_aside_bytes,
            hosted_bytes=self.inventory.hosted_bytes,
            too_large=tuple(
                refusals.too_little_memory(resource, needed_bytes, self._policy)
                for resource, needed_bytes in self._servers.too_large().items()
            ),
            starting=len(self.inventory.starting()),
            starts_at_once=self._policy.starts_at_once,
            queued=self.inventory.all_queued(),
            sessions=len(self.book),
            calls=self.book.open_calls,
            backing_off=self._restarts.backing_off(at_s),
            ended=self.inventory.ended,
            ended_unused=self.inventory.ended_unused,
            ended_unused_cpu_s=self.inventory.ended_unused_cpu_s,
        )

    def check_invariants(self) -> None:
        """Assert what holds after every event.

        Raises:
            AssertionError: It does not; the message has the story.
        """
        self.inventory.check()
        self.book.check()
        for sandbox in self.inventory:
            for call_id in (*sandbox.waiting, *sandbox.running):
                call = self.book.call(call_id)
                if call is None or call.sandbox != sandbox.id or call.granted != (call_id in sandbox.running):
                    raise AssertionError(f"{sandbox.id} has {call_id}, the book says {call}")

    # ------------------------------------------------------------ bets

    def refusal_of(self, bet: Bet, backer: str) -> Refusal | None:
        """Say why a bet on a start cannot be placed, or None (see `Placements.refusal_of`)."""
        return Refusal.DRAINING if self._draining else self._placements.refusal_of(bet, backer, self._now_s)

    def has_room(self, stake: Stake) -> bool:
        """Whether memory is free for a bet, or would be freed for it."""
        newcomer = self._servers.sandbox_for_stake(stake, now_s=self._now_s)
        return self._starts.room_for(newcomer, self._now_s) is not Room.FULL

    def place(self, stake: Stake) -> list[Instruction]:
        """Queue the start that an admitted bet is on, at predicted priority."""
        self._provision.place(stake, self._now_s)
        return self._settle()

    def hurry(self, bet: Bet, backer: str) -> list[Instruction]:
        """Its call is all but certain: what is being prepared for it goes before mere guesses."""
        for sandbox in self._placements.prepared(bet, backer):
            if sandbox.priority is Priority.PREDICTED and sandbox.state in _NOT_READY:
                self.inventory.set_priority(sandbox, Priority.CONFIGURED)
                if sandbox.state is SandboxState.STARTING:
                    self._out.append(RaisePriority(sandbox=sandbox.id))
        return self._settle()

    def limit_cpu(self, sandbox: SandboxId, cpu_s: float) -> list[Instruction]:
        """Say anew how much CPU a sandbox may use while it is only a bet."""
        found = self.inventory.expect(sandbox, "limit")
        if found.cpu_limit_s == cpu_s:
            return []
        found.cpu_limit_s = cpu_s
        return [LimitCpu(sandbox=sandbox, cpu_s=cpu_s)]

    def keep(self, sandbox: SandboxId, stake: Stake) -> None:
        """Keep an idle sandbox for as long as a bet on its next use runs."""
        kept = self.inventory.expect(sandbox, "keep")
        kept.stake = stake
        self._deadlines.set(kept, stake.expires_s)

    def stop(self, sandbox: SandboxId, reason: StopReason) -> list[Instruction]:
        """Stop a sandbox that is not worth having, unless a call needs it."""
        found = self.inventory.expect(sandbox, "stop")
        if found.alive and not found.busy:
            self._stop(found, reason)
        return self._settle()

    def stake_on(self, sandbox: SandboxId) -> Stake | None:
        """Return the open bet on a sandbox that nobody has claimed yet."""
        found = self.inventory.find(sandbox)
        return found.stake if found is not None and found.alive and not found.claimed else None

    def rebind(self, principal: PrincipalId, backer: str, session: SessionId) -> None:
        """A conversation turned out to be a session's: what is prepared for it is the session's."""
        self._placements.rebind(principal, backer, session)

    # ------------------------------------------------------------ servers and sessions

    def _registered(self, event: ResourceRegistered) -> None:
        self._servers.register(event)
        self._provision.refill(event, self._now_s)

    def _session_opened(self, event: SessionOpened) -> None:
        session = self.book.open(event)
        if self._policy.mode in {Mode.EAGER, Mode.RESERVED} and not self._draining:
            for resource in event.resources:
                self._provision.provide(session, resource, self._now_s)

    def _session_closed(self, event: SessionClosed) -> None:
        session = self.book.close(event.session)
        if session is None:
            return
        for call_id in session.calls:
            self._end_call_of_closed(session, call_id)
        for spec in self._servers.of(session.principal):
            owned = self._provision.owned(session, spec)
            if owned is not None and spec.shared:
                owned.stateful_for.pop(session.id, None)
                self._maybe_idle(owned)
            elif owned is not None:
                starting = owned.state is SandboxState.STARTING
                self._stop(owned, StopReason.UNWANTED if starting else StopReason.SESSION_CLOSED)
            for sandbox in self.inventory.shelf(session.principal, spec.resource):
                if session.id in {sandbox.session, sandbox.stake.backer if sandbox.stake else None}:
                    self._stop(sandbox, StopReason.SESSION_CLOSED)

    def _drain(self) -> None:
        """Refuse who waits, stop what is idle; what answers calls stops when they are answered."""
        self._draining = True
        self._provision.close()
        for sandbox in self.inventory:
            for call in self._waiting(sandbox):
                self._refuse(call, refusals.draining(call.id))
            if sandbox.alive and not sandbox.running:
                self._stop(sandbox, StopReason.DRAINING)

    # ------------------------------------------------------------ calls

    def _call_arrived(self, event: CallArrived) -> None:
        if self.book.call(event.call) is not None:
            raise InvalidTransition(subject=event.call, state="arrived", event="CallArrived", story=())
        session = self.book.session(event.session)
        if self._draining:
            self._out.append(refusals.draining(event.call))
        elif session is None:
            self._out.append(refusals.session_closed(event.call, event.session))
        elif (spec := self._servers.find(session.principal, event.resource)) is None:
            self._out.append(refusals.unknown_resource(event.call, event.resource))
        elif event.resource in session.lost:
            session.lost.discard(event.resource)
            self._out.append(refusals.state_lost(event.call, event.resource))
        elif spec.remote:
            self.book.add(event).granted = True
            self._out.append(GrantLease(call=event.call, sandbox=None))
        else:
            self._find_sandbox(self.book.add(event), session, spec)

    def _find_sandbox(self, call: Call, session: OpenSession, spec: ResourceRegistered) -> None:
        sandbox = self._provision.obtain(session, spec, call=call, now_s=self._now_s)
        if sandbox is None:
            wait_s = self._restarts.wait_s(session.principal, spec.resource, self._now_s)
            if wait_s > 0.0:
                why = self._restarts.message(session.principal, spec.resource)
                self._refuse(call, refusals.backing_off(call.id, spec.resource, why, wait_s))
                return
            if self._servers.never_fits(spec):
                needed = self._servers.estimate(spec).memory_bytes
                self._refuse(call, refusals.never_fits(call.id, spec.resource, needed, self._policy))
                return
            sandbox = self._provision.add(session, spec, priority=Priority.CLAIMED, because="called", now_s=self._now_s)
        self._attach(call, sandbox)

    def _attach(self, call: Call, sandbox: Sandbox) -> None:
        call.sandbox = sandbox.id
        if sandbox.cpu_limit_s is not None:  # a bet no longer
            sandbox.cpu_limit_s = None
            if sandbox.state is not SandboxState.QUEUED:
                self._out.append(LimitCpu(sandbox=sandbox.id, cpu_s=None))
        if sandbox.state is SandboxState.LEASED:
            self._grant(call, sandbox)
            return
        sandbox.waiting[call.id] = None
        if sandbox.priority is not Priority.CLAIMED:
            self.inventory.set_priority(sandbox, Priority.CLAIMED)
            if sandbox.state is SandboxState.STARTING:
                self._out.append(RaisePriority(sandbox=sandbox.id))

    def _grant(self, call: Call, sandbox: Sandbox) -> None:
        call.granted = True
        sandbox.waiting.pop(call.id, None)
        sandbox.running[call.id] = None
        sandbox.served += 1
        sandbox.idle_since_s = None
        self._deadlines.set(sandbox, None)
        if not call.read_only:
            sandbox.stateful_for[call.session] = None
        self._out.append(GrantLease(call=call.id, sandbox=sandbox.id))
        self._stakes.answered(sandbox, call=call.id, session=call.session, arrived_s=call.arrived_s, now_s=self._now_s)

    def _call_returned(self, event: CallReturned) -> None:
        call = self.book.call(event.call)
        if call is None:
            return
        if not call.granted:
            raise InvalidTransition(subject=event.call, state="waiting", event="CallReturned", story=())
        self._end_call(call)

    def _call_abandoned(self, event: CallAbandoned) -> None:
        call = self.book.call(event.call)
        if call is not None:
            self._end_call(call)

    def _end_call(self, call: Call) -> None:
        self.book.remove(call)
        sandbox = self._sandbox_of(call)
        if sandbox is None:
            return  # a remote or built-in server's, or it died under the call
        sandbox.running.pop(call.id, None)
        sandbox.waiting.pop(call.id, None)
        if sandbox.state is not SandboxState.QUEUED:
            self._maybe_idle(sandbox)
        elif sandbox.by_mode and not sandbox.waiting:
            self.inventory.set_priority(sandbox, Priority.CONFIGURED)
        elif not sandbox.waiting:
            self._stop(sandbox, StopReason.UNWANTED)

    def _end_call_of_closed(self, session: OpenSession, call_id: CallId) -> None:
        call = self.book.call(call_id)
        if call is None:
            return
        if not call.granted:
            self._refuse(call, refusals.session_closed(call.id, session.id))
            return
        self.book.remove(call)
        sandbox = self._sandbox_of(call)
        if sandbox is not None:
            sandbox.running.pop(call.id, None)

    def _refuse(self, call: Call, refusal: RefuseLease) -> None:
        self.book.remove(call)
        sandbox = self._sandbox_of(call)
        if sandbox is not None:
            sandbox.waiting.pop(call.id, None)
        self._out.append(refusal)

    def _sandbox_of(self, call: Call) -> Sandbox | None:
        return None if call.sandbox is None else self.inventory.find(call.sandbox)

    def _waiting(self, sandbox: Sandbox) -> list[Call]:
        found = (self.book.call(call) for call in sandbox.waiting)
        return [call for call in found if call is not None]

    # ------------------------------------------------------------ what sandboxes tell

    def _start(self, sandbox: Sandbox) -> None:
        sandbox.started_s = self._now_s
        sandbox.blocked_since_s = None
        if sandbox.claimed:
            self._deadlines.set(sandbox, None)
        self.inventory.move(sandbox, Happening.ADMITTED, self._now_s)
        self._restarts.started(sandbox.principal, sandbox.resource, sandbox.id)
        self._out.append(
            StartSandbox(
                sandbox=sandbox.id,
                principal=sandbox.principal,
                resource=sandbox.resource,
                session=sandbox.session,
                priority=sandbox.priority,
                cause=sandbox.cause,
                cpu_limit_s=sandbox.cpu_limit_s,
            )
        )

    def _became_ready(self, event: SandboxBecameReady) -> None:
        sandbox = self.inventory.expect(event.sandbox, "SandboxBecameReady")
        self.inventory.move(sandbox, Happening.BECAME_READY, self._now_s)
        sandbox.cpu_s = event.cpu_s
        self.inventory.charge(sandbox, event.memory_bytes)
        if not sandbox.alive:
            return
        sandbox.start_s = event.start_s
        took = Estimate(start_s=event.start_s, cpu_s=event.cpu_s, memory_bytes=event.memory_bytes)
        self._estimates.started(sandbox.principal, sandbox.resource, sandbox.form, start=took)
        self._restarts.became_ready(sandbox.principal, sandbox.resource, self._now_s)
        for call in self._waiting(sandbox):
            self._grant(call, sandbox)
        if sandbox.idle:
            self._stakes.claimed_in_vain(sandbox, self._now_s)
            self._maybe_idle(sandbox)
        self._relieve()

    def _start_failed(self, event: SandboxStartFailed) -> None:
        sandbox = self.inventory.expect(event.sandbox, "SandboxStartFailed")
        sandbox.cpu_s = max(sandbox.cpu_s, event.cpu_s)
        self.inventory.move(sandbox, Happening.START_FAILED, self._now_s, event.message)
        if sandbox.state is SandboxState.STOPPING:
            return
        wait_s = self._restarts.failed(sandbox.principal, sandbox.resource, event.message, self._now_s)
        for call in self._waiting(sandbox):
            self._refuse(call, refusals.start_failed(call.id, sandbox.resource, event.message, wait_s))
        self._stakes.ended(sandbox, reason=None, now_s=self._now_s)
        self._back_off(sandbox, event.message, wait_s)

    def _exited(self, event: SandboxExited) -> None:
        sandbox = self.inventory.expect(event.sandbox, "SandboxExited")
        self.inventory.move(sandbox, Happening.EXITED, self._now_s, event.message)
        if sandbox.state is SandboxState.STOPPING:
            return
        wait_s = self._restarts.failed(sandbox.principal, sandbox.resource, event.message, self._now_s, had_lived=True)
        self._tell_lost(sandbox)
        self._stakes.ended(sandbox, reason=None, now_s=self._now_s)
        self._back_off(sandbox, event.message, wait_s)

    def _back_off(self, failed: Sandbox, why: str, wait_s: float) -> None:
        """Refuse who waits for another start of the same server; refill when the wait is over."""
        for sandbox in self.inventory.of(failed.principal, failed.resource):
            if wait_s > 0.0 and sandbox.state is SandboxState.QUEUED:
                for call in self._waiting(sandbox):
                    self._refuse(call, refusals.backing_off(call.id, sandbox.resource, why, wait_s))
                self._stop(sandbox, StopReason.UNWANTED)
        spec = self._servers.find(failed.principal, failed.resource)
        if spec is not None:
            self._provision.refill(spec, self._now_s)

    def _stopped(self, event: SandboxStopped) -> None:
        sandbox = self.inventory.expect(event.sandbox, "SandboxStopped")
        sandbox.cpu_s = max(sandbox.cpu_s, event.cpu_s)
        self.inventory.move(sandbox, Happening.STOPPED, self._now_s)
        self._stakes.ended(sandbox, reason=sandbox.stop_reason, now_s=self._now_s)
        self._restarts.gave_up(sandbox.principal, sandbox.resource, sandbox.id)

    def _measured(self, event: SandboxMeasured) -> None:
        sandbox = self.inventory.find(event.sandbox)
        if sandbox is None:
            return
        self.inventory.move(sandbox, Happening.MEASURED, self._now_s)
        sandbox.cpu_s = max(sandbox.cpu_s, event.cpu_s)
        if sandbox.state is not SandboxState.STARTING:  # there the estimate is the better number: it still grows
            self.inventory.charge(sandbox, event.memory_bytes)
            self._relieve()

    # ------------------------------------------------------------ stopping

    def _stop(self, sandbox: Sandbox, reason: StopReason) -> None:
        """Stop a sandbox, or drop it from the queue; nobody may be waiting for it."""
        if sandbox.state is SandboxState.QUEUED:
            self.inventory.move(sandbox, Happening.DROPPED, self._now_s, reason.value)
            self._stakes.ended(sandbox, reason=reason, now_s=self._now_s)
            return
        self._tell_lost(sandbox)
        sandbox.stop_reason = reason
        sandbox.running.clear()
        self.inventory.move(sandbox, Happening.STOP_ASKED, self._now_s, reason.value)
        self._out.append(StopSandbox(sandbox=sandbox.id, reason=reason))
        if sandbox.stake is not None and sandbox.stake.bet.kind is BetKind.KEEP:
            self._stakes.ended(sandbox, reason=reason, now_s=self._now_s)

    def _tell_lost(self, sandbox: Sandbox) -> None:
        """Note who is to be told; whoever has a call running in it learns from that call's end."""
        told = {call.session for call in map(self.book.call, sandbox.running) if call is not None}
        for session_id in sandbox.stateful_for:
            session = self.book.session(session_id)
            if session is not None and session_id not in told:
                session.lost.add(sandbox.resource)

    def _maybe_idle(self, sandbox: Sandbox) -> None:
        if not sandbox.idle:
            return
        if self._draining:
            self._stop(sandbox, StopReason.DRAINING)
            return
        sandbox.idle_since_s = self._now_s
        if sandbox.stateful_for or not (sandbox.shared or self._policy.mode is Mode.PREDICTIVE):
            return
        self._deadlines.set(sandbox, self._now_s + self._policy.idle_stop_s)
        self._stakes.facts.append(
            SandboxFellIdle(
                at_s=self._now_s,
                sandbox=sandbox.id,
                principal=sandbox.principal,
                resource=sandbox.resource,
                session=sandbox.owner,
                memory_bytes=sandbox.memory_bytes,
            )
        )

    def _relieve(self) -> None:
        """More was measured than the budget has: let go of what is cheap, never of state.

        For what hosted sandboxes use, that is only what nobody has claimed.
        """
        over_bytes = self.inventory.used_bytes - self.inventory.stopping_bytes - self._policy.memory_bytes
        hosted_bytes = self.inventory.hosted_bytes
        for sandbox in cheapest_first(self.inventory, self._now_s) if over_bytes + hosted_bytes > 0 else ():
            if over_bytes + (0 if sandbox.claimed else hosted_bytes) <= 0:
                return
            over_bytes -= sandbox.memory_bytes
            self._stop(sandbox, StopReason.EVICTED)

    # ------------------------------------------------------------ settling

    def _settle(self) -> list[Instruction]:
        """Do what time and room allow, and hand over the instructions."""
        for sandbox in self._deadlines.due(self._now_s):
            self._came_due(sandbox)
        self._provision.refill_due(self._now_s)
        for sandbox in self._starts.pump(self._now_s):
            if sandbox.blocked_since_s is None:
                sandbox.blocked_since_s = self._now_s
                self._deadlines.set(sandbox, self._now_s + self._policy.claim_patience_s)
        out, self._out = self._out, []
        return out

    def _came_due(self, sandbox: Sandbox) -> None:
        if sandbox.waiting:
            for call in self._waiting(sandbox):
                refusal = refusals.no_memory_for_now(
                    call.id,
                    sandbox.resource,
                    waited_s=self._policy.claim_patience_s,
                    used_bytes=self.inventory.used_bytes,
                    budget_bytes=self._policy.memory_bytes,
                )
                self._refuse(call, refusal)
            self._stop(sandbox, StopReason.UNWANTED)
        elif sandbox.alive and not sandbox.claimed:
            self._stop(sandbox, StopReason.EXPIRED)
        elif sandbox.idle and not sandbox.stateful_for:
            self._stop(sandbox, StopReason.IDLE)
