"""Turns what routers and the dependency graph say into bets.

A router's candidate or a likely successor is only a name and a probability. Here it gets
what the rule needs: what a start takes, how much of it this predictor usually hides, how
long it is held in vain if nobody comes.

What a miss takes from others depends on the moment: on an idle machine nothing, with every
start slot busy the CPU of a whole start, which a start that is needed would have had. So a
weak guess is taken when there is nothing better to do, and not while others start.

How long a bet runs is learned too: half as long again as three of four of its predictor's
leads, plus the start. Waiting for the last one would hold memory for minutes; giving up
just before most calls would cost whole starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headstart.core.bets import Bet, BetKind, PredictorName
from headstart.core.bookmaker import Bookmaker
from headstart.core.events import ResourceRegistered
from headstart.core.intent import Candidate, KeywordRouter, ToolNameRouter, Union
from headstart.core.intent.names import ToolNames
from headstart.core.pool import Estimate, Estimates
from headstart.core.scope import Belonging
from headstart.core.stream import ModelEvent
from headstart.core.transitions import PaperPolicy, PricedPolicy, TransitionPredictor
from headstart.ids import GenerationId, PrincipalId, ResourceId, SessionId

__all__ = ["KEEP_ALIVE", "TRANSITIONS", "Foresight", "Proposal"]

TRANSITIONS: Final = PredictorName("transitions")
KEEP_ALIVE: Final = PredictorName("keep-alive")

_LEAST_HOLD_S: Final = 10.0
_MOST_HOLD_S: Final = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A bet to consider, and for whom.

    Attributes:
        backer: A session's or conversation's id.
        trusted: Its own policy has decided (the paper's thresholds); not priced again.
    """

    bet: Bet
    backer: str
    trusted: bool = False


class Foresight:
    """All predictors of starts.

    Args:
        gamma: Distinct keyword hits that make a server a candidate.
        paper_prefetch: SpecBox's thresholds instead of the bet rule.
        books: Knows how early each predictor speaks.
        estimates: Knows what starts take.
        crowding: How many starts there are now for each start slot.
        learns: What happens is remembered beyond the session that it happens in.
    """

    def __init__(
        self,
        *,
        gamma: float,
        paper_prefetch: bool,
        books: Bookmaker,
        estimates: Estimates,
        crowding: Callable[[], float],
        learns: bool = True,
    ) -> None:
        self._names = ToolNameRouter()
        self._router = Union((self._names, KeywordRouter(gamma=gamma)))
        self._paper_prefetch = paper_prefetch
        self.transitions = TransitionPredictor(PaperPolicy() if paper_prefetch else PricedPolicy(), learns=learns)
        self._books = books
        self._estimates = estimates
        self._crowding = crowding
        self._servers: dict[PrincipalId, dict[ResourceId, ResourceRegistered]] = {}
        self._start_s: dict[PrincipalId, dict[ResourceId, float]] = {}

    # ------------------------------------------------------------ what there is

    def register(self, event: ResourceRegistered) -> None:
        """A server exists, or more is known of it."""
        self._router.register(event)
        self._servers.setdefault(event.principal, {})[event.resource] = event
        self.start_measured(event.principal, event.resource)

    def start_measured(self, principal: PrincipalId, resource: ResourceId) -> None:
        """What a start takes is known better."""
        estimate = self.estimate(principal, resource)
        if estimate is not None:
            self._start_s.setdefault(principal, {})[resource] = estimate.start_s

    def estimate(self, principal: PrincipalId, resource: ResourceId) -> Estimate | None:
        """Return what a start takes; None for what is remote or unknown."""
        spec = self._servers.get(principal, {}).get(resource)
        return None if spec is None or spec.remote else self._estimates.of(principal, resource, spec.form)

    def names(self, principal: PrincipalId) -> ToolNames:
        """Return a principal's tools by every name that a model may use."""
        return self._names.names(principal)

    # ------------------------------------------------------------ what will be needed

    def from_stream(self, event: ModelEvent, belonging: Belonging) -> list[Proposal]:
        """Propose what the current step is about to need."""
        return [
            proposal
            for candidate in self._router.observe(event)
            if (proposal := self._prewarm(candidate, belonging)) is not None
        ]

    def from_history(
        self,
        *,
        principal: PrincipalId,
        session: SessionId | None,
        backer: str,
        track: SessionId | None = None,
        now_s: float,
    ) -> list[Proposal]:
        """Propose what a later step is likely to need.

        Args:
            principal: Whose habits.
            session: For whom; None: nobody is known yet, so it stays unleased.
            backer: The session, or the conversation.
            track: Whose history to continue: the session's own, or that of its kin.
            now_s: The event clock.
        """
        follow = track or session or SessionId(backer)
        successors = self.transitions.propose(
            principal=principal, session=follow, start_s=self._start_s.get(principal, {})
        )
        found: list[Proposal] = []
        for successor in successors:
            bet = self._bet(
                kind=BetKind.PREFETCH,
                predictor=TRANSITIONS,
                principal=principal,
                session=session,
                resource=successor.resource,
                probability=successor.probability,
                because=successor.because,
                now_s=now_s,
            )
            if bet is not None:
                found.append(Proposal(bet=bet, backer=backer, trusted=self._paper_prefetch))
        return found

    def called(self, principal: PrincipalId, session: SessionId, resource: ResourceId) -> None:
        """A call arrived: learn what follows what."""
        self.transitions.observe_call(principal=principal, session=session, resource=resource)

    def confirmed(self, generation: GenerationId, resource: ResourceId) -> None:
        """A generation did lead to a call: routers that learn from its text may."""
        self._router.confirm(generation=generation, resource=resource)

    def _prewarm(self, candidate: Candidate, belonging: Belonging) -> Proposal | None:
        bet = self._bet(
            kind=BetKind.PREWARM,
            predictor=candidate.predictor,
            principal=candidate.principal,
            session=belonging.session,
            resource=candidate.resource,
            probability=candidate.probability,
            because=candidate.because,
            now_s=candidate.at_s,
        )
        return None if bet is None else Proposal(bet=bet, backer=belonging.session or belonging.conversation)

    def _bet(  # noqa: PLR0913 (a bet's own fields)
        self,
        *,
        kind: BetKind,
        predictor: PredictorName,
        principal: PrincipalId,
        session: SessionId | None,
        resource: ResourceId,
        probability: float,
        because: str,
        now_s: float,
    ) -> Bet | None:
        estimate = self.estimate(principal, resource)
        if estimate is None:
            return None
        usual_s = self._books.usual_lead_s(principal, predictor)
        hold_s = estimate.start_s + min(_MOST_HOLD_S, max(_LEAST_HOLD_S, 1.5 * usual_s))
        return Bet(
            kind=kind,
            predictor=predictor,
            principal=principal,
            session=session,
            resource=resource,
            probability=probability,
            hidden_s=self._books.hidden_s(principal, predictor, estimate.start_s),
            expires_s=now_s + hold_s,
            miss_s=estimate.cpu_s * min(1.0, self._crowding()),
            waste_cpu_s=estimate.cpu_s,
            waste_byte_s=estimate.memory_bytes * hold_s,
            because=because,
        )
