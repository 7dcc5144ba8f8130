"""The sandbox dependency graph: which server is likely to be called next.

A state is a server; a session that has not called yet is in `START`. Every call is one
first-order transition from the session's state to the called server, staying included:
"three calls of git, then one of sqlite" is what work looks like, and a graph that leaves
the stays out is sure of a switch at every step. A session's end is an outcome, too: a state
that half of all sessions end in is followed by nothing half of the time.

Counts live at two levels, a session's own and its principal's (nothing learned crosses
from one principal to another). Two policies turn counts into candidates:

`PricedPolicy` (default) backs off. With `n` servers to choose from::

    P_principal(j|i) = (C_principal(i,j) + a/n) / (C_principal(i) + a)
    P(j|i)           = (C_session(i,j) + k · P_principal(j|i)) / (C_session(i) + k)

A new session starts from what its principal's sessions did and leaves it as its own
history grows; `k` is how many of its own steps outweigh it. What is prefetched stays for
a while, so a successor may also come after the session has stayed for some calls: with
`s = P(i|i)`, it is the first to follow within `h` calls with probability
`P(j|i) · (1 + s + … + s^(h-1))`. The policy names the likeliest successors with this
probability and leaves the choice to the bet rule.

`PaperPolicy` is SpecBox's (§3.2, eqs. 4-7): `P = (C+a)/Σ(C+a)`, a = 1, then only servers
that take λ = 5 s or longer to start, only P ≥ τ = 0.6, only the best B = 1. With many
servers and short histories it hardly ever fires: among 30 servers a successor must
have been seen 43 times without exception before its P reaches 0.6.

Everything is bounded: states per principal, successors per state (`transition_graph`),
sessions, principals. A step costs O(successors of the state), whatever the number of
states.

Rejected: second-order states (they need more history than a session has; the wish is
served by learning per session); sums over all sessions of all principals (a tenant's
habits are its own).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Protocol

from headstart.core.transition_graph import START, GraphData, GraphLimits, Row, TransitionGraph
from headstart.ids import PrincipalId, ResourceId, SessionId

__all__ = [
    "START",
    "GraphData",
    "GraphLimits",
    "PaperPolicy",
    "PrefetchPolicy",
    "PricedPolicy",
    "Row",
    "Successor",
    "TransitionGraph",
    "TransitionPredictor",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A server that may be called next.

    Attributes:
        probability: That it is called next (within the policy's horizon), uncalibrated.
        state: Where the session is, `START` before its first call.
        here / steps_here: Times it came next in this session, and times anything did.
        before / steps_before: The same in all of the principal's sessions.
    """

    resource: ResourceId
    probability: float
    state: ResourceId = START
    here: float = 0.0
    steps_here: float = 0.0
    before: float = 0.0
    steps_before: float = 0.0

    @property
    def because(self) -> str:
        """The counts for people: `after git: 3 of 4 here, 9 of 12 before`."""
        where = f"after {self.state}" if self.state else "at the start"
        return f"{where}: {self.here:.3g} of {self.steps_here:.3g} here, {self.before:.3g} of {self.steps_before:.3g} before"


class PrefetchPolicy(Protocol):
    """Turns a state's counts into candidates."""

    def choose(
        self, state: ResourceId, *, session: Row, principal: Row, start_s: Mapping[ResourceId, float]
    ) -> tuple[Successor, ...]:
        """Return the candidates, likeliest first; never the state itself (it is there already).

        `start_s` holds the servers that the session can reach, with what a start takes, seconds.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPolicy:
    """Back-off from session to principal to uniform; the bet rule does the choosing.

    Attributes:
        alpha: Transitions that the uniform distribution is worth, over all servers together.
        session_weight: Own steps that the principal's distribution is worth (`k`).
        horizon: Calls within which the successor has to come, as long as the session stays where
            it is until then. What is prefetched is kept for a while, so what counts is not the
            very next call alone; staying a call or two does not make the bet worthless.
        limit: Candidates named per step.
        floor: Probability below which a successor is not worth naming.
    """

    alpha: float = 1.0
    session_weight: float = 2.0
    horizon: int = 3
    limit: int = 4
    floor: float = 0.05

    def choose(
        self, state: ResourceId, *, session: Row, principal: Row, start_s: Mapping[ResourceId, float]
    ) -> tuple[Successor, ...]:
        # `probability`, with what does not depend on the successor taken out of the loop
        within = 1.0
        if state != START:
            stay = self.probability(state, session=session, principal=principal, servers=len(start_s))
            within = sum(stay**calls for calls in range(self.horizon))
        uniform = self.alpha / max(1, len(start_s))
        scale = self.session_weight / (principal.total + self.alpha)
        steps = (session.total + self.session_weight) / within
        least = self.floor * steps
        own = session.counts
        likely: list[tuple[float, ResourceId]] = []
        for successor, count in _all_counts(principal, session):
            mass = own.get(successor, 0.0) + (count + uniform) * scale
            if mass >= least and successor != state and successor in start_s:
                likely.append((mass / steps, successor))
        return _named(nlargest(self.limit, likely), state, session, principal)

    def probability(self, successor: ResourceId, *, session: Row, principal: Row, servers: int) -> float:
        """Return the probability that the very next call is one of `successor`'s, staying included."""
        before = (principal.counts.get(successor, 0.0) + self.alpha / max(1, servers)) / (principal.total + self.alpha)
        own = session.counts.get(successor, 0.0) + self.session_weight * before
        return own / (session.total + self.session_weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperPolicy:
    """SpecBox's policy as published: thresholds on start cost and probability, a budget per step.

    Attributes:
        alpha: Laplace smoothing, per server.
        cost_threshold_s: λ: servers that start faster are not prefetched.
        probability_threshold: τ.
        budget: B, candidates per step.
    """

    alpha: float = 1.0
    cost_threshold_s: float = 5.0
    probability_threshold: float = 0.6
    budget: int = 1

    def choose(
        self, state: ResourceId, *, session: Row, principal: Row, start_s: Mapping[ResourceId, float]
    ) -> tuple[Successor, ...]:
        likely = [
            (p, successor)
            for successor in principal.counts
            if successor != state
            and start_s.get(successor, 0.0) >= self.cost_threshold_s
            and (p := self.probability(successor, principal=principal, servers=len(start_s)))
            >= self.probability_threshold
        ]
        return _named(nlargest(self.budget, likely), state, session, principal)

    def probability(self, successor: ResourceId, *, principal: Row, servers: int) -> float:
        """Return the paper's smoothed share of `successor`, staying included."""
        return (principal.counts.get(successor, 0.0) + self.alpha) / (principal.total + self.alpha * max(1, servers))


def _all_counts(principal: Row, session: Row) -> Iterator[tuple[ResourceId, float]]:
    """Yield the principal's counts, then the successors that only the session still knows."""
    yield from principal.counts.items()
    for successor in session.counts:
        if successor not in principal.counts:
            yield successor, 0.0


def _named(
    ranked: Iterable[tuple[float, ResourceId]], state: ResourceId, session: Row, principal: Row
) -> tuple[Successor, ...]:
    return tuple(
        Successor(
            resource=successor,
            probability=probability,
            state=state,
            here=session.counts.get(successor, 0.0),
            steps_here=session.total,
            before=principal.counts.get(successor, 0.0),
            steps_before=principal.total,
        )
        for probability, successor in ranked
    )


@dataclass(slots=True, kw_only=True)
class _Track:
    """Where a session is, and its own graph."""

    principal: PrincipalId
    graph: TransitionGraph
    state: ResourceId = START


class TransitionPredictor:
    """Learns from calls and names likely successors.

    >>> predictor = TransitionPredictor()
    >>> me, session = PrincipalId("local"), SessionId("s")
    >>> for resource in ("git", "sqlite", "git", "sqlite", "git"):
    ...     predictor.observe_call(principal=me, session=session, resource=ResourceId(resource))
    >>> start_s = {ResourceId("git"): 0.5, ResourceId("sqlite"): 0.4, ResourceId("excel"): 0.8}
    >>> [best] = predictor.propose(principal=me, session=session, start_s=start_s)
    >>> best.resource, round(best.probability, 2), best.because
    ('sqlite', 0.94, 'after git: 2 of 2 here, 2 of 2 before')

    Args:
        policy: How counts become candidates.
        limits: Of a principal's graph.
        sessions: Sessions followed at once; the one least recently active goes first.
        principals: Principals remembered at once, likewise.
        learns: A session's calls also count for its principal; else only for itself.
    """

    def __init__(
        self,
        policy: PrefetchPolicy | None = None,
        *,
        limits: GraphLimits | None = None,
        sessions: int = 4_096,
        principals: int = 1_024,
        learns: bool = True,
    ) -> None:
        self._policy = policy or PricedPolicy()
        self._limits = limits or GraphLimits()
        self._session_limits = GraphLimits(states=64, successors=16, row_capacity=64.0)
        self._most_sessions = sessions
        self._most_principals = principals
        self._learns = learns
        self._tracks: dict[SessionId, _Track] = {}
        self._graphs: dict[PrincipalId, TransitionGraph] = {}

    def observe_call(self, *, principal: PrincipalId, session: SessionId, resource: ResourceId) -> None:
        """Learn that the session called `resource`.

        Call it when the call arrives, not when it returns: then what comes next can be
        prepared while the call runs.
        """
        track = self._track(principal, session)
        track.graph.add(track.state, resource)
        if self._learns:
            self._graph(principal).add(track.state, resource)
        track.state = resource

    def propose(
        self, *, principal: PrincipalId, session: SessionId, start_s: Mapping[ResourceId, float]
    ) -> tuple[Successor, ...]:
        """Name what the session is likely to call next, likeliest first.

        `start_s` holds the servers that it can reach, with what a start takes, seconds.
        """
        state, own, shared = self._rows(principal, session)
        return self._policy.choose(state, session=own, principal=shared, start_s=start_s)

    def close_session(self, session: SessionId) -> None:
        """Learn where it ended, and forget its own history."""
        track = self._tracks.pop(session, None)
        if track is not None and self._learns:
            self._graph(track.principal).add_end(track.state)

    def export(self, principal: PrincipalId) -> GraphData:
        """Return what was learned of a principal, as plain data."""
        graph = self._graphs.get(principal)
        return {} if graph is None else graph.export()

    def restore(self, principal: PrincipalId, data: GraphData) -> None:
        """Continue from what was exported; replaces what was learned since.

        Raises:
            ValueError: The data hold a count that is none.
        """
        self._graphs[principal] = TransitionGraph.restore(data, self._limits)

    def forget(self, principal: PrincipalId) -> None:
        """Erase all that was learned of a principal and of its sessions."""
        self._graphs.pop(principal, None)
        self._tracks = {key: track for key, track in self._tracks.items() if track.principal != principal}

    def _rows(self, principal: PrincipalId, session: SessionId) -> tuple[ResourceId, Row, Row]:
        graph = self._graphs.get(principal)
        track = self._tracks.get(session)
        state = START if track is None else track.state
        own = Row() if track is None else track.graph.row(state)
        return state, own, Row() if graph is None else graph.row(state)

    def _track(self, principal: PrincipalId, session: SessionId) -> _Track:
        track = self._tracks.pop(session, None)
        if track is None or track.principal != principal:
            track = _Track(principal=principal, graph=TransitionGraph(self._session_limits))
        self._tracks[session] = track
        if len(self._tracks) > self._most_sessions:
            del self._tracks[next(iter(self._tracks))]
        return track

    def _graph(self, principal: PrincipalId) -> TransitionGraph:
        graph = self._graphs.pop(principal, None)
        if graph is None:
            graph = TransitionGraph(self._limits)
        self._graphs[principal] = graph
        if len(self._graphs) > self._most_principals:
            del self._graphs[next(iter(self._graphs))]
        return graph
