"""However a text is cut, the same keywords are found in the same order, each once."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.core.intent.keyword import Lexicon, Scan
from headstart.core.intent.profile import profile_of
from headstart.core.intent.words import Normaliser, normal
from headstart.ids import ResourceId

_KEYWORDS = {
    "a": ("pdf", "pivot table", "résumé", "straße", "天气", "sqlite3"),
    "b": ("table of contents", "file", "pdf file", "git log", "x1y2"),
    "c": ("log", "İzmir", "aé", "naïve bayes"),
}
_LEXICON = Lexicon([profile_of(ResourceId(n), tools=(), keywords=words) for n, words in _KEYWORDS.items()])

_bits = st.sampled_from(
    [word for words in _KEYWORDS.values() for word in words]
    + [
        "PDFFile",
        "gitLog",
        "GITLog",
        "x",
        "S",
        "ß",
        "é",
        "\u0301",
        "ﬁ",
        "İ",
        "天",
        "_",
        "-",
        " ",
        "\n",
        "9",
        "pdfs",
        "Ǆ",
        "ŉ",
    ]
)
_texts = st.one_of(
    st.lists(_bits, max_size=12).map("".join), st.lists(_bits, max_size=12).map(" ".join), st.text(max_size=40)
)


def _found(pieces: list[str]) -> list[tuple[str, float, tuple[str, ...]]]:
    scan = Scan(_LEXICON, gamma=1)
    last: dict[str, tuple[str, float, tuple[str, ...]]] = {}
    for crossing in [c for piece in pieces for c in scan.feed(piece)] + list(scan.finish()):
        last[crossing.resource] = (crossing.resource, crossing.score, crossing.evidence)
    return sorted(last.values())


def _cut(text: str, cuts: list[int]) -> list[str]:
    borders = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(borders)]


@given(text=_texts, cuts=st.lists(st.integers(0, 1_000), max_size=8))
@settings(max_examples=400)
def test_cutting_changes_nothing(text: str, cuts: list[int]) -> None:
    assert _found(_cut(text, cuts)) == _found([text])


@given(text=_texts)
@settings(max_examples=200)
def test_one_character_at_a_time_finds_the_same(text: str) -> None:
    assert _found(list(text)) == _found([text])


@given(text=_texts, cuts=st.lists(st.integers(0, 1_000), max_size=8))
def test_the_normal_form_does_not_depend_on_the_cuts(text: str, cuts: list[int]) -> None:
    pieces = Normaliser()
    assert ("".join(map(pieces.feed, _cut(text, cuts))) + pieces.finish()).strip() == normal(text)


@given(text=_texts)
def test_what_is_found_is_there_as_whole_words(text: str) -> None:
    """The model: the automaton against plain search for each keyword and its plural in the normal text."""
    padded = f" {normal(text)} "
    there = {
        resource
        for resource, words in _KEYWORDS.items()
        for word in words
        if f" {normal(word)} " in padded or f" {normal(word)}s " in padded
    }
    assert there <= {resource for resource, _, _ in _found([text])}


@given(
    keyword=st.text(st.characters(categories=["L"]), min_size=3, max_size=12),
    cuts=st.lists(st.integers(0, 99), max_size=3),
)
def test_any_keyword_is_found_in_a_text_that_holds_it(keyword: str, cuts: list[int]) -> None:
    lexicon = Lexicon([profile_of(ResourceId("a"), tools=(), keywords=(keyword,))])
    scan = Scan(lexicon, gamma=1)
    crossings = [c for piece in _cut(f"so {keyword} it is", cuts) for c in scan.feed(piece)] + list(scan.finish())
    assert bool(crossings) == bool(normal(keyword))
