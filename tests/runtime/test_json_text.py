"""JSON goes through with its values, whichever writer and reader took it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.runtime.json_text import decode, encode, encode_ascii

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(values)
def test_what_is_written_is_read_back_the_same_here_and_elsewhere(value: object) -> None:
    written = encode(value)
    assert b"\n" not in written
    for read in (decode(written), json.loads(written)):
        assert read == value
        assert json.dumps(read) == json.dumps(value)  # and in the same order, with the same types of number


@pytest.mark.parametrize("text", [b'"\\ud800"', b"[" * 500 + b"]" * 500, b"123456789012345678901234567890"])
def test_odd_but_valid_json_survives(text: bytes) -> None:
    assert encode(decode(text)) == text


@pytest.mark.parametrize("text", [b"", b"{", b"[1,]", b'"\xff"', b"01", b"[" * 200_000, b"NaN", b"[1,-Infinity]"])
def test_what_is_not_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  any wording is fine
        decode(text)


@pytest.mark.parametrize("depth", range(100, 1_000, 50))
def test_what_could_be_read_can_be_written_from_deeper_down(depth: int) -> None:
    def deeper(frames: int, value: object) -> bytes:
        return encode({"result": value}) if frames == 0 else deeper(frames - 1, value)

    text = b'{"a":' * depth + b"1" + b"}" * depth
    try:
        value = decode(text)
    except ValueError:
        assert depth > 500, "no result that deep is refused"
    else:
        assert deeper(200, value) == b'{"result":%b}' % text


@pytest.mark.parametrize("text", ["é", "\ud800"])
def test_a_number_that_no_float_holds_is_written_as_null(text: str) -> None:
    value = [text, decode(b"1e999")]
    assert json.loads(encode(value)) == json.loads(encode_ascii(value)) == [text, None]


@given(values)
def test_a_line_is_one_line_for_every_reader_whatever_is_in_it(value: object) -> None:
    written = encode_ascii(value)
    assert len(written.decode("ascii").splitlines()) == 1
    assert json.dumps(decode(written)) == json.dumps(value)


def test_what_some_readers_take_for_a_line_end_is_escaped() -> None:
    assert encode_ascii({"a": "\u2028\x85"}) == b'{"a":"\\u2028\\u0085"}'
