"""Messages arrive whole, with their descriptors, or not at all."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstart.backends.zygote import PreloadReport, Recording
from headstart.backends.zygote.guest import wire
from headstart.errors import BackendError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        yield left, right


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("size", [0, 100, wire.INLINE_LIMIT_BYTES - 20, wire.INLINE_LIMIT_BYTES + 1, 3_000_000])
def test_messages_of_any_length_arrive_with_their_descriptors(pair: Pair, size: int) -> None:
    read, write = os.pipe()
    wire.send(pair[0], {"text": "x" * size}, [write])
    os.close(write)
    received = wire.receive(pair[1])
    assert received is not None
    message, (fd,) = received
    assert message == {"text": "x" * size}
    os.write(fd, b"through")
    assert os.read(read, 20) == b"through"
    assert not os.get_inheritable(fd)
    for open_fd in (read, fd):
        os.close(open_fd)


def test_an_end_is_told_from_a_message(pair: Pair) -> None:
    pair[0].close()
    assert wire.receive(pair[1]) is None


def test_too_much_is_refused_before_anything_is_sent(pair: Pair) -> None:
    with pytest.raises(wire.WireError, match="more than one message can carry"):
        wire.send(pair[0], {}, [0] * wire.FD_LIMIT)
    with pytest.raises(wire.WireError, match="more than one message can carry"):
        wire.send(pair[0], {"text": "x" * wire.BODY_LIMIT_BYTES})
    pair[1].settimeout(0)
    with pytest.raises(BlockingIOError):
        wire.receive(pair[1])


@pytest.mark.parametrize(
    "packet", [b"inot json", b"i[1]", b"i" + b"[" * 50_000, b"m5", b"mabc", b"m-1", b"m" + b"9" * 5_000, b"x" * 70_000]
)
@pytest.mark.parametrize("descriptors", [0, 1])
def test_a_strangers_packet_is_an_error_and_leaves_no_descriptor(pair: Pair, packet: bytes, descriptors: int) -> None:
    before = open_descriptors()
    socket.send_fds(pair[0], [packet], [pair[0].fileno()] * descriptors)
    with pytest.raises(wire.WireError):
        wire.receive(pair[1])
    assert open_descriptors() == before


def test_an_empty_packet_leaves_no_descriptor(pair: Pair) -> None:
    before = open_descriptors()
    socket.send_fds(pair[0], [b""], [pair[0].fileno()])
    assert wire.receive(pair[1]) is None
    assert open_descriptors() == before


@pytest.mark.parametrize("told", [{}, {"modules": 5}, {"threads": None, "failed": [1], "facts": []}])
@pytest.mark.parametrize("kind", [PreloadReport, Recording])
def test_a_strangers_report_is_a_backend_error(kind: type[PreloadReport | Recording], told: dict[str, object]) -> None:
    with pytest.raises(BackendError, match="a guest answered with something else"):
        kind.parse(told)
