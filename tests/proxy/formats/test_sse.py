from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.proxy.formats.sse import SseEvent, SseParser, SseTooLong


def read(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def data(*chunks: bytes) -> list[bytes]:
    return [event.data for event in read(*chunks)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", [b"one", b"two"]),
        (b"data: one\r\rdata: two\r\r", [b"one", b"two"]),
        (b"data: one\r\ndata: two\n\n", [b"one\ntwo"]),
        (b"\xef\xbb\xbfdata: one\n\n", [b"one"]),
        (b"data: \xef\xbb\xbf\n\n", [b"\xef\xbb\xbf"]),
        (b": a comment\n\ndata: one\n: another\n\n", [b"one"]),
        (b"data:one\n\n", [b"one"]),
        (b"data:  one\n\n", [b" one"]),
        (b"data\n\n", [b""]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"event: x\n\ndata: one\n\n", [b"one"]),
        (b"id: 7\nretry: 10\nunknown: y\ndata: one\n\n", [b"one"]),
        (b"data: never ended\n", []),
        (b"data : one\n\n", []),
    ],
)
def test_events_are_read_as_the_specification_says(stream: bytes, expected: list[bytes]) -> None:
    assert data(stream) == expected


def test_an_event_carries_its_type_and_the_next_one_does_not() -> None:
    assert read(b"event: ping\ndata: {}\n\ndata: 2\n\n") == [SseEvent(b"ping", b"{}"), SseEvent(b"", b"2")]


def test_an_event_that_never_ends_is_too_long() -> None:
    parser = SseParser(max_event_bytes=135)
    for _ in range(2):
        parser.feed(b"data: x\n")
    with pytest.raises(SseTooLong):
        parser.feed(b"data: x\n")


def test_a_lines_worth_of_memory_counts_even_if_it_is_empty() -> None:
    parser = SseParser(max_event_bytes=50_000)
    parser.feed(b"data:\n" * 1_000)
    with pytest.raises(SseTooLong):
        parser.feed(b"data:\n")


LINES = st.lists(
    st.sampled_from(
        [
            b"data: one",
            "data: zwölf €".encode(),
            b"data:",
            b": hm",
            b"event: e",
            b"",
            b"junk",
            b"data: \xf0",
            b"\xef\xbb\xbfdata: x",
        ]
    ),
    max_size=12,
)
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@given(lines=LINES, end=ENDS, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_where_the_chunks_are_cut_makes_no_difference(lines: list[bytes], end: bytes, cuts: list[int]) -> None:
    stream = b"".join(line + end for line in lines)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:stop] for start, stop in pairwise(places)]
    assert read(*chunks) == read(stream)
    assert read(*(stream[place : place + 1] for place in range(len(stream)))) == read(stream)
