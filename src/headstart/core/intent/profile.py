"""From what a server tells about its tools to the words that point to it.

Three sources are read, by how much a word from each says: names of the server and its
tools, names of arguments, descriptions. Words that say nothing about *which* tool
(articles, `get`, `list`, `value`, `optional`) are dropped by a fixed list, because with a
dozen servers rarity alone cannot tell `currently` from `spreadsheet`: both occur once.

*Share.* A word that several servers have belongs to each by how densely each uses it
(mentions per tool). `pdf` in the one tool of a PDF reader and in one of an editor's 54
tools is the reader's word. Between n servers that use it alike every share is 1/n.

*Weight.* `source · √share`: 1 or a little more for a word that is the server's own, half
of it for everyday words, half as much again for words that run through all of a server's
tools (`worksheet`). One hit weighs less than two, so one word alone never reaches γ = 2,
and two of a server's own words do. A keyword is *specific* if more than half of it is the
server's; the matcher asks for a specific one among the hits, so shared words alone never
make a candidate, however many there are. The operator's own keywords are always specific.

A server keeps its `MOST_KEYWORDS` best, so that one with 171 tools cannot flood the
automaton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from headstart.core.events import ToolProfile
from headstart.core.intent.stopwords import COMMON_WORDS, STOP_WORDS
from headstart.core.intent.words import normal, singular
from headstart.ids import ResourceId

__all__ = ["LONGEST_KEYWORD", "MOST_KEYWORDS", "Keyword", "ServerProfile", "Word", "keywords_of", "profile_of"]

MOST_KEYWORDS = 128
LONGEST_KEYWORD = 48
"""Characters in normal form; longer ones (whole sentences as tool names) are not looked for."""

_NAME_WEIGHT = 1.25
_ARGUMENT_WEIGHT = 1.1
_DESCRIPTION_WEIGHT = 1.0
_COMMON_FACTOR = 0.5
_CENTRAL_FACTOR = 1.5
_CENTRAL_SHARE = 1 / 4
"""Of a server's tools that must mention a word for it to run through them all."""
_OFTEN = 3
"""Tools that must mention a word for it to weigh as a name does."""
_SMOOTHING_TOOLS = 3
"""Added to a server's tools when density is taken: one mention in one tool is no habit yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word or tool-name phrase as one server uses it.

    Attributes:
        weight: By source and use, before it is compared with other servers.
        density: Mentions per tool, smoothed.
        name: It comes from a name, so that it may be a verb ("commit", "merge").
    """

    text: str
    weight: float
    density: float
    name: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProfile:
    """A server's words, and the operator's own keywords in normal form."""

    resource: ResourceId
    words: tuple[Word, ...]
    operator: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyword:
    """A word or phrase that points to a server.

    Attributes:
        text: In normal form.
        weight: Of one hit, in (0, 2).
        specific: More than half of it is this server's.
        name: It comes from a name.
    """

    text: str
    weight: float
    specific: bool
    name: bool = False


def profile_of(
    resource: ResourceId, *, tools: Sequence[ToolProfile], description: str = "", keywords: Iterable[str] = ()
) -> ServerProfile:
    """Read a server's words from what it and the operator say about it."""
    weights: dict[str, float] = {}
    mentions: Counter[str] = Counter()
    _mention(_words(resource), _NAME_WEIGHT, weights)
    _mention(_words(description), _DESCRIPTION_WEIGHT, weights)
    for tool in tools:
        words = (
            _mention(_words(tool.name), _NAME_WEIGHT, weights)
            | _mention(_phrases(tool.name), _NAME_WEIGHT, weights)
            | _mention(_words(" ".join(tool.argument_names)), _ARGUMENT_WEIGHT, weights)
            | _mention(_words(tool.description), _DESCRIPTION_WEIGHT, weights)
        )
        mentions.update(words)
    words = (_word(text, weight, mentions[text], len(tools)) for text, weight in sorted(weights.items()))
    operator = {phrase for text in keywords if 0 < len(phrase := normal(text)) <= LONGEST_KEYWORD}
    return ServerProfile(resource=resource, words=tuple(words), operator=tuple(sorted(operator)))


def keywords_of(profiles: Sequence[ServerProfile]) -> dict[ResourceId, tuple[Keyword, ...]]:
    """Compare servers' words with each other and keep each server's best."""
    densities: dict[str, float] = {}
    for profile in profiles:
        for word in profile.words:
            densities[word.text] = densities.get(word.text, 0.0) + word.density
    return {profile.resource: _best(profile, densities) for profile in profiles}


def _mention(words: Iterable[str], weight: float, weights: dict[str, float]) -> set[str]:
    mentioned = set(words)
    for word in mentioned:
        weights[word] = max(weight, weights.get(word, 0.0))
    return mentioned


def _word(text: str, weight: float, mentions: int, tools: int) -> Word:
    used = _NAME_WEIGHT if mentions >= _OFTEN else weight
    if text in COMMON_WORDS:
        used *= _COMMON_FACTOR
    if (mentions >= 2 or (tools == 1 and weight == _NAME_WEIGHT)) and mentions >= tools * _CENTRAL_SHARE:
        used *= _CENTRAL_FACTOR
    density = max(1, mentions) / (tools + _SMOOTHING_TOOLS)
    return Word(text=text, weight=used, density=density, name=weight == _NAME_WEIGHT)


def _best(profile: ServerProfile, densities: Mapping[str, float]) -> tuple[Keyword, ...]:
    own = [Keyword(text=text, weight=_NAME_WEIGHT, specific=True) for text in profile.operator]
    found = [_keyword(word, word.density / densities[word.text]) for word in profile.words]
    found.sort(key=lambda keyword: (-keyword.weight, keyword.text))
    kept = [keyword for keyword in found if keyword.text not in profile.operator]
    return tuple((own + kept)[:MOST_KEYWORDS])


def _keyword(word: Word, share: float) -> Keyword:
    return Keyword(text=word.text, weight=word.weight * sqrt(share), specific=share > 0.5, name=word.name)


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


def _phrases(name: str) -> list[str]:
    """Return a tool's name as a phrase, and without the generic words that it begins with."""
    words = normal(name).split()
    whole = " ".join(words)
    while words and words[0] in STOP_WORDS:
        words.pop(0)
    return [phrase for phrase in {whole, " ".join(words)} if " " in phrase and len(phrase) <= LONGEST_KEYWORD]
