"""Text as keywords are compared in: lower-case words, one space between them.

The normal form drops case, accents, compatibility forms (full-width letters), punctuation
and how a name was joined: `git_log`, `git-log`, `gitLog`, `GITLog` and `Git log` are all
`git log`. Letters and digits part (`sqlite3`, `UTF-8`), and in scripts written without
spaces every character is a word. So a word border is always a space, and a matcher
finds whole words by looking for `" git log "`.

`Normaliser` does this for text that arrives in pieces. Its output depends on the text
only, never on where it was cut: every step looks at single characters and at most one
neighbour on each side, and what the next piece could still change is held back.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["Normaliser", "forms", "normal", "singular"]

_SPACELESS = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_LETTER = rf"[^\W\d_A-Z{_SPACELESS}]"  # but no ASCII capital
_WORD = re.compile(
    rf"[{_SPACELESS}]"
    rf"|[A-Z]+(?!{_LETTER})"  # PDF, also of PDFFile
    rf"|[A-Z]?{_LETTER}+"  # git and Log of gitLog
    r"|\d+"
)
_WORD_ASCII = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""The same for ASCII, a third faster; most text is."""
_PUNCTUATION = re.compile("[\u2000-\u206f]+")
"""Curly quotes, dashes, the ellipsis: no letter among them, and often all that keeps a text from being ASCII."""


class Normaliser:
    """Normalises a stream of text piece by piece.

    >>> pieces = Normaliser()
    >>> [pieces.feed("Read the PD"), pieces.feed("FFi"), pieces.feed("le_2"), pieces.finish()]
    ['read the p', 'df fi', 'le 2', ' ']
    """

    __slots__ = ("_before", "_held")

    def __init__(self) -> None:
        self._before: str = ""
        """The last character told, if it was in a word: the next may belong to it too."""
        self._held: str = ""
        """A capital that may begin a new word, depending on what follows."""

    def feed(self, piece: str) -> str:
        """Return the normal form of what is now certain; "" if that is nothing."""
        plain = piece if piece.isascii() else _simplify(piece)
        text = f"{self._before}{self._held}{plain}"
        words: list[str] = (_WORD_ASCII if text.isascii() else _WORD).findall(text)
        if not words:
            return ""
        told = " ".join(words)[len(self._before) :]
        if not text[-1].isalnum():
            self._before = self._held = ""
            return f"{told} ".casefold()
        if _is_undecided(text):
            self._before, self._held = text[-2], text[-1]
            return told[:-1].casefold()
        self._before, self._held = text[-1], ""
        return told.casefold()

    def finish(self) -> str:
        """Return what was held back and the border after it; the next piece starts a new word."""
        rest = f"{self._held} ".casefold() if self._before else ""
        self._before = self._held = ""
        return rest


def _is_undecided(text: str) -> bool:
    """Whether the next character may still put a border before the last one (`PD|F`, `PDF|File`)."""
    last = text[-2:]
    return len(last) == 2 and last.isascii() and last.isalpha() and last.isupper()


def _simplify(text: str) -> str:
    """Undo compatibility forms and drop accents, character by character."""
    text = _PUNCTUATION.sub(" ", text)
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join([char for char in decomposed if not unicodedata.combining(char)])


def normal(text: str) -> str:
    """Return the normal form of a whole text, without spaces around it.

    >>> normal("git_log"), normal("HTTPServer"), normal("Résumé (PDF)"), normal("天气")
    ('git log', 'http server', 'resume pdf', '天 气')
    """
    whole = Normaliser()
    return f"{whole.feed(text)}{whole.finish()}".strip()


def singular(word: str) -> str:
    """Return an English plural's singular, by its ending alone; other words as they are.

    >>> singular("workbooks"), singular("queries"), singular("boxes"), singular("status"), singular("analysis")
    ('workbook', 'query', 'box', 'status', 'analysis')
    """
    if len(word) <= 3 or word.endswith(("ss", "us", "is")) or not word.endswith("s"):
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    if word.endswith(("ches", "shes", "sses", "xes", "zzes")):
        return word[:-2]
    return word[:-1]


def forms(phrase: str, *, verb: bool = False) -> tuple[str, ...]:
    """Return a phrase with the inflected forms of its last word.

    >>> forms("query"), forms("commit", verb=True)
    (('query', 'queries'), ('commit', 'commits', 'committed', 'committing'))
    """
    if not (phrase.isascii() and phrase[-1:].isalpha()):
        return (phrase,)
    if phrase.endswith("y") and phrase[-2:-1] not in "aeiou":
        plural, stem = f"{phrase[:-1]}ies", f"{phrase[:-1]}i"
    elif phrase.endswith(("ch", "sh", "s", "x", "z")):
        plural, stem = f"{phrase}es", phrase
    else:
        plural, stem = f"{phrase}s", phrase
    if not verb:
        return (phrase, plural)
    if phrase.endswith("e"):
        return (phrase, plural, f"{phrase}d", f"{phrase[:-1]}ing")
    if re.search(r"(?<![aeiou])[aeiou][bdglmnprt]$", phrase):
        return (phrase, plural, f"{phrase}{phrase[-1]}ed", f"{phrase}{phrase[-1]}ing")
    return (phrase, plural, f"{stem}ed", f"{phrase}ing")
