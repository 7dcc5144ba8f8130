"""Keywords in streaming text: one Aho-Corasick automaton for all servers.

A `Lexicon` is built once for a set of servers and never changes. A `Scan` follows one
stream; it keeps the end of the text read so far, as long as the longest keyword could
still be cut by the end of a piece, and looks through that and the new piece together. A
keyword that lies across three pieces is found like one in a single piece, and a word at
the very end waits until the next piece shows that it is over.

Only *distinct* keywords count, so looking twice at the same few characters cannot count
a hit twice. What a server's hits weigh is added up; it becomes a candidate when the sum
reaches γ, and again whenever the sum reaches another γ. Hits that are not specific add
at most γ - 1/2 in total, so shared words alone never reach γ, whatever their number.

Cost per piece: normalising it, one call into the automaton over a few dozen characters,
and work only for keywords that were not seen before in this stream.

Rejected: a dictionary of words (no phrases, and as slow, for the automaton is native
code); one automaton per server (a hundred passes over the same text).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ahocorasick_rs import AhoCorasick

from headstart.core.intent.profile import Keyword, ServerProfile, keywords_of
from headstart.core.intent.stopwords import STOP_WORDS
from headstart.core.intent.words import Normaliser, forms
from headstart.ids import ResourceId

__all__ = ["Crossing", "Lexicon", "Scan"]

_MOST_SEEN = 1_024
"""Distinct keywords that one stream can hit; a text that hits more is a dictionary, not an intent."""
_HINT_SHARE = 0.8
"""Of γ, in words of a server's own, that is a hint."""
_MOST_EVIDENCE = 12
"""Keywords remembered per server and stream, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A server whose hits have reached γ, or another γ, or nearly the first.

    Attributes:
        score: What its distinct hits weigh together.
        evidence: The first of the keywords that were hit.
        hint: It is nearly γ only.
    """

    resource: ResourceId
    score: float
    evidence: tuple[str, ...]
    hint: bool = False


class Lexicon:
    """All servers' keywords, compiled. Immutable; building takes milliseconds per thousand keywords."""

    __slots__ = ("_automaton", "_meanings", "_of_pattern", "_tail_length", "_texts")

    def __init__(self, profiles: Sequence[ServerProfile]) -> None:
        chosen = keywords_of(profiles)
        verbs: dict[str, bool] = {}
        meanings: dict[str, list[tuple[ResourceId, Keyword]]] = {}
        for resource, keywords in chosen.items():
            for keyword in keywords:
                verbs[keyword.text] = verbs.get(keyword.text, False) or keyword.name
                meanings.setdefault(keyword.text, []).append((resource, keyword))
        self._texts = tuple(meanings)
        self._meanings = tuple(tuple(meanings[text]) for text in self._texts)
        patterns = _patterns(self._texts, verbs)
        self._of_pattern = tuple(patterns.values())
        self._tail_length = max((len(pattern) for pattern in patterns), default=1) - 1
        self._automaton = AhoCorasick(list(patterns)) if patterns else None

    def __len__(self) -> int:
        """How many distinct keywords there are."""
        return len(self._texts)

    def find(self, text: str) -> dict[int, None]:
        """Return the numbers of the keywords in a text, in order.

        The text is in normal form, with a space at either side of every word that is over.
        """
        if self._automaton is None:
            return {}
        matches = self._automaton.find_matches_as_indexes(text, overlapping=True)
        return {self._of_pattern[match[0]]: None for match in matches}

    def meaning(self, number: int) -> tuple[str, tuple[tuple[ResourceId, Keyword], ...]]:
        """Return a keyword's text and the servers it points to."""
        return self._texts[number], self._meanings[number]

    def tail(self, text: str) -> str:
        """Return the end of a text in which a keyword may have begun that is not over yet."""
        return text[-self._tail_length :] if self._tail_length else ""


def _patterns(texts: Sequence[str], verbs: Mapping[str, bool]) -> dict[str, int]:
    """Return every form of every keyword with the keyword's number; a keyword's own text beats another's form."""
    patterns = {f" {text} ": number for number, text in enumerate(texts)}
    for number, text in enumerate(texts):
        for form in forms(text, verb=verbs[text]):
            if form not in STOP_WORDS:  # the plural of "doe" is not a word about deer
                patterns.setdefault(f" {form} ", number)
    return patterns


@dataclass(slots=True, kw_only=True)
class _Score:
    specific: float = 0.0
    shared: float = 0.0
    crossed: int = 0
    hinted: bool = False
    evidence: list[str] = field(default_factory=list[str])


class Scan:
    """One stream being scanned: bounded by the lexicon, not by the text.

    Args:
        lexicon: The keywords; a stream keeps the lexicon that it began with.
        gamma: γ, the weight that makes a server a candidate.
    """

    __slots__ = ("_gamma", "_lexicon", "_pieces", "_scores", "_seen", "_tail")

    def __init__(self, lexicon: Lexicon, *, gamma: float) -> None:
        self._lexicon = lexicon
        self._gamma = gamma
        self._pieces = Normaliser()
        self._tail = " "
        self._seen: set[int] = set()
        self._scores: dict[ResourceId, _Score] = {}

    def feed(self, piece: str, *, weight: float = 1.0) -> tuple[Crossing, ...]:
        """Read the next piece; return the servers that it made candidates.

        `weight` scales new hits: text that only may express an intent counts for less.
        """
        return self._read(self._pieces.feed(piece), weight)

    def finish(self, *, weight: float = 1.0) -> tuple[Crossing, ...]:
        """Say that the text is over, so that its last word is whole; what comes next is another text."""
        crossings = self._read(self._pieces.finish(), weight)
        self._tail = " "
        return crossings

    def _read(self, text: str, weight: float) -> tuple[Crossing, ...]:
        if not text or len(self._seen) >= _MOST_SEEN:
            return ()
        text = self._tail + text
        self._tail = self._lexicon.tail(text)
        fresh = [number for number in self._lexicon.find(text) if number not in self._seen]
        return self._count(fresh, weight) if fresh else ()

    def _count(self, fresh: Sequence[int], weight: float) -> tuple[Crossing, ...]:
        self._seen.update(fresh)
        touched: dict[ResourceId, _Score] = {}
        for number in fresh:
            text, meanings = self._lexicon.meaning(number)
            for resource, keyword in meanings:
                score = touched[resource] = self._scores.setdefault(resource, _Score())
                if len(score.evidence) < _MOST_EVIDENCE:
                    score.evidence.append(text)
                if keyword.specific:
                    score.specific += weight * keyword.weight
                else:
                    score.shared += weight * keyword.weight
        return tuple(
            crossing for resource, score in touched.items() if (crossing := self._cross(resource, score)) is not None
        )

    def _cross(self, resource: ResourceId, score: _Score) -> Crossing | None:
        total = score.specific + min(score.shared, max(0.0, self._gamma - 0.5))
        multiples = int(total / self._gamma + 1e-9)
        hint = not multiples and not score.hinted and score.specific >= _HINT_SHARE * self._gamma
        if multiples <= score.crossed and not hint:
            return None
        score.crossed, score.hinted = multiples, True
        return Crossing(resource=resource, score=total, evidence=tuple(score.evidence), hint=hint)
