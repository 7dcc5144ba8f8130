import gzip
import zlib
from collections.abc import Callable
from typing import Any, cast

import brotli as untyped_brotli  # pyright: ignore[reportMissingTypeStubs]  it has none
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headstart.proxy.reading.decoding import CannotDecode, decoder_for

brotli = cast("Any", untyped_brotli)
TEXT = b"data: hello\n\n" * 50
COMPRESSORS = pytest.mark.parametrize(
    ("encoding", "compress"), [(b"gzip", gzip.compress), (b"br", brotli.compress), (b"zstd", zstandard.compress)]
)


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
        (b"br", brotli.compress(TEXT)),
        (b"zstd", zstandard.compress(TEXT)),
        (b"zstd", zstandard.compress(TEXT[:100]) + zstandard.compress(TEXT[100:])),
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


@given(pieces=st.lists(st.binary(min_size=1, max_size=50), max_size=10))
def test_each_flushed_piece_of_the_newer_codings_is_readable_at_once(pieces: list[bytes]) -> None:
    br, zstd = brotli.Compressor(), zstandard.ZstdCompressor().compressobj()
    from_br, from_zstd = (decoder_for(name, max_bytes=10_000) for name in (b"br", b"zstd"))
    for piece in pieces:
        assert from_br.decode(br.process(piece) + br.flush()) == piece
        assert from_zstd.decode(zstd.compress(piece) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)) == piece


@COMPRESSORS
def test_a_bomb_is_not_inflated(encoding: bytes, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(CannotDecode, match="more than is read"):
        decode(encoding, compress(bytes(10_000_000)), step=10_000)


@COMPRESSORS
def test_a_chunk_that_inflates_to_too_much_at_once_is_not_read(
    encoding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    decoder = decoder_for(encoding, max_bytes=10_000_000, at_once_bytes=100_000)
    with pytest.raises(CannotDecode, match="more than is read"):
        decoder.decode(compress(bytes(5_000_000)))


@COMPRESSORS
def test_much_is_read_if_it_comes_little_by_little(encoding: bytes, compress: Callable[[bytes], bytes]) -> None:
    decoder = decoder_for(encoding, max_bytes=10_000_000, at_once_bytes=256 * 1024)
    plain = b"".join(b"%d " % number for number in range(100_000))
    packed = compress(plain)
    pieces = (packed[start : start + 1_000] for start in range(0, len(packed), 1_000))
    assert b"".join(map(decoder.decode, pieces)) == plain


@COMPRESSORS
def test_all_of_what_a_few_bytes_inflate_to_is_read(encoding: bytes, compress: Callable[[bytes], bytes]) -> None:
    assert decode(encoding, compress(bytes(5_000_000)), step=10_000, max_bytes=5_000_000) == bytes(5_000_000)


@pytest.mark.parametrize("encoding", [b"compress", b"dcb", b"gzip, br"])
def test_other_codings_are_named_as_unread(encoding: bytes) -> None:
    with pytest.raises(CannotDecode, match="is not read"):
        decoder_for(encoding, max_bytes=1)


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"zstd"])
def test_bytes_that_do_not_follow_their_coding_cannot_be_decoded(encoding: bytes) -> None:
    with pytest.raises(CannotDecode):
        decode(encoding, TEXT)
