"""Finding one's way in a text: the same as going through it line by line, whoever wrote it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstart.sandbox.tools.text import MOST_PLACES, line_count, places_of, start_of_line

TEXTS = st.text(alphabet="ab\n\r", max_size=60).flatmap(
    lambda piece: st.sampled_from([1, 3, 5_000]).map(lambda times: piece * times)
)


def lines_of(text: str) -> list[str]:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


@given(TEXTS)
def test_lines_are_counted_and_begin_where_they_do(text: str) -> None:
    lines = lines_of(text)
    assert line_count(text) == len(lines)
    at = 0
    for number in range(1, len(lines) + 1):
        if number < 20 or number % 997 == 0 or number == len(lines):
            assert start_of_line(text, number) == at
        at += len(lines[number - 1])


@given(TEXTS, st.text(alphabet="ab\n\r", min_size=1, max_size=3))
def test_places_are_those_that_are_found_one_after_another(text: str, piece: str) -> None:
    found: list[int] = []
    at = text.find(piece)
    while at >= 0:
        if len(found) < MOST_PLACES:
            found.append(text.count("\n", 0, at) + 1)
        at = text.find(piece, at + len(piece))
    places = places_of(text, piece)
    assert places.lines == tuple(found)
    assert places.count == text.count(piece)
