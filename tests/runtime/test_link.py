"""Lines out of chunks, and the last words that are kept."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.runtime.link import MAX_MESSAGE_BYTES, LineCutter, MessageTooLong, Tail


@given(data=st.binary(max_size=200).map(lambda b: b.replace(b"a", b"\n")), cuts=st.lists(st.integers(0, 200)))
def test_lines_do_not_depend_on_how_the_stream_was_cut(data: bytes, cuts: list[int]) -> None:
    borders = sorted({0, len(data), *(cut for cut in cuts if cut <= len(data))})
    cutter = LineCutter(max_bytes=len(data) + 1)
    lines = [line for start, end in pairwise(borders) for line in cutter.cut(data[start:end])]
    assert [*lines, cutter.rest()] == data.split(b"\n")


def test_only_a_newline_ends_a_line() -> None:
    text = '{"a":"\u2028\x85\r"}'.encode()
    assert list(LineCutter(max_bytes=100).cut(text + b"\n")) == [text]


def test_a_long_line_costs_one_join() -> None:
    cutter = LineCutter(max_bytes=MAX_MESSAGE_BYTES)
    chunk = b"x" * 65_536
    for _ in range(1_600):
        assert list(cutter.cut(chunk)) == []
    assert sum(len(line) for line in cutter.cut(b"\n")) == 1_600 * 65_536


def test_a_line_without_end_is_given_up_at_the_limit() -> None:
    cutter = LineCutter(max_bytes=10)
    assert list(cutter.cut(b"123456")) == []
    with pytest.raises(MessageTooLong):
        list(cutter.cut(b"789012"))


def test_a_tail_keeps_the_last_lines_and_cuts_long_ones() -> None:
    tail = Tail(keep=2, width=5)
    for line in (b"one", b"   ", b"\xff\xfe", b"a very long line"):
        tail.add(line)
    assert tail.last() == ("\ufffd\ufffd", "a ver…")
    assert tail.lines == 3
