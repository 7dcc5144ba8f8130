"""From what a server tells about its tools to the words that point to it.

A word points to a server if few others have it. Three sources are read, by how much a
word from each says: names of the server and its tools, names of arguments, descriptions.
Words that say nothing about *which* tool (articles, `get`, `list`, `value`, `optional`)
are dropped by a fixed list, because with a dozen servers rarity alone cannot tell
`currently` from `spreadsheet`: both occur once.

The weight of a keyword is its source's, divided by the root of the number of servers
that share it. A keyword is *specific* if hardly anybody shares it; the matcher asks for a
specific one among the hits, so shared words alone never make a candidate, however many
there are. The operator's own keywords are always specific and weigh full.

A server keeps its `MOST_KEYWORDS` best, so that one with 171 tools cannot flood the
automaton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headstart.core.events import ResourceRegistered
from headstart.core.intent.stopwords import STOP_WORDS
from headstart.core.intent.words import normal, singular
from headstart.ids import ResourceId

__all__ = ["LONGEST_KEYWORD", "MOST_KEYWORDS", "Keyword", "ServerProfile", "keywords_of", "profile_of"]

MOST_KEYWORDS = 96
LONGEST_KEYWORD = 48
"""Characters in normal form; longer ones (whole sentences as tool names) are not looked for."""

_NAME_WEIGHT = 1.0
_ARGUMENT_WEIGHT = 0.7
_DESCRIPTION_WEIGHT = 0.6
_OFTEN = 3
"""Tools that must mention a word in their descriptions for it to weigh as an argument name does."""
_SHARED_SHARE = 1 / 32
"""A keyword that more than this share of all servers has (and more than one) is not specific."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """A server's words by source, before they are compared with other servers'.

    Attributes:
        words: Word or tool-name phrase → (source weight, mentions), as sorted items.
        operator: The operator's own keywords, normalised.
    """

    resource: ResourceId
    words: tuple[tuple[str, float, int], ...]
    operator: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """A word or phrase that points to a server.

    Attributes:
        text: In normal form.
        weight: Of one hit, in (0, 1].
        specific: Hardly any other server has it.
        name: It comes from a name, so that it may be a verb ("commit", "merge").
    """

    text: str
    weight: float
    specific: bool
    name: bool


def profile_of(event: ResourceRegistered) -> ServerProfile:
    """Read a server's words from its registration."""
    weights: dict[str, float] = {}
    mentions: Counter[str] = Counter()

    def mention(words: Iterable[str], weight: float) -> None:
        for word in set(words):
            weights[word] = max(weight, weights.get(word, 0.0))
            mentions[word] += 1

    mention(_words(event.resource), _NAME_WEIGHT)
    mention(_words(event.description), _DESCRIPTION_WEIGHT)
    for tool in event.tools:
        mention(_words(tool.name), _NAME_WEIGHT)
        mention(_phrase(tool.name), _NAME_WEIGHT)
        mention(_words(" ".join(tool.argument_names)), _ARGUMENT_WEIGHT)
        mention(_words(tool.description), _DESCRIPTION_WEIGHT)
    operator = {phrase for text in event.keywords if 0 < len(phrase := normal(text)) <= LONGEST_KEYWORD}
    return ServerProfile(
        resource=event.resource,
        words=tuple(
            sorted((word, _salience(weight, mentions[word]), mentions[word]) for word, weight in weights.items())
        ),
        operator=tuple(sorted(operator)),
    )


def keywords_of(profiles: Sequence[ServerProfile]) -> dict[ResourceId, tuple[Keyword, ...]]:
    """Compare servers' words with each other and keep each server's best."""
    sharers = Counter(
        word for profile in profiles for word in {entry[0] for entry in profile.words} | {*profile.operator}
    )
    most = max(1, int(len(profiles) * _SHARED_SHARE))
    return {profile.resource: _best(profile, sharers, most) for profile in profiles}


def _best(profile: ServerProfile, sharers: Counter[str], most: int) -> tuple[Keyword, ...]:
    own = [Keyword(text=text, weight=1.0, specific=True, name=False) for text in profile.operator]
    ranked = sorted(
        (
            (weight / sharers[word] ** 0.5, count, word, weight == _NAME_WEIGHT)
            for word, weight, count in profile.words
            if word not in profile.operator
        ),
        key=lambda entry: (-entry[0], -entry[1], entry[2]),
    )
    found = [
        Keyword(text=word, weight=weight, specific=sharers[word] <= most, name=name)
        for weight, _, word, name in ranked[: max(0, MOST_KEYWORDS - len(own))]
    ]
    return tuple(own[:MOST_KEYWORDS] + found)


def _salience(weight: float, mentions: int) -> float:
    return _ARGUMENT_WEIGHT if weight == _DESCRIPTION_WEIGHT and mentions >= _OFTEN else weight


def _words(text: str) -> list[str]:
    return [
        word
        for raw in normal(text).split()
        if _telling(raw) and _telling(word := singular(raw)) and len(word) <= LONGEST_KEYWORD
    ]


def _telling(word: str) -> bool:
    if word.isascii():
        return len(word) >= 3 and word.isalpha() and word not in STOP_WORDS
    return not word.isdigit()


def _phrase(name: str) -> list[str]:
    """Return a tool's name as a phrase, if it has several words."""
    phrase = normal(name)
    return [phrase] if " " in phrase and len(phrase) <= LONGEST_KEYWORD else []
