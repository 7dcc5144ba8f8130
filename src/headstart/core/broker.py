"""The broker: every event comes in here, every instruction goes out here.

One event goes through these in turn, each pure and bounded on its own:

1. `scope` says which conversation and session it belongs to;
2. the pool takes it, and says what becomes of sandboxes and calls;
3. `foresight` says what will be needed; each proposal is a bet, the bookmaker prices it,
   and what is admitted is placed in the pool;
4. bets that ended are settled, predictors learn from it, the trace is written.

So what an agent waits for is decided before anything is predicted, and a prediction can
never delay or change it. The same events give the same instructions; what was learned
before (`import_learned`) is the only other thing that goes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headstart.core.actions import action_key
from headstart.core.bets import Bet, BetKind
from headstart.core.bookmaker import CERTAIN, Bookmaker
from headstart.core.events import (
    CallAbandoned,
    CallArrived,
    CallReturned,
    Event,
    GrantLease,
    Instruction,
    RefuseLease,
    ResourceRegistered,
    SandboxBecameReady,
    SandboxExited,
    SandboxMeasured,
    SandboxStartFailed,
    SandboxStopped,
    SessionClosed,
    SessionOpened,
    SetTimer,
    StartSandbox,
    StopReason,
    TimerFired,
)
from headstart.core.foresight import KEEP_ALIVE, Foresight, Proposal
from headstart.core.keeping import Keeping
from headstart.core.ledger import LedgerStatistics
from headstart.core.policy import BetRule, Refusal
from headstart.core.pool import (
    Estimates,
    Mode,
    Pool,
    PoolPolicy,
    PoolStatistics,
    SandboxFellIdle,
    SandboxState,
    Stake,
    StakeLost,
    StakeWon,
)
from headstart.core.scope import Belonging, Scope
from headstart.core.steps import SessionSummary
from headstart.core.stream import (
    GenerationEnded,
    GenerationStarted,
    ModelEvent,
    TextArrived,
    ToolCallArgumentsArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.core.tracer import Finished, Tracer
from headstart.core.waste import WasteLimits, WasteStatistics
from headstart.ids import GenerationId, IdSource, PrincipalId, SessionId

__all__ = ["Broker", "BrokerPolicy", "BrokerStatistics"]

_LEARNED_VERSION: Final = 1

_MOST_GENERATIONS: Final = 4_096
"""Followed at once; the oldest is dropped (its end was lost)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPolicy:
    """All that can be set about deciding.

    Attributes:
        gamma: Distinct keyword hits that make a server a candidate.
        prefetch: `priced` (the bet rule) or `paper` (SpecBox's thresholds).
        waste_price: λ of the bet rule: seconds that one wasted CPU-second is worth.
        waste_cpu_share: Wasted CPU-seconds allowed per second of wall time.
        waste_cpu_burst_s: Wasted CPU-seconds allowed at once, after a quiet time.
        waste_memory_bytes: Memory that unclaimed bets may hold at any time.
        learn: Add to what is known of a principal: what follows what, how good each predictor is and
            how early, when an idle sandbox is called again. Without it, what was learned before is used
            and stays as it is; what starts take is measured all the same.
        learn_text: Remember texts that led to calls, as part of `learn`.
    """

    pool: PoolPolicy = field(default_factory=PoolPolicy)
    gamma: int = 2
    prefetch: str = "priced"
    waste_price: float = 0.2
    waste_cpu_share: float = 0.5
    waste_cpu_burst_s: float = 20.0
    waste_memory_bytes: int = 1_500_000_000
    learn: bool = True
    learn_text: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatistics:
    """The broker at one moment.

    Attributes:
        pool: The sandboxes, slots and memory.
        predictors: Each one's record, numerators and denominators.
        waste: Where the waste budget stands.
        conversations: Followed in model streams.
    """

    at_s: float
    pool: PoolStatistics
    predictors: LedgerStatistics
    waste: WasteStatistics
    conversations: int


class Broker:
    """Predict, price, admit, execute, settle: a pure function of the events so far.

    Args:
        policy: Its limits.
        ids: Makes the ids of sandboxes; with `SequentialIds` a replay makes the same.
    """

    def __init__(self, policy: BrokerPolicy, ids: IdSource) -> None:
        self._policy = policy
        self._predictive = policy.pool.mode is Mode.PREDICTIVE
        self._estimates = Estimates()
        self._pool = Pool(policy.pool, ids, self._estimates)
        self._scope = Scope()
        self._books = Bookmaker(
            BetRule(waste_price=policy.waste_price),
            WasteLimits(
                memory_bytes=policy.waste_memory_bytes,
                cpu_share=policy.waste_cpu_share,
                cpu_burst_s=policy.waste_cpu_burst_s,
            ),
            learns=policy.learn,
        )
        self._foresight = Foresight(
            gamma=float(policy.gamma),
            paper_prefetch=policy.prefetch == "paper",
            books=self._books,
            estimates=self._estimates,
            crowding=self._pool.crowding,
            learns=policy.learn,
        )
        self._keeping = Keeping()
        self._tracer = Tracer()
        self._principals: dict[SessionId, PrincipalId] = {}
        self._offers: dict[GenerationId, tuple[str, ...]] = {}
        self._timer_s: float | None = None
        self._now_s = float("-inf")

    # ------------------------------------------------------------ the door

    def handle(self, event: Event) -> list[Instruction]:
        """Take one event and return what is to be done, in this order.

        Raises:
            InvalidTransition: The event contradicts what went before.
        """
        self._now_s = max(self._now_s, event.at_s)
        self._books.time_passed(self._now_s)
        if isinstance(event, TimerFired):
            self._timer_s = None
        out = self._model_spoke(event) if isinstance(event, ModelEvent) else self._happened(event)
        return out + self._timer()

    def statistics(self, at_s: float) -> BrokerStatistics:
        """Return a snapshot; changes nothing."""
        return BrokerStatistics(
            at_s=at_s,
            pool=self._pool.statistics(at_s),
            predictors=self._books.ledger(),
            waste=self._books.waste(at_s),
            conversations=len(self._scope),
        )

    def take_finished(self) -> list[Finished]:
        """Hand over the steps, preparations and session summaries finished since the last time.

        What nobody takes is dropped, oldest first, so a caller that keeps no traces need not call it.
        """
        return self._tracer.take_finished()

    def summary(self, session: SessionId) -> SessionSummary | None:
        """Return an open session's numbers as they stand."""
        return self._tracer.summary(session)

    def check_invariants(self) -> None:
        """Assert what holds after every event (for tests).

        Raises:
            AssertionError: It does not; the message has the story.
        """
        self._pool.check_invariants()

    # ------------------------------------------------------------ what is remembered

    def export_learned(self, principal: PrincipalId) -> dict[str, Any]:
        """Return what was learned of a principal, as plain data (JSON can hold it)."""
        return {
            "version": _LEARNED_VERSION,
            "transitions": self._foresight.transitions.export(principal),
            "predictors": self._books.export(principal),
            "starts": self._estimates.export(principal),
            "keeping": self._keeping.export(principal),
        }

    def import_learned(self, principal: PrincipalId, data: Mapping[str, Any]) -> None:
        """Continue from what `export_learned` gave (of another version: from nothing).

        Raises:
            ValueError: The data are damaged.
        """
        if data.get("version") != _LEARNED_VERSION:
            return
        try:
            self._foresight.transitions.restore(principal, data["transitions"])
            self._books.load(principal, data["predictors"])
            self._estimates.load(principal, data["starts"])
            self._keeping.load(principal, data["keeping"])
        except (KeyError, TypeError, AttributeError) as damaged:
            raise ValueError(f"what was learned of {principal} is damaged: {damaged!r}") from damaged

    def forget(self, principal: PrincipalId) -> None:
        """Erase all that was learned of a principal; what runs goes on."""
        self._foresight.transitions.forget(principal)
        self._books.forget(principal)
        self._estimates.forget(principal)
        self._keeping.forget(principal)
        self._scope.forget(principal)

    # ------------------------------------------------------------ models

    def _model_spoke(self, event: ModelEvent) -> list[Instruction]:
        match event:
            case GenerationStarted():
                belonging = self._scope.generation_started(event)
                self._offers[event.generation] = event.offered_tools
                if len(self._offers) > _MOST_GENERATIONS:
                    del self._offers[next(iter(self._offers))]
                self._tracer.generation_started(event, belonging)
                return self._foresee(event, belonging) + self._foresee_from_history(event, belonging)
            case TextArrived():
                self._tracer.output_seen(event.generation, event.at_s, text=True)
            case ToolCallOpened() | ToolCallArgumentsArrived():
                self._tracer.output_seen(event.generation, event.at_s, text=False)
            case ToolCallClosed():
                self._tracer.output_seen(event.generation, event.at_s, text=False)
                self._call_written(event)
            case GenerationEnded():
                self._tracer.generation_ended(event)
        belonging = self._scope.belonging(event.generation)
        out = [] if belonging is None else self._foresee(event, belonging)
        if isinstance(event, GenerationEnded):
            self._offers.pop(event.generation, None)
            self._scope.generation_ended(event.generation)
        return out

    def _call_written(self, event: ToolCallClosed) -> None:
        belonging = self._scope.belonging(event.generation)
        if belonging is None:
            return
        names = self._foresight.names(belonging.principal)
        tool = names.resolve(event.tool, offered=self._offers.get(event.generation, ()))
        action = None if tool is None else action_key(tool.resource, tool.tool, event.arguments)
        if action is not None:
            self._tracer.call_written(event.generation)
        self._scope.tool_call_closed(
            event.generation, index=event.index, wire_id=event.wire_id, action=action, at_s=event.at_s
        )

    def _foresee(self, event: ModelEvent, belonging: Belonging) -> list[Instruction]:
        return self._consider(self._foresight.from_stream(event, belonging)) if self._predictive else []

    def _foresee_from_history(self, event: GenerationStarted, belonging: Belonging) -> list[Instruction]:
        track = belonging.session
        if track is None and event.turn:
            track = belonging.kin
            if track is None:
                return []  # somewhere in its middle, and nobody knows where
        return self._foresee_next(
            belonging.principal, belonging.session, belonging.session or belonging.conversation, track=track
        )

    # ------------------------------------------------------------ everything else

    def _happened(self, event: Event) -> list[Instruction]:
        returning = self._pool.book.call(event.call) if isinstance(event, CallReturned) else None
        self._before_pool(event)
        out = self._told(self._pool.handle(event))
        out += self._settle()
        self._after_pool(event)
        if isinstance(event, CallArrived):
            out += self._foresee_next_of(event.session)
        elif returning is not None:
            out += self._foresee_next_of(returning.session)
        elif isinstance(event, SandboxBecameReady | SandboxMeasured):
            out += self._check_cost(event)
        return out

    def _before_pool(self, event: Event) -> None:
        """What a call belongs to must be known before it is served."""
        match event:
            case SessionOpened():
                self._principals[event.session] = event.principal
                self._scope.session_opened(event.session, event.principal)
                self._tracer.session_opened(event)
            case CallArrived():
                self._call_arrived(event)
            case SandboxBecameReady():
                self._tracer.sandbox_ready(event)
            case _:
                pass

    def _call_arrived(self, event: CallArrived) -> None:
        principal = self._principals.get(event.session)
        if principal is None:
            return
        arrival = self._scope.call_arrived(event)
        if arrival.joined is not None:
            self._pool.rebind(principal, arrival.joined.conversation, event.session)
            self._books.rebind(arrival.joined.conversation, event.session)
            self._tracer.joined(arrival.joined)
        backers = [str(event.session)]
        if arrival.origin is not None:
            backers.append(arrival.origin.conversation)
            if self._policy.learn and self._policy.learn_text:
                self._foresight.confirmed(arrival.origin.generation, event.resource)
        self._books.called(backers, event.resource, event.at_s)
        self._foresight.called(principal, event.session, event.resource)
        self._tracer.call_arrived(event, arrival.origin, principal)

    def _after_pool(self, event: Event) -> None:
        """What ends is told to the rest when the pool is done with it."""
        match event:
            case ResourceRegistered():
                self._foresight.register(event)
            case CallReturned():
                self._tracer.returned(event)
            case CallAbandoned():
                self._tracer.abandoned(event)
            case SandboxBecameReady():
                found = self._pool.inventory.find(event.sandbox)
                if found is not None:
                    self._foresight.start_measured(found.principal, found.resource)
            case SandboxStopped() | SandboxStartFailed() | SandboxExited():
                if self._pool.inventory.find(event.sandbox) is None:
                    self._tracer.sandbox_gone(event.sandbox)
            case SessionClosed():
                self._session_closed(event)
            case _:
                pass

    def _session_closed(self, event: SessionClosed) -> None:
        self._principals.pop(event.session, None)
        self._scope.session_closed(event.session)
        self._books.session_closed(event.session)
        self._foresight.transitions.close_session(event.session)
        self._tracer.session_closed(event, unsettled=self._pool.inventory.bets_on(event.session))

    def _told(self, instructions: list[Instruction]) -> list[Instruction]:
        """Write the trace of what is about to be done."""
        for each in instructions:
            match each:
                case StartSandbox():
                    self._tracer.sandbox_starts(each, self._now_s)
                case GrantLease():
                    self._tracer.granted(each.call, each.sandbox, self._now_s)
                case RefuseLease():
                    self._tracer.refused(each.call, each.refusal, self._now_s)
                case _:
                    pass
        return instructions

    # ------------------------------------------------------------ bets

    def _foresee_next_of(self, session: SessionId) -> list[Instruction]:
        principal = self._principals.get(session)
        return [] if principal is None else self._foresee_next(principal, session, session)

    def _foresee_next(
        self, principal: PrincipalId, session: SessionId | None, backer: str, *, track: SessionId | None = None
    ) -> list[Instruction]:
        if not self._predictive:
            return []
        proposals = self._foresight.from_history(
            principal=principal, session=session, backer=backer, track=track, now_s=self._now_s
        )
        return self._consider(proposals)

    def _consider(self, proposals: list[Proposal]) -> list[Instruction]:
        """Place what is worth it and within the budgets; count the rest by its reason."""
        out: list[Instruction] = []
        for proposal in proposals:
            self._books.heard(proposal.bet, proposal.backer, self._now_s)
            stake = self._admit(proposal)
            if isinstance(stake, Refusal):
                self._books.refused(proposal.bet, stake)
            else:
                self._books.admitted(stake)
                out += self._told(self._pool.place(stake))
                out += self._settle()
            if proposal.bet.probability >= CERTAIN:
                out += self._told(self._pool.hurry(proposal.bet, proposal.backer))
        return out

    def _admit(self, proposal: Proposal) -> Stake | Refusal:
        bet = proposal.bet
        refusal = self._pool.refusal_of(bet, proposal.backer)
        if refusal is not None:
            return refusal
        stake = self._books.price(bet, proposal.backer, self._now_s, always_worth_it=proposal.trusted)
        if isinstance(stake, Refusal):
            return stake
        if not self._pool.has_room(stake):
            return Refusal.POOL_MEMORY
        memory_bytes = self._pool.estimate(bet.principal, bet.resource).memory_bytes
        return self._books.reserve(stake, self._now_s, memory_bytes=memory_bytes)

    def _check_cost(self, event: SandboxBecameReady | SandboxMeasured) -> list[Instruction]:
        """A bet holds no more memory, and uses no more CPU, than may be wasted: as it comes up, and as it grows."""
        stake, found = self._pool.stake_on(event.sandbox), self._pool.inventory.find(event.sandbox)
        if stake is None or found is None:
            return []
        allowed = self._books.measured(
            stake,
            self._now_s,
            memory_bytes=max(
                event.memory_bytes, found.memory_bytes
            ),  # while it starts, it is charged what it will hold
            cpu_s=event.cpu_s,
            ready=found.state is SandboxState.READY,
        )
        if isinstance(allowed, Refusal):
            return self._told(self._pool.stop(event.sandbox, StopReason.EVICTED)) + self._settle()
        return [] if allowed is None else self._pool.limit_cpu(event.sandbox, allowed)

    def _settle(self) -> list[Instruction]:
        """Enter how bets ended, and decide about what fell idle."""
        out: list[Instruction] = []
        while facts := self._pool.take_facts():
            for fact in facts:
                match fact:
                    case StakeWon():
                        self._books.won(fact)
                        self._tracer.won(fact)
                    case StakeLost():
                        self._books.lost(fact)
                        self._tracer.lost(fact)
                    case SandboxFellIdle():
                        out += self._keep_or_stop(fact)
                if isinstance(fact, StakeWon | StakeLost) and fact.stake.bet.kind is BetKind.KEEP:
                    self._keeping_ended(fact)
        return out

    def _keep_or_stop(self, fact: SandboxFellIdle) -> list[Instruction]:
        if not (self._predictive and self._pool.is_idle(fact.sandbox)):
            return []
        start_s = self._pool.estimate(fact.principal, fact.resource).start_s
        rule = self._books.rule
        stay = self._keeping.stay(
            fact.principal,
            fact.resource,
            start_s=start_s,
            cost_s_per_s=rule.waste_price * fact.memory_bytes / rule.byte_s_per_cpu_s,
            most_s=self._policy.pool.idle_stop_s,
        )
        bet = Bet(
            kind=BetKind.KEEP,
            predictor=KEEP_ALIVE,
            principal=fact.principal,
            session=fact.session,
            resource=fact.resource,
            probability=stay.probability,
            hidden_s=start_s,
            expires_s=self._now_s + stay.seconds,
            waste_byte_s=fact.memory_bytes * stay.seconds,
            because=f"{stay.probability:.0%} come back within {stay.seconds:.0f} s",
        )
        if stay.seconds <= 0.0:
            self._books.refused(bet, Refusal.NOT_WORTH_IT)
            return self._told(self._pool.stop(fact.sandbox, StopReason.IDLE))
        stake = self._books.stake(bet, fact.session or "", self._now_s)
        self._books.admitted(stake)
        self._pool.keep(fact.sandbox, stake)
        return []

    def _keeping_ended(self, fact: StakeWon | StakeLost) -> None:
        if not self._policy.learn:
            return
        bet = fact.stake.bet
        self._keeping.idle_ended(
            bet.principal,
            bet.resource,
            after_s=fact.at_s - fact.stake.placed_s,
            returned=isinstance(fact, StakeWon),
        )

    def _timer(self) -> list[Instruction]:
        """Ask for the next wake-up if it differs from the one asked for."""
        due_s = self._pool.next_deadline_s()
        if due_s is None or due_s == self._timer_s:
            return []
        self._timer_s = due_s
        return [SetTimer(at_s=due_s)]
