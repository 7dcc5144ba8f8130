"""Finding one's way in a text that may be large and whose author may be hostile.

Nothing here takes longer, or more memory, because the text is all line feeds or all matches: what is
counted is counted by `str.count`, and only what will be shown is looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["MOST_PLACES", "Places", "line_count", "places_of", "start_of_line"]

MOST_PLACES: Final = 10
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where a piece of a text is.

    Attributes:
        count: How often, without overlaps.
        lines: The lines in which the first `MOST_PLACES` of them begin, from 1.
    """

    count: int
    lines: tuple[int, ...]


def line_count(text: str) -> int:
    r"""Return the number of lines; only a line feed ends one, as editors count.

    >>> line_count(""), line_count("a"), line_count("a\n"), line_count("a\n\nb")
    (0, 1, 1, 3)
    """
    return text.count("\n") + (text != "" and not text.endswith("\n"))


def start_of_line(text: str, number: int) -> int:
    r"""Return where a line begins that there is.

    >>> start_of_line("a\nbc\nd", 1), start_of_line("a\nbc\nd", 3)
    (0, 5)
    """
    at, missing = 0, number - 1
    while at < len(text) and (inside := text.count("\n", at, at + _PIECE)) < missing:
        missing -= inside
        at += _PIECE
    for _ in range(missing):
        at = text.index("\n", at) + 1
    return at


def places_of(text: str, piece: str) -> Places:
    r"""Return where a piece is, which is not empty.

    >>> places_of("a b\nb", "b")
    Places(count=2, lines=(1, 2))
    """
    lines: list[int] = []
    line, seen = 1, 0
    at = text.find(piece)
    while at >= 0 and len(lines) < MOST_PLACES:
        line += text.count("\n", seen, at)
        lines.append(line)
        seen, at = at, text.find(piece, at + len(piece))
    return Places(count=text.count(piece), lines=tuple(lines))
