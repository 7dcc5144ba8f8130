"""Reading a tar archive that a stranger may have made: hashed, decompressed, and no more of it than is allowed.

`tarfile` keeps in memory what tells about a member (a long name, attributes, where a sparse file has its
parts), decompressors what they look back at, and neither has a limit of its own. Here both have one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from headstart.errors import ConfigError

__all__ = [
    "BLOCK_BYTES",
    "CHUNK_BYTES",
    "HEADER_BYTES",
    "ArchiveLimits",
    "BoundedFile",
    "HashedFile",
    "decompressed",
    "digest_of",
    "told",
    "too_large",
]

CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 512
"""What a tar archive is made of."""

HEADER_BYTES = 1 << 20
"""What may tell about one member."""

_DICTIONARY_BYTES = 256 << 20
"""What a decompressor may ask for."""

_MAGIC: Final = {b"\x1f\x8b": "gz", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zst"}
_MALFORMED = (
    tarfile.TarError,
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    gzip.BadGzipFile,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
)
"""What reading malformed archives raises, as found by trying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """What unpacking may take."""

    size_bytes: int = 20_000_000_000
    files: int = 1_000_000


def digest_of(archive: Path, *, pulse: Callable[[], None]) -> str:
    """Return the SHA-256 of a file; `pulse` is called now and then, and may raise.

    Raises:
        ConfigError: It cannot be read.
    """
    digest = hashlib.sha256()
    with told(archive), archive.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            pulse()
    return digest.hexdigest()


@contextmanager
def told(archive: Path) -> Generator[None]:
    """Tell in one line what is wrong with an archive, or with where it is unpacked."""
    try:
        yield
    except _MALFORMED as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"cannot be read as a tar archive: {said[:200]}",
            where=str(archive),
            hint="give an archive of a root file system (.tar, .tar.gz, .tar.xz, .tar.zst), whole and undamaged",
        ) from error
    except MemoryError:
        raise ConfigError("takes too much memory to be read", where=str(archive), hint="compress it anew") from None
    except OSError as error:
        raise ConfigError(
            f"cannot be unpacked: {error.strerror or error}", where=str(archive), hint="correct that, and try again"
        ) from error


class HashedFile(io.RawIOBase):
    """A file of which all that is read is hashed."""

    def __init__(self, file: BinaryIO, pulse: Callable[[], None]) -> None:
        super().__init__()
        self._file = file
        self._pulse = pulse
        self._digest = hashlib.sha256()

    def digest(self) -> str:
        return self._digest.hexdigest()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._pulse()
        chunk = self._file.read(len(buffer))
        self._digest.update(chunk)
        buffer[: len(chunk)] = chunk
        return len(chunk)


class _Unxz(io.RawIOBase):
    """What is in an xz file. `lzma.LZMAFile` would take as much memory as the file says that it needs."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file = file
        self._stream = _new_xz_stream()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while True:
            given = self._given()
            if given is None:
                return 0
            chunk = self._stream.decompress(given, max_length=len(buffer))
            if chunk:
                buffer[: len(chunk)] = chunk
                return len(chunk)

    def _given(self) -> bytes | None:
        """Return what the decompressor needs next, None at the end; several streams may follow, with zeros between."""
        if not self._stream.eof:
            given = self._file.read(CHUNK_BYTES) if self._stream.needs_input else b""
            if self._stream.needs_input and not given:
                raise EOFError("it ends in the middle")
            return given
        rest = self._stream.unused_data.lstrip(b"\0")
        while not rest:
            read = self._file.read(CHUNK_BYTES)
            if not read:
                return None
            rest = read.lstrip(b"\0")
        self._stream = _new_xz_stream()
        return rest


def _new_xz_stream() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_DICTIONARY_BYTES)


@contextmanager
def decompressed(file: HashedFile) -> Generator[BinaryIO]:
    """Yield what is in a tar archive's file, whatever it is compressed with."""
    buffered = io.BufferedReader(file, CHUNK_BYTES)
    beginning = buffered.peek(8)
    kind = next((kind for magic, kind in _MAGIC.items() if beginning.startswith(magic)), "tar")
    try:
        match kind:
            case "gz":
                yield io.BufferedReader(gzip.GzipFile(fileobj=buffered), CHUNK_BYTES)
            case "xz":
                yield io.BufferedReader(_Unxz(buffered), CHUNK_BYTES)
            case "zst":
                zstd = zstandard.ZstdDecompressor(max_window_size=_DICTIONARY_BYTES)
                yield io.BufferedReader(
                    zstd.stream_reader(buffered, read_across_frames=True, closefd=False), CHUNK_BYTES
                )
            case _:
                yield buffered
    finally:
        with suppress(ValueError):
            buffered.detach()


class BoundedFile:
    """The archive, as `tarfile` wants it: seekable forward, and no longer than is allowed.

    Attributes:
        header_left: How much may be read now; None while a member's content is read, whose size is known.
        last_block: What was read last, if it was as long as a block of the archive.
    """

    def __init__(self, file: BinaryIO, archive: Path, limits: ArchiveLimits) -> None:
        self._file = file
        self._archive = archive
        self._position = 0
        self.limits = limits
        self.header_left: int | None = None
        self.last_block = b""

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, _whence: int = 0) -> int:
        if position < self._position:
            raise ValueError("its members overlap")
        while self._position < position:
            if not self._take(min(CHUNK_BYTES, position - self._position)):
                break
        return self._position

    def read(self, size: int = -1) -> bytes:
        if self.header_left is not None:
            if not 0 <= size <= self.header_left:
                raise ValueError(f"what tells about a member takes more than {HEADER_BYTES >> 20} MB")
            self.header_left -= size
        if not 0 <= size <= CHUNK_BYTES:
            raise ValueError("its members overlap")
        chunk = self._take(size)
        if size == BLOCK_BYTES:
            self.last_block = chunk
        return chunk

    def _take(self, size: int) -> bytes:
        chunk = self._file.read(size)
        self._position += len(chunk)
        if self._position > self.limits.size_bytes:
            raise too_large(self._archive, self.limits)
        return chunk


def too_large(archive: Path, limits: ArchiveLimits) -> ConfigError:
    """Tell that an archive takes more than is allowed."""
    return ConfigError(
        f"unpacks to more than {limits.size_bytes / 1e9:g} GB",
        where=str(archive),
        hint="take out of it what is not needed, or unpack it yourself and give the folder: --from FOLDER",
    )
