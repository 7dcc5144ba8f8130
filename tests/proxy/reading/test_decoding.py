import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.proxy.reading.decoding import CannotDecode, decoder_for

TEXT = b"data: hello\n\n" * 50


def decode(encoding: bytes, data: bytes, *, step: int = 7, max_bytes: int = 10_000) -> bytes:
    decoder = decoder_for(encoding, max_bytes=max_bytes)
    return b"".join(decoder.decode(data[place : place + step]) for place in range(0, len(data), step))


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        (b"", TEXT),
        (b"identity", TEXT),
        (b"gzip", gzip.compress(TEXT)),
        (b" GZip", gzip.compress(TEXT)),
        (b"gzip", gzip.compress(TEXT[:100]) + gzip.compress(TEXT[100:])),
        (b"deflate", zlib.compress(TEXT)),
        (b"deflate", raw_deflate(TEXT)),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_codings_are_undone_in_chunks_of_any_size(encoding: bytes, data: bytes, step: int) -> None:
    assert decode(encoding, data, step=step) == TEXT


@given(pieces=st.lists(st.binary(max_size=50), max_size=10))
def test_each_flushed_piece_is_readable_at_once(pieces: list[bytes]) -> None:
    encoder, decoder = zlib.compressobj(wbits=31), decoder_for(b"gzip", max_bytes=10_000)
    for piece in pieces:
        assert decoder.decode(encoder.compress(piece) + encoder.flush(zlib.Z_SYNC_FLUSH)) == piece


def test_a_bomb_is_not_inflated() -> None:
    with pytest.raises(CannotDecode, match="more than is read"):
        decode(b"gzip", gzip.compress(bytes(1_000_000)), step=10_000)


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, br"])
def test_other_codings_are_named_as_unread(encoding: bytes) -> None:
    with pytest.raises(CannotDecode, match="is not read"):
        decoder_for(encoding, max_bytes=1)


def test_bytes_that_are_no_gzip_cannot_be_decoded() -> None:
    with pytest.raises(CannotDecode):
        decode(b"gzip", TEXT)
