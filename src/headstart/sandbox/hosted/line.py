"""One end of a connection between a client and the service: numbered records, and descriptors beside them."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from headstart.backends.spawner.guest import syscalls
from headstart.backends.spawner.link import Link, Nonsense, PeerGone
from headstart.sandbox.hosted.messages import codec

__all__ = [
    "LARGEST_FILE_BYTES",
    "SOCKET_NAME",
    "Line",
    "Nonsense",
    "PeerGone",
    "Received",
    "Unreadable",
    "content_in",
    "in_memory",
    "near",
]

SOCKET_NAME = "sandboxes.sock"
"""In the state directory."""

LARGEST_FILE_BYTES = 1 << 30
"""What of a file is sent at once."""

_INLINE_BYTES = 96 * 1024
_LARGEST_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A record that came. Its descriptors are the reader's, who closes them."""

    number: int
    record: object
    descriptors: list[int]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record came that is none of ours: the other side may be of another version."""

    why: str


class Line:
    """Sends and receives; anyone may send, one task receives.

    Args:
        sock: A connected SOCK_SEQPACKET socket; it is owned from now on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._link = Link(sock)

    async def send(self, number: int, record: object, descriptors: Sequence[int] = ()) -> None:
        """Send a record, whole or not at all. What is too large for a message goes as a file in memory.

        Raises:
            PeerGone: The other side has closed, or does not read.
        """
        fields = codec.encode(record)
        message: dict[str, Any] = {"op": fields["e"], "number": number}
        text = json.dumps(fields).encode()
        if len(text) <= _INLINE_BYTES:
            await self._link.send({**message, "record": fields}, descriptors)
            return
        apart = await in_memory(text)
        try:
            await self._link.send(message, [apart, *descriptors])
        finally:
            os.close(apart)

    async def receive(self) -> Received:
        """Return what comes next.

        Raises:
            PeerGone: The other side has closed, or (`Nonsense`) says what means nothing.
        """
        message, descriptors = await self._link.receive_with()
        try:
            fields = message.get("record") or await _taken_apart(descriptors)
            return Received(number=int(message["number"]), record=_read(fields), descriptors=descriptors)
        except BaseException as error:
            for descriptor in descriptors:
                os.close(descriptor)
            if isinstance(error, (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, OSError)):
                raise Nonsense(f"what came is no message: {error}") from error
            raise

    def close(self) -> None:
        """Close; whoever receives gets `PeerGone`. Idempotent."""
        self._link.close()


async def _taken_apart(descriptors: list[int]) -> Any:
    apart = descriptors.pop(0)
    try:
        return json.loads(await content_in(apart, most_bytes=_LARGEST_BYTES))
    finally:
        os.close(apart)


def _read(fields: Any) -> object:
    if not isinstance(fields, dict):
        return Unreadable(f"a {type(fields).__name__} is no record")
    try:
        return codec.decode(cast("dict[str, Any]", fields))
    except ValueError as error:
        return Unreadable(str(error))


async def in_memory(content: bytes) -> int:
    """Return a descriptor of a file that is in memory only and has this content.

    It is copied a piece at a time, on the event loop: a thread might go on with a descriptor whose
    number is another file's by then, when whoever waits for it has been cancelled.

    Raises:
        OSError: There is no room for it.
    """
    descriptor = os.memfd_create("headstart", os.MFD_CLOEXEC)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest[:_PIECE_BYTES]) :]
            if rest:
                await anyio.lowlevel.checkpoint()
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


async def content_in(descriptor: int, *, most_bytes: int = LARGEST_FILE_BYTES) -> bytes:
    """Return the content of a file in memory, from its beginning; the descriptor stays open.

    Raises:
        OSError: It is no such file (reading others might take any time), or has more than `most_bytes`.
    """
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or syscalls.filesystem_of(descriptor) != syscalls.TMPFS_MAGIC:
        raise OSError(errno.EINVAL, "what came is no file in memory")
    size = facts.st_size
    if size > most_bytes:
        raise OSError(errno.EFBIG, f"{size} bytes are more than the {most_bytes} that are taken at once")
    content = bytearray()
    while len(content) < size:
        chunk = os.pread(descriptor, min(_PIECE_BYTES, size - len(content)), len(content))
        if not chunk:
            break
        content += chunk
        await anyio.lowlevel.checkpoint()
    return bytes(content)


@contextmanager
def near(state_dir: Path) -> Generator[str]:
    """Yield a path by which a state directory's socket can be bound or reached.

    A socket's path may have 107 bytes, and a state directory's alone may be longer.

    Raises:
        OSError: There is no such folder.
    """
    opened = os.open(state_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{SOCKET_NAME}"
    finally:
        os.close(opened)
