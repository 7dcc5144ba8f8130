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


def decoder_for(content_encoding: bytes, *, max_bytes: int, at_once_bytes: int | None = None) -> Decoder:
    """Return a decoder for a `Content-Encoding` value (b"" for none).

    Args:
        content_encoding: The field's value.
        max_bytes: How much plain text may come out in all (a bomb stops here).
        at_once_bytes: How much of one chunk, where a chunk must not take long; None for no other bound.

    Raises:
        CannotDecode: Not identity, gzip, deflate, br or zstd.
    """
    allowed = _Allowance(max_bytes, at_once_bytes)
    match content_encoding.strip().lower():
        case b"" | b"identity":
            return _Identity()
        case b"gzip" | b"x-gzip":
            return _Inflate(zlib.MAX_WBITS | 16, allowed)
        case b"deflate":
            return _Inflate(None, allowed)
        case b"br":
            return _Brotli(allowed)
        case b"zstd":
            return _Zstandard(allowed)
        case other:
            raise CannotDecode(f"content-encoding {other.decode('latin-1')!r} is not read")


class _Allowance:
    """How much plain text may still come out: in all, and of the chunk at hand."""

    def __init__(self, max_bytes: int, at_once_bytes: int | None) -> None:
        self._in_all = max_bytes
        self._at_once = max_bytes if at_once_bytes is None else at_once_bytes
        self.left = 0

    def begin_chunk(self) -> None:
        self.left = min(self._in_all, self._at_once)

    def use(self, size: int) -> None:
        self._in_all -= size
        self.left -= size
        if self.left < 0:
            raise CannotDecode("it decompresses to more than is read")


class _Identity:
    def decode(self, chunk: bytes) -> bytes:
        return chunk


class _Inflate:
    """gzip (several members may follow one another), or deflate with and without its zlib header."""

    def __init__(self, wbits: int | None, allowed: _Allowance) -> None:
        self._wbits = wbits
        self._allowed = allowed
        self._stream = zlib.decompressobj(wbits) if wbits is not None else None

    def decode(self, chunk: bytes) -> bytes:
        self._allowed.begin_chunk()
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
            plain = self._stream.decompress(chunk, self._allowed.left + 1)
        except zlib.error as exc:
            raise CannotDecode(str(exc)) from exc
        self._allowed.use(len(plain))
        return plain


class _Brotli:
    def __init__(self, allowed: _Allowance) -> None:
        self._plain = _Plain(allowed)
        self._stream = _brotli.Decompressor()

    def decode(self, chunk: bytes) -> bytes:
        self._plain.begin_chunk()
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

    def __init__(self, allowed: _Allowance) -> None:
        self._plain = _Plain(allowed)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._stream = decompressor.stream_writer(cast("Any", self._plain), closefd=False)

    def decode(self, chunk: bytes) -> bytes:
        self._plain.begin_chunk()
        try:
            self._stream.write(chunk)
        except zstandard.ZstdError as exc:
            raise CannotDecode(str(exc)) from exc
        return self._plain.take()


class _Plain:
    """Takes plain text as it comes out, as far as is allowed."""

    def __init__(self, allowed: _Allowance) -> None:
        self.begin_chunk = allowed.begin_chunk
        self._allowed = allowed
        self._pieces: list[bytes] = []

    def write(self, piece: bytes) -> int:
        self._allowed.use(len(piece))
        self._pieces.append(piece)
        return len(piece)

    def take(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)
