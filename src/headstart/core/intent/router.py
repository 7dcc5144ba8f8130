"""Routers over model events, and the union that lets the first credible one win.

`ToolNameRouter` waits for a tool call's name: certain, but late. `KeywordRouter` reads
the request and the output as it is written: early, and sometimes wrong. `Union` runs any
number of routers side by side; a semantic one joins by implementing `IntentRouter`.

Each manages its own false positives, under its own predictor name, so that each is
calibrated by its own record. The union does not weigh them against each other: waiting
for agreement would cost the very time that is to be won.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, assert_never

from headstart.core.bets import PredictorName
from headstart.core.events import ResourceRegistered
from headstart.core.intent.candidates import (
    KEYWORD,
    KEYWORD_HINT,
    KEYWORD_REQUEST,
    KEYWORD_RESULTS,
    TOOL_NAME,
    Candidate,
    IntentRouter,
)
from headstart.core.intent.keyword import Crossing, Lexicon, Scan
from headstart.core.intent.names import ToolNames
from headstart.core.intent.profile import ServerProfile, profile_of
from headstart.core.stream import (
    GenerationEnded,
    GenerationStarted,
    ModelEvent,
    TextArrived,
    TextKind,
    ToolCallArgumentsArrived,
    ToolCallClosed,
    ToolCallOpened,
)
from headstart.ids import GenerationId, PrincipalId, ResourceId

__all__ = ["KeywordRouter", "ToolNameRouter", "Union", "default_router"]

_MOST_STREAMS: Final = 4_096
"""Generations followed at once; the oldest is dropped (its end was lost)."""
_MOST_PROFILES: Final = 1_024
_RESULTS_WEIGHT: Final = 0.5
"""Of a hit in tool results: they tell what was found, not what is wanted next."""
_MOST_RESULTS: Final = 4_096
"""Characters of tool results that are read, the newest: results are long and say little."""
_CERTAIN: Final = 0.99
_UNSURE_NAME: Final = 0.7


def default_router(*, gamma: float = 2.0) -> Union:
    """Return the routers that the service uses: tool names and keywords."""
    return Union((ToolNameRouter(), KeywordRouter(gamma=gamma)))


@dataclass(slots=True, kw_only=True)
class _Stream:
    """A generation being scanned."""

    started: GenerationStarted
    scan: Scan
    kind: TextKind | None = None


class KeywordRouter:
    """Names a server when γ distinct keywords of its own were seen in a generation.

    Args:
        gamma: γ. Lower is earlier and more often wrong.
    """

    def __init__(self, *, gamma: float = 2.0) -> None:
        self._gamma = gamma
        self._profiles: dict[PrincipalId, dict[ResourceId, ServerProfile]] = {}
        self._lexicons: dict[PrincipalId, Lexicon] = {}
        self._latest: tuple[tuple[ServerProfile, ...], Lexicon] | None = None
        self._read_profile = lru_cache(maxsize=_MOST_PROFILES)(profile_of)
        self._streams: dict[GenerationId, _Stream] = {}

    def register(self, event: ResourceRegistered) -> None:
        if not event.looked_for:
            return
        profiles = self._profiles.setdefault(event.principal, {})
        profile = self._read_profile(
            event.resource, tools=event.tools, description=event.description, keywords=event.keywords
        )
        if profiles.get(event.resource) != profile:
            profiles[event.resource] = profile
            self._lexicons.pop(event.principal, None)

    def observe(self, event: ModelEvent) -> tuple[Candidate, ...]:
        match event:
            case TextArrived():
                return self._read(event)
            case GenerationStarted():
                return self._begin(event)
            case ToolCallOpened() | ToolCallClosed():
                return self._pause(event.generation, event.at_s)
            case GenerationEnded():
                found = self._pause(event.generation, event.at_s)
                self._streams.pop(event.generation, None)
                return found
            case ToolCallArgumentsArrived():
                return ()
            case _:
                assert_never(event)

    def confirm(self, *, generation: GenerationId, resource: ResourceId) -> None:
        """Nothing to learn: keywords come from the servers' own texts."""

    def _begin(self, event: GenerationStarted) -> tuple[Candidate, ...]:
        stream = _Stream(started=event, scan=Scan(self._lexicon(event.principal), gamma=self._gamma))
        self._streams[event.generation] = stream
        if len(self._streams) > _MOST_STREAMS:
            del self._streams[next(iter(self._streams))]
        predictor, weight, text = KEYWORD_REQUEST, 1.0, event.text
        if event.answered_calls:
            predictor, weight, text = KEYWORD_RESULTS, _RESULTS_WEIGHT, event.text[-_MOST_RESULTS:]
        crossings = stream.scan.feed(text, weight=weight) + stream.scan.finish(weight=weight)
        return self._candidates(stream, crossings, predictor, event.at_s)

    def _read(self, event: TextArrived) -> tuple[Candidate, ...]:
        stream = self._streams.get(event.generation)
        if stream is None:
            return ()
        found = () if stream.kind in (event.kind, None) else self._pause(event.generation, event.at_s)
        stream.kind = event.kind
        return found + self._candidates(stream, stream.scan.feed(event.text), KEYWORD, event.at_s)

    def _pause(self, generation: GenerationId, at_s: float) -> tuple[Candidate, ...]:
        """The text is over for now, so its last word is whole."""
        stream = self._streams.get(generation)
        return () if stream is None else self._candidates(stream, stream.scan.finish(), KEYWORD, at_s)

    def _candidates(
        self, stream: _Stream, crossings: Sequence[Crossing], predictor: PredictorName, at_s: float
    ) -> tuple[Candidate, ...]:
        started = stream.started
        return tuple(
            Candidate(
                at_s=at_s,
                generation=started.generation,
                principal=started.principal,
                session=started.session,
                resource=crossing.resource,
                predictor=KEYWORD_HINT if crossing.hint else predictor,
                probability=crossing.score / (crossing.score + self._gamma),
                evidence=crossing.evidence,
            )
            for crossing in crossings
            if not (crossing.hint and predictor == KEYWORD_RESULTS)
        )

    def _lexicon(self, principal: PrincipalId) -> Lexicon:
        lexicon = self._lexicons.get(principal)
        if lexicon is None:
            lexicon = self._lexicons[principal] = self._build(tuple(self._profiles.get(principal, {}).values()))
        return lexicon

    def _build(self, profiles: tuple[ServerProfile, ...]) -> Lexicon:
        """Build a lexicon, or share the one built last: principals mostly have the same servers."""
        if self._latest is None or self._latest[0] != profiles:
            self._latest = profiles, Lexicon(profiles)
        return self._latest[1]


class ToolNameRouter:
    """Names a server when the model has written a tool call's name."""

    def __init__(self) -> None:
        self._tools: dict[PrincipalId, dict[ResourceId, tuple[str, ...]]] = {}
        self._names: dict[PrincipalId, ToolNames] = {}
        self._streams: dict[GenerationId, GenerationStarted] = {}
        self._told: dict[GenerationId, set[int]] = {}

    def register(self, event: ResourceRegistered) -> None:
        tools = self._tools.setdefault(event.principal, {})
        names = tuple(tool.name for tool in event.tools)
        if tools.get(event.resource) != names:
            tools[event.resource] = names
            self._names.pop(event.principal, None)

    def names(self, principal: PrincipalId) -> ToolNames:
        """Return the table of a principal's tool names (also for joining calls to streams)."""
        names = self._names.get(principal)
        if names is None:
            names = self._names[principal] = ToolNames(self._tools.get(principal, {}))
        return names

    def observe(self, event: ModelEvent) -> tuple[Candidate, ...]:
        match event:
            case GenerationStarted():
                self._streams[event.generation] = event
                if len(self._streams) > _MOST_STREAMS:
                    self._drop(next(iter(self._streams)))
                return ()
            case ToolCallOpened() | ToolCallClosed():
                return self._resolve(event)
            case GenerationEnded():
                self._drop(event.generation)
                return ()
            case TextArrived() | ToolCallArgumentsArrived():
                return ()
            case _:
                assert_never(event)

    def confirm(self, *, generation: GenerationId, resource: ResourceId) -> None:
        """Nothing to learn: a name means what it means."""

    def _resolve(self, event: ToolCallOpened | ToolCallClosed) -> tuple[Candidate, ...]:
        started = self._streams.get(event.generation)
        told = self._told.setdefault(event.generation, set()) if started else set[int]()
        if started is None or event.index in told:
            return ()
        told.add(event.index)
        found = self.names(started.principal).resolve(event.tool, offered=started.offered_tools)
        if found is None:
            return ()
        return (
            Candidate(
                at_s=event.at_s,
                generation=event.generation,
                principal=started.principal,
                session=started.session,
                resource=found.resource,
                predictor=TOOL_NAME,
                probability=_CERTAIN if found.certain else _UNSURE_NAME,
                certain=found.certain,
                tool=found.tool,
                evidence=(event.tool,),
            ),
        )

    def _drop(self, generation: GenerationId) -> None:
        self._streams.pop(generation, None)
        self._told.pop(generation, None)


class Union:
    """Several routers side by side; for each server the first credible signal counts.

    Of what follows for the same generation and server only what is worth more gets
    through: a higher probability of the same router, or certainty. So every candidate
    that comes out is news.

    Args:
        routers: Asked in this order; of several that fire on one event the first counts.
    """

    def __init__(self, routers: Sequence[IntentRouter]) -> None:
        self._routers = tuple(routers)
        self._best: dict[GenerationId, dict[ResourceId, Candidate]] = {}

    def register(self, event: ResourceRegistered) -> None:
        for router in self._routers:
            router.register(event)

    def observe(self, event: ModelEvent) -> tuple[Candidate, ...]:
        found = tuple(candidate for router in self._routers for candidate in router.observe(event))
        news = tuple(candidate for candidate in found if self._is_news(candidate)) if found else ()
        if isinstance(event, GenerationEnded):
            self._best.pop(event.generation, None)
        return news

    def confirm(self, *, generation: GenerationId, resource: ResourceId) -> None:
        for router in self._routers:
            router.confirm(generation=generation, resource=resource)

    def _is_news(self, candidate: Candidate) -> bool:
        best = self._best.setdefault(candidate.generation, {})
        if len(self._best) > _MOST_STREAMS:
            del self._best[next(iter(self._best))]
        before = best.get(candidate.resource)
        if before is not None and not _outdoes(candidate, before):
            return False
        best[candidate.resource] = candidate
        return True


def _outdoes(candidate: Candidate, before: Candidate) -> bool:
    if candidate.certain or before.certain:
        return candidate.certain and not before.certain
    return candidate.probability > before.probability
