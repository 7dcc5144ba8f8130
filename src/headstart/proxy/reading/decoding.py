"""Undoing content codings on the copy, incrementally and bounded."""

from __future__ import annotations

import zlib
from typing import Any, Protocol, cast

import brotli as _untyped_brotli  # pyright: ignore[reportMissingTypeStubs]  it has none
import zstandard

__all__ = ["CannotDecode", "Decoder", "decoder_for"]


class CannotDecode(ValueError):
    """The coding is unknown here, the bytes do not follow it, or they grow without end."""


_brotli = cast("Any", _untyped_brotli)
_PIECE_BYTES = 64 * 1024
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""What RFC 9659 allows a sender of `Content-Encoding: zstd`."""


class Decoder(Protocol):
    """Turns encoded chunks into plain ones."""

    def decode(self, chunk: bytes) -> bytes:
        """Return what `chunk` adds.

        Raises:
            CannotDecode: It cannot be read.
        """
        ...


def decoder_for(content_encoding: bytes, *, max_bytes: int) -> Decoder:
    """Return a decoder for a `Content-Encoding` value (b"" for none).

    Args:
        content_encoding: The field's value.
        max_bytes: How much plain text may come out in all (a bomb stops here).

    Raises:
        CannotDecode: Not identity, gzip, deflate, br or zstd.
    """
    match content_encoding.strip().lower():
        case b"" | b"identity":
            return _Identity()
        case b"gzip" | b"x-gzip":
            return _Inflate(zlib.MAX_WBITS | 16, max_bytes)
        case b"deflate":
            return _Inflate(None, max_bytes)
        case b"br":
            return _Brotli(max_bytes)
        case b"zstd":
            return _Zstandard(max_bytes)
        case other:
            raise CannotDecode(f"content-encoding {other.decode('latin-1')!r} is not read")


class _Identity:
    def decode(self, chunk: bytes) -> bytes:
        return chunk


class _Inflate:
    """gzip (several members may follow one another), or deflate with and without its zlib header."""

    def __init__(self, wbits: int | None, max_bytes: int) -> None:
        self._wbits = wbits
        self._left_bytes = max_bytes
        self._stream = zlib.decompressobj(wbits) if wbits is not None else None

    def decode(self, chunk: bytes) -> bytes:
        out: list[bytes] = []
        while chunk:
            out.append(self._inflate(chunk))
            assert self._stream is not None  # noqa: S101 - _inflate opened it
            chunk = self._stream.unused_data
            if self._stream.eof:
                self._stream = zlib.decompressobj(self._wbits or zlib.MAX_WBITS)
        return b"".join(out)

    def _inflate(self, chunk: bytes) -> bytes:
        if self._stream is None:
            # RFC 9110 §8.4.1.2: some senders leave out the zlib header (0x78 in practice).
            self._wbits = zlib.MAX_WBITS if chunk[0] & 0x0F == 8 else -zlib.MAX_WBITS
            self._stream = zlib.decompressobj(self._wbits)
        try:
            plain = self._stream.decompress(chunk, self._left_bytes + 1)
        except zlib.error as exc:
            raise CannotDecode(str(exc)) from exc
        self._left_bytes -= len(plain)
        if self._left_bytes < 0:
            raise CannotDecode("it decompresses to more than is read")
        return plain


class _Brotli:
    def __init__(self, max_bytes: int) -> None:
        self._plain = _Plain(max_bytes)
        self._stream = _brotli.Decompressor()

    def decode(self, chunk: bytes) -> bytes:
        try:
            piece = self._stream.process(chunk, output_buffer_limit=_PIECE_BYTES)
            while piece:
                self._plain.write(piece)
                piece = self._stream.process(b"", output_buffer_limit=_PIECE_BYTES)
        except _brotli.error as exc:
            raise CannotDecode(str(exc)) from exc
        return self._plain.take()


class _Zstandard:
    """zstd (several frames may follow one another)."""

    def __init__(self, max_bytes: int) -> None:
        self._plain = _Plain(max_bytes)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._stream = decompressor.stream_writer(cast("Any", self._plain), closefd=False)

    def decode(self, chunk: bytes) -> bytes:
        try:
            self._stream.write(chunk)
        except zstandard.ZstdError as exc:
            raise CannotDecode(str(exc)) from exc
        return self._plain.take()


class _Plain:
    """Takes plain text as it comes out, up to a bound in all."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._left_bytes -= len(piece)
        if self._left_bytes < 0:
            raise CannotDecode("it decompresses to more than is read")
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
